"""The answers of a door, and the header fields that every answer through it has."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

from starlette.types import Message, Scope, Send

from ..core.errors import SlidegateError

FIELDS: Final[Sequence[tuple[bytes, bytes]]] = (
    (b"cache-control", b"no-store"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        b"frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    ),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
"""The fields of every answer. Whether a name is to be asked by https alone is the business of its owner."""
MOST_HELD_BYTES: Final = 65_536
_NAMES: Final = frozenset(name for name, _ in FIELDS)


class Refused(SlidegateError):
    """A request that the door does not let through.

    Args:
        status: The status of the answer.
        code: The reason in one word, for programs.
        detail: The reason in a sentence, which holds nothing that a client has sent.
        fields: More header fields.
    """

    def __init__(self, status: int, code: str, detail: str, *fields: tuple[bytes, bytes]) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.fields = fields

    async def answer(self, scope: Scope, send: Send, more: Mapping[str, str]) -> None:
        """Send the refusal as a problem (RFC 9457), with more members."""
        title = HTTPStatus(self.status).phrase
        problem = {"type": "about:blank", "title": title, "status": self.status, "code": self.code}
        await send_json(scope, send, self.status, {**problem, "detail": self.detail, **more}, *self.fields)


class Outlet:
    """Sends the answer to one request, with the fields of all answers in the place of its own of that name.

    An application of Starlette's answers 500 by itself before it raises, in debug mode with the traceback. So such an
    answer is held until the application is done.

    Args:
        send: The channel to the server.

    Attributes:
        started: Whether the answer has begun.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._held: list[Message] = []
        self._held_bytes = 0
        self.started = False

    async def send(self, message: Message) -> None:
        """Send one message, or hold it."""
        failed = message["type"] == "http.response.start" and message["status"] == HTTPStatus.INTERNAL_SERVER_ERROR
        if failed or self._held:
            self._held.append(message)
            self._held_bytes += len(message.get("body", b""))
            if self._held_bytes > MOST_HELD_BYTES:
                await self.let_go()
            return
        await self._pass_on(message)

    async def let_go(self) -> None:
        """Send the messages that are held."""
        held, self._held = self._held, []
        for message in held:
            await self._pass_on(message)

    def drop(self) -> None:
        """Forget the messages that are held."""
        self._held = []

    async def _pass_on(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            own = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in _NAMES]
            message = {**message, "headers": [*own, *FIELDS]}
        await self._send(message)


async def send_json(scope: Scope, send: Send, status: int, said: object, *fields: tuple[bytes, bytes]) -> None:
    """Send an object as JSON; one with a status of 400 or more is a problem."""
    # "<" cannot end a script element then, wherever the text is pasted.
    body = json.dumps(said).replace("<", "\\u003c").encode()
    await send_body(
        scope, send, status, body, "application/problem+json" if status >= 400 else "application/json", *fields
    )


async def send_body(
    scope: Scope, send: Send, status: int, body: bytes, media_type: str, *fields: tuple[bytes, bytes]
) -> None:
    """Send a whole answer; the body is left out where a HEAD asks for it."""
    headers = [*fields]
    if status != HTTPStatus.NO_CONTENT:
        headers += [(b"content-type", media_type.encode()), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
