"""slowapi: the middleware with default limits, as in its documentation, and other common configurations."""

from __future__ import annotations

import socket
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any

from fastapi import FastAPI, Request, WebSocket
from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded
from slowapi.middleware import SlowAPIASGIMiddleware
from slowapi.util import get_ipaddr, get_remote_address
from starlette.responses import StreamingResponse

from slidegate import Limiter as Ours
from slidegate import RateLimitMiddleware, client_ip
from slidegate.testing import FakeClock

from ..asking import Asgi, loop
from ..attacks import flood
from ..rows import Row, apart, of
from ..virtual_time import virtual_time
from . import with_slidegate


def app_of(limiter: Limiter) -> FastAPI:
    """Return an application with slowapi and a few routes."""
    app = FastAPI()
    app.state.limiter = limiter
    app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)  # type: ignore[arg-type]
    app.add_middleware(SlowAPIASGIMiddleware)

    @app.websocket("/chat")
    async def chat(socket: WebSocket) -> None:
        await socket.accept()

    for path in ("/", "/a", "/b", "/c", "/items/{item_id}"):

        @app.get(path)
        async def answer(item_id: str = "") -> str:
            return "hi"

    return app


def limited(clock: FakeClock, *limits: str, key: Callable[..., str] = get_remote_address, **options: Any) -> Asgi:
    """Return an application with default limits."""
    options = {"headers_enabled": True, **options}
    return Asgi(app_of(Limiter(key_func=key, default_limits=list(limits), **options)))


def fixed(clock: FakeClock) -> Asgi:
    """Return one limit with slowapi's default strategy."""
    return limited(clock, "100/minute")


def two_limits(clock: FakeClock) -> Asgi:
    """Return two limits on a route, the longer one first."""
    limiter = Limiter(key_func=get_remote_address)
    app = app_of(limiter)

    @app.get("/search")
    @limiter.limit("5/minute")
    @limiter.limit("50/hour")
    async def search(request: Request) -> str:
        return "found"

    return Asgi(PathOf(app, "/search"))


class PathOf:
    """An application for which every request goes to one path."""

    def __init__(self, app: Any, path: str) -> None:
        self.app, self.path = app, path

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app({**scope, "path": self.path, "raw_path": self.path.encode()}, receive, send)


def application_limits(clock: FakeClock) -> Asgi:
    """Return a limit for the whole application, with a larger one on a route."""
    limiter = Limiter(key_func=get_remote_address, application_limits=["10/minute"])
    app = app_of(limiter)

    @app.get("/search")
    @limiter.limit("100/minute")
    async def search(request: Request) -> str:
        return "found"

    return Asgi(app)


def streaming() -> FastAPI:
    """Return an application that streams three chunks behind slowapi's ASGI middleware."""
    app = app_of(Limiter(key_func=get_remote_address, default_limits=["100/minute"]))

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        return StreamingResponse(iter(["a", "b", "c"]))

    return app


def starts(system: Asgi) -> int:
    """Return how often the response to one request is started."""
    return sum(message["type"] == "http.response.start" for message in system.messages("/stream"))


def statuses_without_a_store() -> Row:
    """Return the statuses of requests while no server listens at the address of the store."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # reserves the port without listening, so that connections are refused
        address = f"redis://127.0.0.1:{closed.getsockname()[1]}"

        def status(**options: Any) -> str:
            limiter = Limiter(get_remote_address, default_limits=["100/minute"], storage_uri=address, **options)
            return of(Asgi(app_of(limiter)).ask().status)

        theirs = [status(), status(swallow_errors=True), status(in_memory_fallback_enabled=True)]
        limiter = Ours.from_url(address)
        ours = Asgi(RateLimitMiddleware(with_slidegate.hello, limits="100/minute", limiter=limiter))
        row = Row(
            "Status while Redis is away: as installed; with `swallow_errors`; with `in_memory_fallback_enabled`",
            "; ".join(theirs),
            f"{ours.ask().status} as installed",
        )
        loop.run_until_complete(limiter.close())
    return row


def extra() -> list[Row]:
    """Return the facts that only the page of slowapi has."""
    return [*in_virtual_time(), four_workers(), statuses_without_a_store()]


def four_workers() -> Row:
    """Return how many requests of one client pass with four workers."""
    workers = [Asgi(app_of(Limiter(get_remote_address, default_limits=["100/day"]))) for _ in range(4)]
    with TemporaryDirectory() as directory:
        shared = with_slidegate.of_four_workers(f"lmdb://{directory}/limits")
    return Row(
        "One client asks each of four workers 100 times: admitted in memory",
        of(sum(worker.ask().passed for worker in workers for _ in range(100))),
        f"{with_slidegate.of_four_workers('memory://')}; {shared} with `lmdb://`",
    )


def in_virtual_time() -> list[Row]:
    """Return the facts that need no shared store."""
    ours = with_slidegate
    with virtual_time() as clock:
        by_plan = {"client": client_ip(trusted=["198.51.100.0/24"])}
        return [
            Row(
                "One client asks three routes, 100 times each: admitted",
                apart(fixed(clock), ["/a", "/b", "/c"], 100),
                f"{apart(ours.shop(clock, limits='100/minute'), ['/a', '/b', '/c'], 100)}; "
                f"{apart(ours.shop(clock, default_limits='100/minute'), ['/a', '/b', '/c'], 100)} "
                "with `default_limits`",
            ),
            Row(
                "One client asks `/items/1` to `/items/5`, 100 times each, which is one route: admitted",
                apart(fixed(clock), [f"/items/{number}" for number in range(1, 6)], 100),
                apart(
                    ours.shop(clock, default_limits="100/minute"), [f"/items/{number}" for number in range(1, 6)], 100
                ),
            ),
            Row(
                "1,000 requests of one client to paths without a route: not refused",
                of(flood(PathAsked(fixed(clock), "/nowhere"))),
                of(flood(PathAsked(ours.shop(clock, limits="100/minute"), "/nowhere"))),
            ),
            Row(
                "Application limit of 10 a minute, a route with `100/minute` of its own: admitted there of 50",
                apart(application_limits(clock), ["/search"], 50),
                apart(ours.shop(clock, limits="10/minute"), ["/search"], 50),
            ),
            Row(
                "300 requests of 300 addresses in one IPv6 /64: admitted",
                of(sum(asked.passed for asked in of_one_network(fixed(clock)))),
                of(sum(asked.passed for asked in of_one_network(ours.default(clock)))),
            ),
            Row(
                "300 requests of one client that makes up a forwarding header each time (`get_ipaddr`): admitted",
                of(sum(asked.passed for asked in disguised(limited(clock, "100/minute", key=get_ipaddr)))),
                of(sum(asked.passed for asked in disguised(ours.guarded(clock, limits="100/minute", **by_plan)))),
            ),
            Row(
                "200 handshakes of websockets by one client: accepted",
                of(handshakes(fixed(clock))),
                of(handshakes(ours.shop(clock, limits="100/minute"))),
            ),
            Row(
                "Times that the answer begins when an endpoint streams three chunks (`SlowAPIASGIMiddleware`)",
                of(starts(Asgi(streaming()))),
                of(starts(ours.shop(clock, limits="100/minute"))),
            ),
        ]


def handshakes(system: Asgi) -> int:
    """Return how many of 200 handshakes succeed."""
    return sum(system.accepts("/chat") for _ in range(200))


class PathAsked:
    """A system for which every request goes to one path."""

    def __init__(self, system: Asgi, path: str) -> None:
        self.system, self.path = system, path

    def ask(self) -> Any:
        """Send one request now."""
        return self.system.ask(self.path)


def of_one_network(system: Asgi) -> list[Any]:
    """Send one request from each of 300 addresses in the network of one customer."""
    return [system.ask(client=f"2001:db8:0:7::{number:x}") for number in range(300)]


def disguised(system: Asgi) -> list[Any]:
    """Send requests from one client behind a proxy, which forges a different address each time."""
    answers = []
    for number in range(300):
        invented = f"203.0.113.{number % 250}.{number}"
        headers = {"X_FORWARDED_FOR": invented, "X-Forwarded-For": f"192.0.2.{number % 250}, 203.0.113.9"}
        answers.append(system.ask(headers=headers))
    return answers
