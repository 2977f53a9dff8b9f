"""slidegate, configured as in its documentation."""

from __future__ import annotations

from fastapi import FastAPI, WebSocket
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from slidegate import Limiter, MemoryStore, RateLimit, RateLimitMiddleware
from slidegate.testing import FakeClock

from ..asking import Asgi, loop


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond immediately."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hi"})


def guarded(clock: FakeClock, **options: object) -> Asgi:
    """Return an application behind a middleware."""
    limiter = Limiter(MemoryStore(clock=clock))
    return Asgi(RateLimitMiddleware(hello, limiter=limiter, **options))  # type: ignore[arg-type]


def shop(clock: FakeClock, **options: object) -> Asgi:
    """Return a FastAPI application with a few routes behind a middleware."""
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limiter=Limiter(MemoryStore(clock=clock)), **options)  # type: ignore[arg-type]
    for path in ("/", "/a", "/b", "/c", "/items/{item_id}"):

        @app.get(path)
        async def answer(item_id: str = "") -> str:
            return "hi"

    @app.get("/search")
    @RateLimit("100/minute")
    async def search() -> str:
        return "found"

    @app.websocket("/chat")
    async def chat(socket: WebSocket) -> None:
        await socket.accept()

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        return StreamingResponse(iter(["a", "b", "c"]))

    return Asgi(app)


def of_four_workers(url: str) -> int:
    """Return how many requests of one client pass if it sends 100 to each of four workers."""
    limiters = [Limiter.from_url(url) for _ in range(4)]
    workers = [Asgi(RateLimitMiddleware(hello, limits="100/day", limiter=limiter)) for limiter in limiters]
    passed = sum(worker.ask().passed for worker in workers for _ in range(100))
    for limiter in limiters:
        loop.run_until_complete(limiter.close())
    return passed


def default(clock: FakeClock) -> Asgi:
    """Return the middleware with one limit."""
    return guarded(clock, limits="100/minute")


def exact(clock: FakeClock) -> Asgi:
    """Return the middleware with an exact window, which stores the time of each unit."""
    return guarded(clock, limits="100/minute @100")


def two_limits(clock: FakeClock) -> Asgi:
    """Return the middleware with two limits."""
    return guarded(clock, limits="5/minute; 50/hour")
