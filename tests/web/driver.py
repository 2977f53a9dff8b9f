"""Sends one ASGI request to an application and keeps every message that comes back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slidegate import RateLimitMiddleware
from slidegate.web.endpoints.decorator import MARKS
from slidegate.web.lists.watching import THREAD

PEER = "203.0.113.9"


@dataclass
class Answer:
    messages: list[Message] = field(default_factory=list)
    receives: int = 0

    @property
    def start(self) -> Message:
        starts = [m for m in self.messages if m["type"] in ("http.response.start", "websocket.http.response.start")]
        assert len(starts) == 1, f"one response start expected, got {self.messages}"
        return starts[0]

    @property
    def status(self) -> int:
        return int(self.start["status"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def headers(self) -> dict[str, str]:
        pairs = [(name.decode().lower(), value.decode()) for name, value in self.start["headers"]]
        assert len(dict(pairs)) == len(pairs), f"a header came twice: {pairs}"
        return dict(pairs)


def scope_of(
    path: str = "/",
    method: str = "GET",
    *,
    client: object = (PEER, 1234),
    headers: dict[str, str] | list[tuple[bytes, bytes]] | None = None,
    **more: Any,
) -> Scope:
    pairs = (
        headers if isinstance(headers, list) else [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
    )
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(errors="replace"),
        "query_string": b"",
        "root_path": "",
        "headers": pairs,
        "client": client,
        "server": ("127.0.0.1", 80),
    }
    scope.update(more)
    return scope


def skip_the_first_requests(gate: RateLimitMiddleware) -> None:
    """Have a gate take the short way at once, if it ever does: it looks on the first requests for findings."""
    gate._judge = gate._gate.at_once()
    gate._judged = frozenset({"http", "websocket"})
    gate._watch = None


@contextmanager
def nothing_decorated() -> Iterator[None]:
    """Have gates forget that a test has decorated an endpoint: in a process with one they look at every endpoint."""
    marks = MARKS[:]
    MARKS.clear()
    try:
        yield
    finally:
        MARKS[:] = marks


async def send_scope(app: ASGIApp, scope: Scope) -> Answer:
    answer = Answer()

    async def receive() -> Message:
        answer.receives += 1
        if answer.receives > 1:
            await anyio.sleep_forever()
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        answer.messages.append(message)

    await app(scope, receive, send)
    return answer


async def call(app: ASGIApp, path: str = "/", method: str = "GET", **more: Any) -> Answer:
    return await send_scope(app, scope_of(path, method, **more))


async def statuses(app: ASGIApp, count: int, path: str = "/", method: str = "GET", **more: Any) -> list[int]:
    return [(await call(app, path, method, **more)).status for _ in range(count)]


def end_of_looks() -> None:
    """Wait until every look at a file that a request has begun is over."""
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join(60)
            assert not thread.is_alive()


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("hi")(scope, receive, send)
