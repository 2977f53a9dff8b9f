"""The way out: header fields on the start of the response, and refusals in the place of what an application sends.

A limit at an endpoint refuses by raising, and any handler, middleware or mounted application may turn that into an
answer of its own. The start of that answer is replaced by the refusal, and the rest of it is dropped; only fields
that do not describe the dropped answer stay, so that the fields of CORS and others in between are not lost.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from ...core.decision import Decision
from ..endpoints.decorator import MARKS, check_endpoint
from ..holding import until_the_last_byte
from ..record import LEFT, Side
from ..settling import by_start
from .feed import Feed
from .foreign_fields import Field, lowered
from .header_fields import OURS, HeaderWriter
from .traffic import Visit

_FIRST: Final = frozenset(
    {"http.response.start", "websocket.accept", "websocket.http.response.start", "websocket.close"}
)
_BODY: Final = frozenset({"http.response.body", "http.response.pathsend", "http.response.zerocopysend"})
_OF_THE_ANSWER: Final = frozenset(
    b"accept-ranges age allow cache-control content-disposition content-encoding content-language content-length "
    b"content-location content-range content-type etag expires last-modified location proxy-authenticate retry-after "
    b"set-cookie trailer transfer-encoding upgrade www-authenticate".split()
)


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

    __slots__ = ("_replaced", "out", "receive", "writer")

    receive: Receive
    out: Send
    writer: HeaderWriter | None
    _replaced: bool
    """Whether the refusal of a limit at an endpoint took the place of what the application sends."""

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
            if MARKS or message["type"] != "http.response.start":
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
            if getattr(self, "_replaced", False):
                return _drop()
            if (feed := self.feed) is not None and kind in _BODY:
                self.go_on(message, feed)
        elif kind in _FIRST:
            instead = self._instead(message) if MARKS or self.unfinished else None
            self.answered = True
            if instead is not None:
                return instead
            if (feed := self.feed) is not None:
                self.begin(message, feed)
            if self.writer is not None and kind != "websocket.close":
                first, *further = [step.decision for step in self.steps]
                headers = self.writer.complete(message.get("headers", ()), first, further)
                message = {**message, "headers": headers}
        return self.out(message)

    def _instead(self, message: Message) -> Awaitable[None] | None:
        """Check the endpoint that answers, and return what is sent instead if a limit at an endpoint has refused.

        Where none has, places that the request holds are let go of with the last byte.
        """
        if MARKS:
            check_endpoint(self.scope)
        if self.refused is None:
            if self.unfinished:
                self.out = until_the_last_byte(self.out, self.let_go)
                if reserved := getattr(self, "reserved", None):
                    self.out = by_start(self.scope, self.out, reserved)
            return None
        self._replaced = True
        if self.refused is LEFT:
            self.leave()
            return _drop()
        return self._replace(message, self.refused)

    async def _replace(self, message: Message, refusal: Decision) -> None:
        """Send the refusal of a limit at an endpoint in the place of an answer."""
        writer = self.writer
        dropped = _OF_THE_ANSWER if writer is None else _OF_THE_ANSWER | OURS
        kept: list[Field] = [field for field in message.get("headers", ()) if lowered(field[0]) not in dropped]
        if writer is not None:
            first, *further = self.decisions
            kept += writer.complete((), first, further)

        def send_refusal(message: Message) -> Awaitable[None]:
            kind = message["type"]
            feed = self.feed
            if feed is not None and kind in _FIRST:
                self.begin(message, feed)
            elif feed is not None and kind in _BODY:
                self.go_on(message, feed)
            if kind in _FIRST and kind != "websocket.close":
                own = message["headers"]
                present = {lowered(name) for name, _ in own}
                message = {**message, "headers": [*own, *(field for field in kept if lowered(field[0]) not in present)]}
            return self.out(message)

        await self.side.refuse(self.scope, self.receive, send_refusal, refusal)


async def _drop() -> None:
    """Take a message of an answer that was replaced."""
