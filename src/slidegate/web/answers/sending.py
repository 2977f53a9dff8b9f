"""The way out: header fields on the start of the response, and refusals in the place of what an application sends.

A limit at an endpoint refuses by raising, and any handler, middleware or mounted application may turn that into an
answer of its own. The start of that answer is replaced by the refusal, and the rest of it is dropped; only fields
that do not describe the dropped answer stay, so that the fields of CORS and others in between are not lost.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from starlette.types import Message, Receive, Send

from ...core.decision import Decision
from ..endpoints.decorator import MARKS, check_endpoint
from ..holding import until_the_last_byte
from ..record import LEFT
from ..settling import by_start
from .feed import counted_by
from .foreign_fields import Fields, lowered
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


class Outgoing(Visit):
    """The way out of one request, at its outermost gate.

    It has no constructor, for the reason that `Step` has none: `RateLimitMiddleware` sets every attribute.

    Attributes:
        receive: The `receive` of the request.
        out: The `send` of the server, or of whatever stands further out.
        writer: Writes the header fields; None where none are written.
        replaced: Whether the refusal of a limit at an endpoint took the place of what the application sends.
    """

    __slots__ = ("out", "receive", "replaced", "writer")

    receive: Receive
    out: Send
    writer: HeaderWriter | None
    replaced: bool

    def send(self, message: Message) -> Awaitable[None]:
        """Send a message of the application's."""
        record = self.record
        if record.answered:
            if self.replaced:
                return _drop()
            if not self.over and message["type"] in _BODY:
                if self.series is not None or len(record) > 1 or record.waited or message.get("more_body", False):
                    self.go_on(message)
                else:  # nearly every answer ends here: it is recorded as `end` does it, in fewer calls
                    self.over = True
                    feed, checks = self.feed, record[0].decision.checks
                    counted = checks[0][0] if len(checks) == 1 else counted_by(record)
                    feed.passed(self.scope, counted, self.status, self.began, self._first, feed.now())
        elif (kind := message["type"]) in _FIRST:
            instead = self._instead(message) if MARKS or record.unfinished else None
            record.answered = True
            if instead is not None:
                return instead
            decision = record[0].decision
            further = () if len(record) == 1 else record.decisions[1:]
            if self.over:
                pass
            elif kind == "http.response.start" and decision.allowed and not further:  # as `begin` does it
                self._first = self.feed.now()
                self.status = message.get("status") or 200
            else:
                self.begin(message)
            if self.writer is not None and kind != "websocket.close":
                message = {**message}  # an application may send one prepared message again and again
                message["headers"] = self.writer.complete(message.get("headers", ()), decision, further)
        return self.out(message)

    def _instead(self, message: Message) -> Awaitable[None] | None:
        """Check the endpoint that answers, and return what is sent instead if a limit at an endpoint has refused.

        Where none has, places that the request holds are let go of with the last byte.
        """
        record = self.record
        if MARKS:
            check_endpoint(self.scope)
        if record.refused is None:
            if record.unfinished:
                self.out = until_the_last_byte(self.out, record.let_go)
                if reserved := getattr(record, "reserved", None):
                    self.out = by_start(self.scope, self.out, reserved)
            return None
        self.replaced = True
        if record.refused is LEFT:
            self.leave()
            return _drop()
        return self._replace(message, record.refused)

    async def _replace(self, message: Message, refusal: Decision) -> None:
        """Send the refusal of a limit at an endpoint in the place of an answer."""
        record, writer = self.record, self.writer
        dropped = _OF_THE_ANSWER if writer is None else _OF_THE_ANSWER | OURS
        kept: Fields = [field for field in message.get("headers", ()) if lowered(field[0]) not in dropped]
        if writer is not None:
            kept += writer.complete((), record[0].decision, record.decisions[1:])

        def send_refusal(message: Message) -> Awaitable[None]:
            kind = message["type"]
            if not self.over and kind in _FIRST:
                self.begin(message)
            elif not self.over and kind in _BODY:
                self.go_on(message)
            if kind in _FIRST and kind != "websocket.close":
                own = message["headers"]
                present = {lowered(name) for name, _ in own}
                message = {**message, "headers": [*own, *(field for field in kept if lowered(field[0]) not in present)]}
            return self.out(message)

        await record.side.refuse(self.scope, self.receive, send_refusal, refusal)


async def _drop() -> None:
    """Take a message of an answer that was replaced."""
