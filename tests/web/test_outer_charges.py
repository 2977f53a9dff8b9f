"""Each middleware and each limit at an endpoint is its own question: what was charged further out stays charged."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slidegate import Limiter, MemoryStore, RateLimit, RateLimitExceeded, RateLimitMiddleware, Rule
from slidegate.testing import FakeClock

from ..asgi import PEER, call, page, statuses

OUTER = 3


class Soft:
    """A middleware of somebody's that makes a poorer page of a refusal."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def soften(message: Message) -> None:
            await send({**message, "status": 200} if message.get("status") == 429 else message)

        await self.app(scope, receive, soften)


async def degraded(request: Request, error: Exception) -> Response:
    return PlainTextResponse("a poorer page")


def in_a_handler() -> Any:
    routes = [Route("/", RateLimit("1/minute")(page))]
    return Starlette(routes=routes, exception_handlers={RateLimitExceeded: degraded})


def in_the_endpoint() -> Any:
    limited = RateLimit("1/minute")(page)

    async def endpoint(request: Request) -> Response:
        try:
            return await limited(request)  # type: ignore[misc, no-any-return]
        except RateLimitExceeded as error:
            return await degraded(request, error)

    return Starlette(routes=[Route("/", endpoint)])


def in_a_dependency() -> Any:
    app = FastAPI(exception_handlers={RateLimitExceeded: degraded})
    app.add_api_route("/", lambda: "page", dependencies=[Depends(RateLimit("1/minute"))])
    return app


def in_a_middleware_before_another_of_ours() -> Any:
    inner = [Middleware(Soft), Middleware(RateLimitMiddleware, limits="1/minute")]
    return Starlette(routes=[Route("/", page)], middleware=inner)


CAUGHT = [
    in_a_handler,
    in_the_endpoint,
    in_a_dependency,
    in_a_middleware_before_another_of_ours,
]


@pytest.mark.parametrize("caught", CAUGHT)
@pytest.mark.parametrize("shared", [True, False])
async def test_who_catches_a_refusal_is_under_the_outer_limit_all_the_same(
    caught: Callable[[], Any], shared: bool
) -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    app = RateLimitMiddleware(caught(), limits=f"{OUTER}/minute", limiter=limiter)
    if not shared:  # two middlewares further out, of which the outermost has a store of its own
        app = RateLimitMiddleware(app, limits="100/minute", limiter=Limiter(MemoryStore(clock=FakeClock())))
    assert await statuses(app, 6) == [200] * OUTER + [429] * 3


UNCAUGHT: dict[str, Callable[[], Any]] = {
    "endpoint": lambda: Starlette(routes=[Route("/", RateLimit("1/minute")(page))]),
    "middleware": lambda: RateLimitMiddleware(Starlette(routes=[Route("/", page)]), limits="1/minute"),
}


@pytest.mark.parametrize("inner", UNCAUGHT)
async def test_who_has_spent_an_inner_limit_goes_on_spending_the_outer_one(inner: str) -> None:
    outer = Rule("*", f"{OUTER}/minute", name="outer")
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    app = RateLimitMiddleware(UNCAUGHT[inner](), rules=[outer], limiter=limiter)
    assert await statuses(app, 3) == [200, 429, 429]
    assert (await limiter.peek(PEER, f"{OUTER}/minute", 0, rule="outer")).remaining == 0
    refused = await call(app)
    assert (refused.status, b'"violated-policies":["outer"]' in refused.body.replace(b" ", b"")) == (429, True)


@pytest.mark.parametrize("caught", CAUGHT)
async def test_a_permit_further_out_comes_back_whoever_refuses_and_whoever_catches_it(
    caught: Callable[[], Any],
) -> None:
    rules = [Rule("*", concurrency=1)]
    app = RateLimitMiddleware(caught(), rules=rules, limiter=Limiter(MemoryStore(clock=FakeClock())))
    assert await statuses(app, 5) == [200] * 5


class Level:
    """One middleware, or the endpoint, with limits that all hold or none is charged."""

    def __init__(self, name: str, amounts: list[int]) -> None:
        self.amounts = {f"{name}-{number}": amount for number, amount in enumerate(amounts)}
        self.spent = dict.fromkeys(self.amounts, 0)

    def admits(self) -> bool:
        """Charge one request on all limits, or on none."""
        if any(self.spent[name] >= amount for name, amount in self.amounts.items()):
            return False
        for name in self.spent:
            self.spent[name] += 1
        return True


def nested(levels: list[Level], limiter: Limiter, random: Random) -> Any:
    """Return an application behind a middleware for each level but the last, which is its endpoint's."""
    *outer, last = levels
    endpoint: Any = page
    for name, amount in last.amounts.items():
        endpoint = RateLimit(f"{amount}/hour", name=name)(endpoint)
    app: Any = Starlette(routes=[Route("/", endpoint)])
    for level in reversed(outer):
        rules = [Rule("*", f"{amount}/hour", name=name) for name, amount in level.amounts.items()]
        app = RateLimitMiddleware(Soft(app) if random.random() < 0.3 else app, rules=rules, limiter=limiter)
    return app


async def wrong(seed: int) -> list[str]:
    """Return what a random nest of middlewares left spent otherwise than plain counters say."""
    random = Random(seed)
    levels = [Level(f"m{n}", random.choices(range(1, 9), k=random.randint(1, 2))) for n in range(random.randint(1, 3))]
    levels.append(Level("endpoint", [random.randint(1, 6)]))
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    app = nested(levels, limiter, random)
    for _ in range(12):
        await call(app)
        all(level.admits() for level in levels)
    found = []
    for level in levels:
        for name, amount in level.amounts.items():
            remaining = (await limiter.peek(PEER, f"{amount}/hour", 0, rule=name)).remaining
            left = amount - level.spent[name]
            found += [f"seed {seed}: {name} of {amount} has {remaining} left, not {left}"] * (remaining != left)
    return found


async def test_every_level_of_a_nest_is_charged_as_plain_counters_say() -> None:
    assert [line for seed in range(60) for line in await wrong(seed)] == []
