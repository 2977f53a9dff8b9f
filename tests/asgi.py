"""Send one ASGI request to an application, and keep every message that comes back."""

import sys
from dataclasses import dataclass, field
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PEER = "203.0.113.9"
LISTS = ("ratelimit", "ratelimit-policy")


@dataclass
class Answer:
    messages: list[Message] = field(default_factory=list)
    receives: int = 0

    @property
    def start(self) -> Message:
        starts = [m for m in self.messages if m["type"].endswith(("http.response.start", "websocket.accept"))]
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
        fields: dict[str, str] = {}
        for name, value in self.start["headers"]:
            lower = name.decode().lower()
            before = fields.get(lower)
            # Each middleware writes lines of its own: several lines are one list (RFC 9651, section 4.2).
            assert before is None or lower in LISTS, f"a header came twice: {self.start['headers']}"
            fields[lower] = value.decode() if before is None else f"{before}, {value.decode()}"
        return fields


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
    if scope["type"] == "websocket":
        del scope["method"]
    return scope


async def send_scope(
    app: ASGIApp,
    scope: Scope,
    body: bytes = b"",
    *,
    more_body: bool = False,
    leaves: anyio.Event | None = None,
    leaves_after: int = sys.maxsize,
    answer: Answer | None = None,
) -> Answer:
    """Send a request with its body in one piece, or a handshake.

    A client stays connected after it, or leaves at an event, or when some messages have come.
    """
    answer = answer or Answer()
    first: Message = {"type": "http.request", "body": body, "more_body": more_body}
    if scope["type"] == "websocket":
        first = {"type": "websocket.connect"}

    async def receive() -> Message:
        answer.receives += 1
        if answer.receives == 1:
            return first
        await (leaves or anyio.Event()).wait()
        return {"type": f"{scope['type']}.disconnect"}

    async def send(message: Message) -> None:
        if len(answer.messages) == leaves_after:
            raise OSError("the client has left")
        answer.messages.append(message)

    await app(scope, receive, send)
    return answer


async def attempt(app: ASGIApp, **more: Any) -> tuple[Answer, Exception | None]:
    """Send a request, and return its answer and the error that the server logs."""
    answer = Answer()
    try:
        await send_scope(app, scope_of(**more), answer=answer)
    except Exception as error:
        return answer, error
    return answer, None


async def call(app: ASGIApp, path: str = "/", method: str = "GET", body: bytes = b"", **more: Any) -> Answer:
    return await send_scope(app, scope_of(path, method, **more), body)


async def statuses(app: ASGIApp, count: int, path: str = "/", method: str = "GET", **more: Any) -> list[int]:
    return [(await call(app, path, method, **more)).status for _ in range(count)]


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("hi")(scope, receive, send)


async def page(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hi")
