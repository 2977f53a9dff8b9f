"""The way out: header fields on the start of the response, and refusals in the place of what an application sends.

A limit at an endpoint refuses by raising, and any handler, middleware or mounted application may turn that into an
answer of its own. The start of that answer is replaced by the refusal, and the rest of it is dropped; only fields
that do not describe the dropped answer stay, so that the fields of CORS and others in between are not lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from ..endpoints.decorator import MARKS, check_endpoint
from ..record import Record
from .foreign_fields import lowered
from .header_fields import Fields, HeaderWriter
from .traffic import Visit

_FIRST: Final = frozenset(
    {"http.response.start", "websocket.accept", "websocket.http.response.start", "websocket.close"}
)
_BODY: Final = frozenset({"http.response.body", "http.response.pathsend", "http.response.zerocopysend"})
_OURS: Final = frozenset(
    {b"ratelimit", b"ratelimit-policy", b"x-ratelimit-limit", b"x-ratelimit-remaining", b"x-ratelimit-reset"}
)
_LENGTHS: Final = frozenset(map(len, _OURS))
"""A look at the length spares nearly every field the making of its name in lower case."""
_OF_THE_ANSWER: Final = frozenset(
    b"accept-ranges age allow cache-control content-disposition content-encoding content-language content-length "
    b"content-location content-range content-type etag expires last-modified location proxy-authenticate retry-after "
    b"set-cookie trailer transfer-encoding upgrade www-authenticate".split()
)


def outgoing(
    scope: Scope, receive: Receive, send: Send, record: Record, writer: HeaderWriter | None, visit: Visit | None
) -> Send:
    """Wrap the `send` of a request at its outermost gate."""
    replaced = False

    def send_outgoing(message: Message) -> Awaitable[None]:
        nonlocal replaced
        if not record.answered:
            if message["type"] in _FIRST:
                if MARKS:
                    check_endpoint(scope)
                record.answered = True
                if record.refused is not None:
                    replaced = True
                    return _replace(scope, receive, _noted(send, visit), record, writer, message)
                if visit is not None:
                    visit.begin(message)
                if writer is not None and message["type"] != "websocket.close":
                    decisions = (record[0].decision,) if len(record) == 1 else record.decisions
                    # A copy: an application may send one prepared message again and again.
                    message = {**message, "headers": _joined(message.get("headers", ()), writer.fields(decisions))}
        elif replaced:
            return _drop()
        elif visit is not None and not visit.over and message["type"] in _BODY:
            visit.go_on(message)
        return send(message)

    return send_outgoing


def _noted(send: Send, visit: Visit | None) -> Send:
    """Wrap the `send` of a refusal that takes the place of an answer, so that the refusal is recorded."""
    if visit is None:
        return send

    def send_noted(message: Message) -> Awaitable[None]:
        if message["type"] in _FIRST:
            visit.begin(message)
        elif message["type"] in _BODY:
            visit.go_on(message)
        return send(message)

    return send_noted


def _joined(theirs: Iterable[tuple[bytes, bytes]], ours: Fields) -> Fields:
    """Put our fields behind the application's; a field comes once, and ours says what the gate knows."""
    joined = list(theirs)
    for name, _ in joined:
        if len(name) in _LENGTHS and lowered(name) in _OURS:
            own = {name for name, _ in ours}
            joined = [field for field in joined if lowered(field[0]) not in own]
            break
    joined += ours
    return joined


async def _drop() -> None:
    """Take a message of an answer that was replaced."""


async def _replace(
    scope: Scope, receive: Receive, send: Send, record: Record, writer: HeaderWriter | None, message: Message
) -> None:
    """Send the refusal of the gate whose limit it was."""
    dropped = _OF_THE_ANSWER if writer is None else _OF_THE_ANSWER | _OURS
    kept: Fields = [field for field in message.get("headers", ()) if lowered(field[0]) not in dropped]
    if writer is not None:
        kept += writer.fields(record.decisions)

    def send_refusal(message: Message) -> Awaitable[None]:
        if message["type"] in _FIRST and message["type"] != "websocket.close":
            own = message["headers"]
            present = {lowered(name) for name, _ in own}
            message = {**message, "headers": [*own, *(field for field in kept if lowered(field[0]) not in present)]}
        return send(message)

    assert record.refused is not None
    await record.side.refuse(scope, receive, send_refusal, record.refused)
