"""fastapi-guard: its middleware with one limit, in memory, without penetration detection."""

from __future__ import annotations

import socket
from typing import Any

from fastapi import FastAPI, WebSocket
from guard import RateLimitManager, SecurityConfig, SecurityDecorator, SecurityMiddleware

from slidegate import Limiter, RateLimitMiddleware
from slidegate.testing import FakeClock

from ..asking import Asgi, loop
from ..attacks import flood, move
from ..rows import Row, apart, of
from ..virtual_time import virtual_time
from . import with_slidegate
from .with_slowapi import handshakes, of_one_network

KNOCKS = 2_000
EVERY_S = 0.3
OTHERS = 10_001


def config_of(amount: int = 100, window_s: int = 60, **options: Any) -> SecurityConfig:
    """Return a configuration; the counts of the process, which all middlewares share, are reset."""
    RateLimitManager._instance = None
    options = {"enable_redis": False, "enable_penetration_detection": False, **options}
    return SecurityConfig(rate_limit=amount, rate_limit_window=window_s, **options)


def app_of(config: SecurityConfig) -> Asgi:
    """Return an application behind the middleware."""
    app = FastAPI()
    app.add_middleware(SecurityMiddleware, config=config)

    @app.get("/")
    async def answer() -> str:
        return "hi"

    @app.websocket("/chat")
    async def chat(socket: WebSocket) -> None:
        await socket.accept()

    return Asgi(app)


def one(clock: FakeClock) -> Asgi:
    """Return one limit."""
    return app_of(config_of())


def two_limits(clock: FakeClock) -> Asgi:
    """Return two limits: one for the whole application, and one for the path."""
    return app_of(config_of(50, 3_600, endpoint_rate_limits={"/": (5, 60)}))


def limited_route(clock: FakeClock) -> Asgi:
    """Return an application with a limit on a route that has a parameter."""
    config = config_of(100_000)
    guard = SecurityDecorator(config)
    app = FastAPI()
    app.add_middleware(SecurityMiddleware, config=config)
    app.state.guard_decorator = guard

    @app.get("/items/{item_id}")
    @guard.rate_limit(requests=100, window=60)
    async def item(item_id: str) -> str:
        return "hi"

    return Asgi(app)


def knocking(system: Asgi, clock: FakeClock) -> str:
    """Return when a refused client that continues to send requests is admitted again."""
    start_us = clock.now_us
    flood(system)
    for number in range(1, KNOCKS):
        move(clock, start_us, number * EVERY_S)
        if system.ask().passed:
            return f"{of(number * EVERY_S)} s"
    return f"never, in {of(KNOCKS * EVERY_S / 60)} minutes"


def remembered(system: Asgi) -> str:
    """Return the status of a refused client after one request from each of many other addresses."""
    flood(system)
    for number in range(OTHERS):
        system.ask(client=f"10.0.{number // 256}.{number % 256}")
    return of(system.ask().status)


def statuses_without_redis() -> Row:
    """Return the statuses of requests while no server listens at the address of Redis."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # reserves the port without listening, so that connections are refused
        address = f"redis://127.0.0.1:{closed.getsockname()[1]}"
        theirs = [
            app_of(config_of(enable_redis=True, redis_url=address, redis_fail_open=allowed)).ask().status
            for allowed in (False, True)
        ]
        limiter = Limiter.from_url(address)
        ours = Asgi(RateLimitMiddleware(with_slidegate.hello, limits="100/minute", limiter=limiter)).ask().status
        loop.run_until_complete(limiter.close())
    question = "Status while Redis is away: as installed; with `redis_fail_open`"
    return Row(question, "; ".join(map(of, theirs)), f"{ours} as installed")


def extra() -> list[Row]:
    """Return the facts that only the page of fastapi-guard has."""
    items = [f"/items/{number}" for number in range(1, 6)]
    with virtual_time() as clock:
        rows = [
            Row(
                "A refused client goes on asking every 0.3 s: let in again after",
                knocking(one(clock), clock),
                knocking(with_slidegate.default(clock), clock),
            ),
            Row(
                "A limit of 100 at `/items/{id}`; one client asks five items, 100 times each: admitted",
                apart(limited_route(clock), items, 100),
                apart(with_slidegate.shop(clock, default_limits="100/minute"), items, 100),
            ),
            Row(
                "A client is refused, 10,001 other addresses ask once, and it asks again: status",
                remembered(one(clock)),
                remembered(with_slidegate.default(clock)),
            ),
            Row(
                "300 requests of 300 addresses in one IPv6 /64: admitted",
                of(sum(answer.passed for answer in of_one_network(one(clock)))),
                of(sum(answer.passed for answer in of_one_network(with_slidegate.default(clock)))),
            ),
            Row(
                "200 handshakes of websockets by one client: accepted",
                of(handshakes(one(clock))),
                of(handshakes(with_slidegate.shop(clock, limits="100/minute"))),
            ),
        ]
    return [*rows, statuses_without_redis()]
