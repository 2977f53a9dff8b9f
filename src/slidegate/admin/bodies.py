"""The bodies of requests: JSON alone, of bounded size and depth, and whole before a handler sees it."""

from __future__ import annotations

import json
from typing import Any, Final

import anyio
from starlette.types import Message, Receive, Scope

from ..core.errors import SlidegateError
from .origins import field_values
from .secure_fields import Refused

MOST_BYTES: Final = 65_536
MOST_OF_A_LOGIN: Final = 4_096
DEEPEST: Final = 32
PATIENCE_S: Final = 15.0
"""How long the bytes of a body may take to come."""


class Gone(SlidegateError):
    """The client left before its request was complete."""


async def read_json(scope: Scope, receive: Receive, most: int = MOST_BYTES) -> tuple[Any, Receive]:
    """Read the body of a request.

    Args:
        scope: Its ASGI scope.
        receive: Its channel.
        most: How many bytes the body may have.

    Returns:
        The body as JSON, None for an empty one; and the channel on which a handler receives the same body.

    Raises:
        Refused: It is too large, no JSON, nested too deeply, or does not come.
        Gone: The client left.
    """
    if field_values(scope, b"content-encoding"):
        raise Refused(415, "encoding", "The body must not be encoded.")
    lengths = field_values(scope, b"content-length")
    if any(not length.isdigit() or len(length) > 9 or int(length) > most for length in lengths):
        raise _too_large(most)
    try:
        with anyio.fail_after(PATIENCE_S):
            body = await _whole(receive, most)
    except TimeoutError:
        raise Refused(408, "slow", f"The body did not come within {PATIENCE_S:g} seconds.") from None
    if body or scope["method"] != "DELETE":
        _check_type(scope)
    return parse(body) if body else None, _again(body, receive)


def parse(body: bytes) -> Any:
    """Return the content of a body.

    Raises:
        Refused: It is no JSON in UTF-8, or nested too deeply.
    """
    try:
        said = json.loads(body.decode(), parse_constant=_no_number)
        _check_inside(said)
    except (ValueError, RecursionError):
        message = f"The body must be JSON in UTF-8, nested no deeper than {DEEPEST} levels."
        raise Refused(400, "json", message) from None
    return said


async def _whole(receive: Receive, most: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Gone
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise _too_large(most)
        if part:
            parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(most: int) -> Refused:
    return Refused(413, "size", f"The body must have no more than {most} bytes.")


def _check_type(scope: Scope) -> None:
    types = field_values(scope, b"content-type")
    if len(types) != 1 or types[0].partition(b";")[0].strip().lower() != b"application/json":
        # A form, which a page elsewhere can send without asking, has another type.
        raise Refused(415, "type", "A change must be sent as application/json.")


def _check_inside(said: Any) -> None:
    """Look through a value, level by level; text must be such that it can be stored and written."""
    level = [said]
    for depth in range(DEEPEST + 1):
        below: list[Any] = []
        for one in level:
            if isinstance(one, str):
                one.encode()
            elif isinstance(one, (list, dict)):
                if depth == DEEPEST:
                    raise ValueError("too deep")
                below += one
                if isinstance(one, dict):
                    below += one.values()
        level = below


def _no_number(text: str) -> Any:
    raise ValueError(text)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a channel that hands out a body that was read, and then the messages after it."""
    sent = False

    async def again() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
