"""Whatever is behind the middleware or around it: requests are served and counted, and nothing raises, ever."""

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from slidegate import RateLimitMiddleware, Rule

from ..asgi import call, hello, page, scope_of, send_scope
from .frameworks import KNOWN, STACKS, UNKNOWN, bare
from .middlewares import with_root

SITES = {**UNKNOWN, **KNOWN}
ITEMS = Rule("/items/{n:int}", "2/hour", name="items")
ANY: list[dict[str, Any]] = [{"limits": "2/hour"}, {"rules": [ITEMS]}, {"default_limits": "2/hour"}]
LIGHT = ("bare", "starlette", "fastapi")
HEAVY = pytest.mark.all


def each(names: Sequence[str]) -> Any:
    """Return frameworks as parameters: most of them run with ``test --all``."""
    return pytest.mark.parametrize("name", [one if one in LIGHT else pytest.param(one, marks=HEAVY) for one in names])


async def visit(app: ASGIApp, *paths: str) -> list[int]:
    return [(await call(app, path)).status for path in paths]


@each([*SITES])
async def test_a_page_of_any_framework_is_served_and_counted(name: str) -> None:
    pages = ["/items/5", "/items/6", "/items/7", "/", "/nothing/here"]
    assert await visit(SITES[name](), *pages) == [200, 200, 200, 200, 404]
    assert await visit(RateLimitMiddleware(SITES[name](), rules=[ITEMS]), *pages) == [200, 200, 429, 200, 404]
    # Some servers pass on whatever stands in the first line of a request, and some frameworks find the page.
    for path in ("items/5", "http://example.org/items/5"):
        answer = await send_scope(RateLimitMiddleware(SITES[name](), rules=[ITEMS]), scope_of(path))
        assert "ratelimit" in answer.headers


@each([*SITES])
async def test_routes_that_are_starlettes_have_a_bucket_each_and_others_share_one_which_is_a_finding(name: str) -> None:
    middleware = RateLimitMiddleware(SITES[name](), default_limits="2/hour")
    counted = [200, 200, 429, 429, 429] if name in UNKNOWN else [200, 200, 200, 429, 404]
    assert await visit(middleware, "/items/5", "/", "/items/6", "/items/5", "/nothing/here") == counted
    assert [finding.code for finding in middleware.findings] == ["SG126"] * (name in UNKNOWN)


@each(STACKS)
@pytest.mark.parametrize("options", ANY, ids=str)
async def test_the_middleware_may_stand_in_the_stack_of_a_framework(name: str, options: dict[str, Any]) -> None:
    app = SITES[name](partial(RateLimitMiddleware, **options))
    assert await visit(app, "/items/5", "/items/5", "/items/5") == [200, 200, 429]


@each([*SITES])
async def test_a_mounted_framework_is_counted_by_the_whole_path(name: str) -> None:
    def site() -> Starlette:
        return Starlette(routes=[Route("/", page), Mount("/site", SITES[name]())])

    rules = [Rule("/site/items/{n:int}", "2/hour")]
    pages = ["/site/items/5"] * 3
    without = await visit(site(), *pages)  # some read the part that the mount has read, too
    assert await visit(RateLimitMiddleware(site(), rules=rules), *pages) == [*without[:2], 429]
    middleware = RateLimitMiddleware(site(), default_limits="2/hour")
    assert await visit(middleware, *pages, "/", "/", "/") == [*without[:2], 429, 200, 200, 429]


@pytest.mark.all
@pytest.mark.parametrize("options", ANY, ids=str)
async def test_litestar_may_mount_what_has_limits(options: dict[str, Any]) -> None:
    from litestar import Litestar, asgi

    inner = RateLimitMiddleware(bare, **options)
    site = Litestar([asgi("/site", is_mount=True, copy_scope=True)(inner)], openapi_config=None)
    assert await visit(site, *["/site/items/5"] * 3) == [200, 200, 429]


class Particular(Mount):
    """A mount that asks the scope for what only servers and middlewares further out put there."""

    def matches(self, scope: Scope) -> Any:
        assert scope["extensions"]["mine"], scope["client"][0] + scope["server"][0]
        return super().matches(scope)


class Hostile:
    """An application or a route whose attributes nobody expects; some raise, and all are the same at each look."""

    def __init__(self, seed: str) -> None:
        self._seed = seed

    def __getattr__(self, name: str) -> Any:
        random = Random(f"{self._seed}.{name}")
        if name.startswith("__") or random.random() < 0.5:
            raise AttributeError(name)
        below = Hostile(f"{self._seed}.{name}")
        error = random.choice([RuntimeError, KeyError, TypeError, ValueError, AttributeError])
        values = [None, 0, 7, "", "/", "text", b"bytes", (), [], {}, object(), Hostile, lambda *_: 1 / 0, below, below]
        lists = [[below], [None], ["/"], [below, Route("/x", page)], [Mount("/x", below)], {"/": below}, (7,), {below}]
        chosen = random.choice([*values, *lists, error, error, error])
        if isinstance(chosen, type) and issubclass(chosen, Exception):
            raise chosen(f"{self._seed}.{name}")
        return chosen

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await hello(scope, receive, send)


def around(hostile: Any, position: int) -> tuple[Any, dict[str, Any]]:
    """Return an application with something hostile in it, and what else is in the scope of its requests."""
    if position < 2:
        return [(hostile, {}), (hello, {"app": hostile, "router": hostile})][position]
    if position == 2:
        return Starlette(routes=[Mount("/", hostile)]), {}
    if position == 3:
        routes = [Particular("/v1", with_root("/v1")), Route("/items/{n:int}", page), hostile]
        return Starlette(routes=routes), {"extensions": {"mine": True}}
    app = FastAPI()
    app.host("api.example.org", Starlette(routes=[Route("/items/{n:int}", page)]))
    app.mount("/v1", with_root("/v1"))
    app.add_api_route("/items/{n:int}", page)
    app.router.routes.append(hostile)
    return app, {}


@pytest.mark.parametrize("options", ANY, ids=str)
@given(seed=st.integers(0, 10_000), position=st.integers(0, 4))
async def test_what_breaks_when_looked_at_is_served_and_counted(options: Any, seed: int, position: int) -> None:
    app, more = around(Hostile(str(seed)), position)
    middleware = RateLimitMiddleware(app, **options)
    found = [(await send_scope(middleware, {**scope_of("/items/5"), **more})).status for _ in range(3)]
    assert found == [200, 200, 429]
