"""What the middleware learns of routes: those added while it runs, those with a pattern of their own, and circles."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Host, Mount, Route
from starlette.types import Receive, Scope, Send

from slidegate import BanPolicy, RateLimit, RateLimitMiddleware, Rule

from ..asgi import hello, page, statuses


async def test_a_route_with_a_pattern_of_its_own_is_asked_all_the_same() -> None:
    login = Route("/login", page)
    login.path_regex = re.compile(login.path_regex.pattern, re.IGNORECASE)
    app = RateLimitMiddleware(Starlette(routes=[login, Route("/other", page)]), default_limits="2/hour")
    assert await statuses(app, 1, "/login") == [200]
    assert await statuses(app, 2, "/LOGIN") == [200, 429]
    assert await statuses(app, 1, "/other") == [200]


# -- an application that is mounted in itself --------------------------------------------------------------------------

CALLS = 1_000_000


class EndlessError(BaseException):
    """Is not caught on the way."""


@contextmanager
def bounded() -> Iterator[None]:
    """End what would never end: one million calls of functions are enough for anything here."""
    left = CALLS

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            sys.setprofile(None)
            raise EndlessError

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)


def circle(framework: Any, *prefixes: str) -> Any:
    """Return an application that is mounted in itself at each of some places."""
    app = framework()
    app.router.routes.append(Route("/x", RateLimit("900/minute")(page)))
    app.router.routes += [Mount(prefix, app) for prefix in prefixes]
    app.router.routes.append(Host("{name}.example.org", app))
    return app


class Still(Starlette):
    """Shows its routes, and answers without asking them."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await hello(scope, receive, send)


OPTIONS: list[dict[str, Any]] = [
    {"limits": "2/minute"},
    {"rules": [Rule("/a/{rest:path}", "2/minute"), Rule("/x", "90/minute")]},
    {"default_limits": "2/minute"},
    {"rules": [Rule("/{rest:path}", "2/minute")], "bans": BanPolicy(signals={"/.env": "ban"})},
]


@pytest.mark.interpreted("the calls of compiled functions are not seen")
@pytest.mark.parametrize("framework", [Starlette, FastAPI, Still])
@pytest.mark.parametrize("prefixes", [("", ""), ("/a", "/b"), ("/{a}", "/{b}")])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: next(reversed(options)))
async def test_an_application_mounted_twice_in_itself_is_served_and_counted_and_no_way_followed_twice(
    framework: Any, prefixes: tuple[str, ...], options: Any
) -> None:
    if framework is not Still and "" in prefixes:
        return  # their own routers never end
    path = "/a/b" * 40 if framework is Still else "/a/b/x"
    with bounded():
        middleware = RateLimitMiddleware(circle(framework, *prefixes), **options)
        assert await statuses(middleware, 3, path) == [200, 200, 429]


class Knot(Still):
    """Wraps itself."""

    @property
    def app(self) -> Any:
        return self


class Endless(Still):
    """Seems to wrap another, and so on: as a `Mock` does."""

    @property
    def app(self) -> Any:
        return Endless()


@pytest.mark.parametrize("framework", [Knot, Endless])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: next(reversed(options)))
async def test_an_application_that_wraps_others_without_end_is_served_and_counted(framework: Any, options: Any) -> None:
    with bounded():
        assert await statuses(RateLimitMiddleware(framework(), **options), 3, "/a/b/x") == [200, 200, 429]
