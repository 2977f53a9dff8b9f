"""Sends single requests to each system, without a server."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.types import ASGIApp, Message

CLIENT = "198.51.100.7"


@dataclass(frozen=True)
class Answer:
    """The response to a request: its status, and its `Retry-After` in seconds, if any."""

    status: int
    retry_after_s: float | None = None

    @property
    def passed(self) -> bool:
        """Whether the limiter admitted the request."""
        return self.status in (200, 404)


class System(Protocol):
    """A limiter in front of an application that responds immediately."""

    def ask(self, path: str = "/", client: str = CLIENT, headers: dict[str, str] | None = None) -> Answer:
        """Send one request now."""


loop = asyncio.new_event_loop()


async def messages_of(
    app: ASGIApp, path: str, client: str, headers: dict[str, str], kind: str = "http"
) -> list[Message]:
    """Return the messages that an application sends in response to one GET, or to the handshake of a websocket."""
    scope: dict[str, Any] = {
        "type": kind,
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": (client, 40_000),
        "server": ("127.0.0.1", 80),
        "state": {},
    }
    said: list[Message] = []
    asked = False

    async def receive() -> Message:
        nonlocal asked
        if asked:
            await asyncio.Event().wait()  # the client does not disconnect
        asked = True
        return {"type": "websocket.connect"} if kind == "websocket" else {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        said.append(message)

    await app(scope, receive, send)
    return said


class Asgi:
    """An ASGI application.

    Args:
        app: The application with its limits.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    def messages(self, path: str = "/", client: str = CLIENT, headers: dict[str, str] | None = None) -> list[Message]:
        """Return the messages of the response to one request."""
        return loop.run_until_complete(messages_of(self.app, path, client, headers or {}))

    def accepts(self, path: str) -> bool:
        """Open a websocket now; return whether the handshake succeeds."""
        said = loop.run_until_complete(messages_of(self.app, path, CLIENT, {}, "websocket"))
        return said[0]["type"] == "websocket.accept"

    def ask(self, path: str = "/", client: str = CLIENT, headers: dict[str, str] | None = None) -> Answer:
        """Send one request now; an exception of the application counts as 500, as in servers."""
        try:
            start = self.messages(path, client, headers)[0]
        except Exception:
            return Answer(500)
        fields = {name.decode().lower(): value.decode() for name, value in start["headers"]}
        seconds = fields.get("retry-after")
        return Answer(start["status"], None if seconds is None else float(seconds))
