"""What the middleware does for a path that it has never seen does not grow with the routes."""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from slidegate import Limiter, RateLimit, RateLimitMiddleware, Rule
from slidegate.stats import Statistics

from ..asgi import hello, page, scope_of, statuses


class Still(Starlette):
    """Shows its routes, and answers without asking them: what is counted is the middleware alone."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await hello(scope, receive, send)


class StillFastAPI(FastAPI):
    __call__ = Still.__call__  # type: ignore[assignment]


@cache
def plain(count: int) -> Starlette:
    return Still(routes=[Route(f"/shop{n}/{{x}}", page) for n in range(count)])


@cache
def mounted(count: int) -> Starlette:
    half = [Route(f"/shop{n}/{{x}}", page) for n in range(count // 2)]
    return Still(routes=[*half, Mount("/v1", routes=half), Mount("/", app=hello)])


@cache
def included(count: int) -> Starlette:
    router = APIRouter()
    for n in range(count):
        router.add_api_route(f"/shop{n}/{{x}}", page)
    app = StillFastAPI()
    app.include_router(router)
    return app


def calls_of(app: Any, path: str) -> tuple[int, int]:
    """Return how many Python functions one request calls, and the status of its answer."""
    calls, status = 0, 0

    async def receive() -> Any:
        raise AssertionError("nobody reads the body")

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    answering = app(scope_of(path, raw_path=b"/"), receive, send)
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        answering.send(None)
    except StopIteration:
        return calls, status
    finally:
        sys.setprofile(before)
    raise AssertionError("the middleware waits")


PATHS = ("/shop3/{}", "/nope/{}", "/shop3/{}\n", "/shop3/{}" + "/../x" * 700, "/{}" + "/a;b/." * 600)
RULES = [Rule("/{x}/5", "9/hour"), Rule("/{x}/{rest:path}", "9/hour")]


@pytest.mark.interpreted("the calls of compiled functions are not seen")
@pytest.mark.parametrize("routes", [plain, mounted, included])
@pytest.mark.parametrize("options", [{"limits": "9/hour"}, {"rules": RULES}], ids=str)
async def test_a_path_never_seen_costs_as_much_with_a_thousand_routes_as_with_ten(options: Any, routes: Any) -> None:
    counted: list[list[int]] = []
    for count in (10, 1_000):
        middleware = RateLimitMiddleware(routes(count), limiter=Limiter(observers=[lambda event: None]), **options)
        first = await statuses(middleware, 12, "/shop3//5", client=("192.0.2.1", 1))
        assert first == [200] * 9 + [429] * 3
        seen = [[calls_of(middleware, path.format(number)) for number in range(12)] for path in PATHS]
        assert {status for each in seen for _, status in each} == {200, 429}
        # The least of them: now and then a request does what time asks for, such as sweeping the store.
        counted.append([min(calls for calls, _ in each) for each in seen])
    for path, few, many in zip(PATHS, *counted, strict=True):
        assert many <= 1.2 * few, path[:40]


@pytest.mark.interpreted("the calls of compiled functions are not seen")
@pytest.mark.parametrize("path", PATHS)
async def test_default_limits_cost_no_more_than_starlettes_own_routing(path: str) -> None:
    routes = [Route(f"/shop{n}/{{x}}", page) for n in range(1_000)]
    own = min(calls_of(Starlette(routes=routes), path.format(number))[0] for number in range(3))
    middleware = RateLimitMiddleware(plain(1_000), default_limits="9/hour")
    assert min(calls_of(middleware, path.format(number))[0] for number in range(3)) <= 1.2 * own + 100


class Hiding:
    """Does not show the application that it wraps."""

    def __init__(self, app: Any) -> None:
        self._hidden = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._hidden(scope, receive, send)


@pytest.mark.interpreted("the calls of compiled functions are not seen")
async def test_a_limit_at_an_endpoint_that_no_router_shows_does_not_look_at_all_routes_each_time() -> None:
    counted = []
    for count in (10, 1_000):
        hidden = Starlette(routes=[Route("/page", RateLimit("9/hour")(page))])
        others = [Route(f"/shop{n}/{{x}}", page) for n in range(count)]
        middleware = RateLimitMiddleware(Starlette(routes=[Mount("/hidden", Hiding(hidden)), *others]))
        assert await statuses(middleware, 2, "/hidden/page") == [200, 200]
        counted.append(calls_of(middleware, "/hidden/page"))
    (few, _), (many, _) = counted
    assert many <= 1.2 * few


async def test_a_route_with_a_pattern_of_its_own_is_asked_all_the_same() -> None:
    login = Route("/login", page)
    login.path_regex = re.compile(login.path_regex.pattern, re.IGNORECASE)
    app = RateLimitMiddleware(Starlette(routes=[login, Route("/other", page)]), default_limits="2/hour")
    statistics = Statistics(app.limiter)
    assert await statuses(app, 1, "/login") == [200]
    assert await statuses(app, 2, "/LOGIN") == [200, 429]
    assert await statuses(app, 1, "/other") == [200]
    (refused,) = (series for route, series in statistics.stats().routes.items() if series.refused)
    assert refused.refused == 1
