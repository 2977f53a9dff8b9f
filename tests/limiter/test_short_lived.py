"""A limiter in memory that each request makes for itself is found, and one that stays is not."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from slidegate import Limiter, MemoryStore, RateLimitMiddleware
from slidegate.limiter import short_lived

from ..asgi import call, hello, page


@pytest.fixture(autouse=True)
def of_this_test() -> None:
    short_lived._report.cache_clear()
    short_lived._latest.clear()


async def a_block() -> None:
    async with Limiter(MemoryStore()).limited("1/hour", key="ann"):
        pass


@cache
def of_tenant(name: str) -> Limiter:
    return Limiter()


AROUND = [Middleware(RateLimitMiddleware, limits="1/hour")]
FOUND: list[Callable[[str], Awaitable[object]]] = [
    lambda path: Limiter().hit("ann", "1/hour"),
    lambda path: Limiter.from_url("memory://").hit("ann", "1/hour"),
    lambda path: a_block(),
]
NOT_FOUND: list[Callable[[str], Awaitable[object]]] = [
    lambda path: of_tenant(path).hit("ann", "1/hour"),
    lambda path: call(RateLimitMiddleware(hello, limits="1/hour")),
    lambda path: call(Starlette(routes=[Mount("/", Starlette(routes=[Route("/", page)], middleware=AROUND))])),
    lambda path: call(hello),
]


@pytest.mark.parametrize("use", [*FOUND, *NOT_FOUND])
async def test_a_limiter_that_each_request_makes_is_found_once(
    use: Callable[[str], Awaitable[object]], caplog: pytest.LogCaptureFixture
) -> None:
    """One that stays, or is that of a middleware, is not."""

    async def endpoint(request: Request) -> PlainTextResponse:
        await use(request.url.path)
        return PlainTextResponse("page")

    app = Starlette(routes=[Route("/{tenant}", endpoint)])
    for number in range(9):
        await call(app, f"/{number}")
        assert caplog.text.count("SG142") == (use in FOUND and number > 2)


async def test_those_of_tests_and_of_lifespans_are_not(caplog: pytest.LogCaptureFixture) -> None:
    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        await Limiter().hit("ann", "1/hour")
        yield

    for _ in range(9):
        await Limiter().hit("ann", "1/hour")
        with TestClient(Starlette(lifespan=lifespan)):
            pass
    assert "SG142" not in caplog.text
