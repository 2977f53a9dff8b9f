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


async def a_new_one(request: Request) -> None:
    assert await Limiter().hit("ann", "1/hour")


async def by_address(request: Request) -> None:
    assert await Limiter.from_url("memory://").hit("ann", "1/hour")


async def a_block(request: Request) -> None:
    async with Limiter(MemoryStore()).limited("1/hour", key="ann"):
        pass


@cache
def of_tenant(name: str) -> Limiter:
    return Limiter()


async def one_for_each_tenant(request: Request) -> None:
    await of_tenant(request.url.path).hit("ann", "1/hour")


async def a_middleware(request: Request) -> None:
    await call(RateLimitMiddleware(hello, limits="1/hour"))


async def an_application(request: Request) -> None:
    mounted = Starlette(routes=[Route("/", page)], middleware=[Middleware(RateLimitMiddleware, limits="1/hour")])
    await call(Starlette(routes=[Mount("/", mounted)]))


async def nothing(request: Request) -> None: ...


Use = Callable[[Request], Awaitable[None]]


def serving(use: Use) -> Starlette:
    async def endpoint(request: Request) -> PlainTextResponse:
        await use(request)
        return PlainTextResponse("page")

    return Starlette(routes=[Route("/{tenant}", endpoint)])


@pytest.mark.parametrize(
    ("use", "is_found"),
    [
        *[(use, True) for use in (a_new_one, by_address, a_block)],
        *[(use, False) for use in (one_for_each_tenant, a_middleware, an_application, nothing)],
    ],
)
async def test_a_limiter_that_each_request_makes_is_found_once(
    use: Use, is_found: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """One that stays, or is that of a middleware, is not."""
    app = serving(use)
    for number in range(9):
        await call(app, f"/{number}")
        assert caplog.text.count("SG142") == (is_found and number > 2)


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
