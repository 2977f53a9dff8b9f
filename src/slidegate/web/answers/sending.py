"""The way out: header fields on the start of the response."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from ...core.decision import Decision
from ..endpoints.refusal import completed, needed_fields
from ..holding import until_the_last_byte
from ..record import Side
from ..scope_keys import STATUS
from ..settling import by_start
from .feed import Feed
from .header_fields import HeaderWriter
from .traffic import Visit

_FIRST: Final = frozenset(
    {"http.response.start", "websocket.accept", "websocket.http.response.start", "websocket.close"}
)
_BODY: Final = frozenset({"http.response.body", "http.response.pathsend", "http.response.zerocopysend"})


async def _nothing_comes() -> Message:
    raise RuntimeError("receive was called after the application had ended")


async def _nothing_goes(message: Message) -> None:
    raise RuntimeError(f"{message['type']} was sent after the application had ended")


ENDED: Final[tuple[Scope, Receive, Send]] = {}, _nothing_comes, _nothing_goes
"""The scope, the `receive` and the `out` of a request whose application has ended. The scope holds its request, and the
server holds the scope. If the request went on holding them, only the garbage collector would free the three."""


class Outgoing(Visit):
    """One request at its outermost gate: what was decided, what is recorded of it, and what goes out.

    It is one object, because every request makes one.

    Attributes:
        receive: The `receive` of the request.
        out: The `send` of the server, or of whatever stands further out.
        writer: Writes the header fields; None where none are written.
    """

    __slots__ = ("out", "receive", "writer")

    receive: Receive
    out: Send
    writer: HeaderWriter | None

    def open(
        self,
        decision: Decision | None,
        side: Side,
        scope: Scope,
        receive: Receive,
        send: Send,
        writer: HeaderWriter | None,
        feed: Feed | None,
    ) -> None:
        """Begin.

        Args:
            decision: The decision of the outermost gate, if it has decided at once.
            side: That gate.
            scope: The scope.
            receive: The `receive` of the request.
            send: The `send` of the server.
            writer: Writes the header fields.
            feed: Records the request; None where nobody does.
        """
        if decision is None:
            self._steps = []
            if feed is not None:
                self._began = feed.now() // feed.ticks_per_us * feed.ticks_per_us
        else:
            self.first = decision
            self._steps = None
        self.side = side
        self.refused = None
        self.answered = self.userless = self.waited = self.unfinished = False
        self.scope = scope
        self.receive = receive
        self.out = send
        self.writer = writer
        self.feed = feed

    def send(self, message: Message) -> Awaitable[None]:
        """Send a message of an answer to a request that was let through at once. Most answers are two messages.

        `send_any` does the same for all others, and for requests that somebody further in has added to.
        """
        if self._steps is not None:
            return self.send_any(message)
        if not self.answered:
            if message["type"] != "http.response.start":
                return self.send_any(message)
            self.answered = True
            feed = self.feed
            if feed is not None:  # as `begin` does it
                now = feed.now  # CPython 3.11 takes twice as long to call an attribute as to read it and call then
                self._first_byte = now()
                self.status = message.get("status") or 200
            if self.writer is not None:
                message = {**message}  # an application may send one prepared message again and again
                message["headers"] = self.writer.complete(message.get("headers", ()), self.first)
        elif (feed := self.feed) is not None and message["type"] in _BODY:
            if message.get("more_body", False):
                self.go_on(message, feed)
            else:
                self.end_at_once(feed)
        out = self.out
        return out(message)

    def send_any(self, message: Message) -> Awaitable[None]:
        """Send a message, whatever happened to the request."""
        kind = message["type"]
        if self.answered:
            if (feed := self.feed) is not None and kind in _BODY:
                self.go_on(message, feed)
        elif kind in _FIRST:
            self.answered = True
            if self.unfinished:
                message = self._finished(message)
            if (feed := self.feed) is not None:
                self.begin(message, feed)
            if self.writer is not None and kind != "websocket.close":
                first, *further = [step.decision for step in self.steps]
                headers = self.writer.complete(message.get("headers", ()), first, further)
                message = {**message, "headers": headers}
        return self.out(message)

    def _finished(self, message: Message) -> Message:
        """Do what is left at the start of an answer: to a request that was refused at an endpoint, or holds places."""
        if self.refused is None:
            self.out = until_the_last_byte(self.out, self.let_go)
            if reserved := getattr(self, "reserved", None):
                self.out = by_start(self.scope, self.out, reserved)
            return message
        self.tell(self.scope, self.refused, message.get("status") or STATUS[message["type"]])
        if message["type"] == "websocket.close":
            return message
        return {**message, "headers": completed(message.get("headers", ()), needed_fields(self.refused))}
