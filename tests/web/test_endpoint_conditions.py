"""`RateLimit(when=, methods=)`: a limit at an endpoint counts the requests that it is about, and no other."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from slidegate import Limiter, MemoryStore, RateLimit, RateLimitMiddleware
from slidegate.testing import FakeClock

from ..asgi import call, page

METHODS = ("GET", "HEAD", "POST", "PUT")
GATE = Middleware(RateLimitMiddleware)


def starlette(endpoint: Any, methods: Any = METHODS) -> Starlette:
    return Starlette(routes=[Route("/x", endpoint, methods=list(methods))], middleware=[GATE])


def fastapi(limit: RateLimit) -> FastAPI:
    app = FastAPI(middleware=[GATE])
    router = APIRouter(dependencies=[Depends(limit)])
    router.api_route("/x", methods=list(METHODS))(lambda: "hi")
    app.include_router(router)
    return app


def is_marked(request: Request) -> bool:
    return request.headers.get("x-counts") == "yes"


async def is_marked_async(request: HTTPConnection) -> bool:
    return request.headers.get("x-counts") == "yes"


async def has_large_body(request: Request) -> bool:
    return len(await request.body()) > 3


def reaches(place: str, limit: RateLimit) -> Any:
    """Return an application whose /x has a limit."""
    if place == "dependency":
        return fastapi(limit)
    if place == "decorator":
        return starlette(limit(page))

    @limit
    class Page(HTTPEndpoint):
        async def get(self, request: Request) -> Response:
            return PlainTextResponse("hi")

        head = post = put = get

    return Starlette(routes=[Route("/x", Page)], middleware=[GATE])


PLACES = ("dependency", "decorator", "class")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("when", [None, is_marked, is_marked_async])
@pytest.mark.parametrize("methods", [None, ["POST"], ["get", "PUT"]])
async def test_exactly_the_requests_that_it_is_about_are_counted(place: str, when: Any, methods: Any) -> None:
    app = reaches(place, RateLimit("5/hour", when=when, methods=methods))
    taken = {name.upper() for name in methods or METHODS}
    taken |= {"HEAD"} if "GET" in taken else set()
    dice, counted = Random(7), 0
    for method, counts in dice.choices(list(product(METHODS, ("yes", "no"))), k=60):
        answer = await call(app, "/x", method, headers={"X-Counts": counts})
        is_about = method in taken and (when is None or counts == "yes")
        counted += is_about
        assert answer.status == (429 if is_about and counted > 5 else 200), (method, counts, counted)


async def test_a_condition_at_an_endpoint_may_read_the_body() -> None:
    app = starlette(RateLimit("1/hour", when=has_large_body)(page))
    sent = [b"abc", b"abcd", b"abc", b"abcd"]
    assert [(await call(app, "/x", "POST", body=body)).status for body in sent] == [200, 200, 200, 429]


async def test_where_a_condition_fails_the_limit_applies(caplog: pytest.LogCaptureFixture) -> None:
    def fails(request: Request) -> bool:
        raise RuntimeError("no")

    app = starlette(RateLimit("1/hour", when=fails)(page))
    assert [(await call(app, "/x")).status for _ in range(3)] == [200, 429, 429]
    assert caplog.text.count("when function of rule") == 1


@pytest.mark.parametrize("options", [{"shadow": True}, {"concurrency": 1}, {"count_if": lambda status: status == 200}])
async def test_what_it_is_not_about_takes_nothing_of_any_kind(options: Any) -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    app = Starlette(
        routes=[Route("/x", RateLimit("2/hour", methods=["POST"], when=is_marked, **options)(page))],
        middleware=[Middleware(RateLimitMiddleware, limiter=limiter)],
    )
    for _ in range(4):
        answer = await call(app, "/x")
        assert (answer.status, "ratelimit" in answer.headers) == (200, False)
    stats = limiter.store.stats()  # type: ignore[attr-defined]
    assert stats.keys == 0


async def test_methods_that_no_route_of_a_limit_takes_are_a_finding() -> None:
    async def found(app: Any) -> list[str]:
        await call(app, "/x")
        middleware = app.middleware_stack.app
        while not isinstance(middleware, RateLimitMiddleware):
            middleware = middleware.app
        return [finding.message for finding in middleware.findings if finding.code == "SG124"]

    (message,) = await found(starlette(RateLimit("5/minute", methods=["DELETE"])(page)))
    assert "DELETE" in message
    assert "GET,POST,PUT /x" in message
    assert await found(starlette(RateLimit("5/minute", methods=["POST"])(page))) == []
    shared = fastapi(RateLimit("5/minute", methods=["DELETE"]))
    assert len(await found(shared)) == 1
