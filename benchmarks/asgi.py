"""ASGI requests and a client, with which benchmarks call an application directly, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from starlette.types import ASGIApp, Message, Scope

HEADERS: Final = (
    (b"host", b"app.test"),
    (b"user-agent", b"Mozilla/5.0 (X11; Linux x86_64) benchmark"),
    (b"accept", b"*/*"),
    (b"accept-encoding", b"gzip, deflate, br"),
    (b"connection", b"keep-alive"),
)


def scope_of(path: str, client: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> Scope:
    """Return the scope of a GET request, in which every object is new."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "".join(path),
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [*HEADERS, *headers],
        "client": (client, 4711),
        "server": ("127.0.0.1", 80),
    }


class Client:
    """The client of an application: it sends no body, does not disconnect, and stores the start of the last response.

    Attributes:
        status: The status of the response; 0 before the response.
        headers: The header fields of the response.
    """

    def __init__(self) -> None:
        self.headers: Iterable[tuple[bytes, bytes]] = ()
        self.begin()

    def begin(self) -> None:
        """Begin the next request."""
        self.status, self._has_read = 0, False

    async def receive(self) -> Message:
        if self._has_read:  # the client does not disconnect
            await asyncio.get_running_loop().create_future()
        self._has_read = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = message.get("headers", ())


async def ask(app: ASGIApp, scope: Scope) -> Client:
    """Send one request and return the client with the response."""
    client = Client()
    await app(scope, client.receive, client.send)
    return client
