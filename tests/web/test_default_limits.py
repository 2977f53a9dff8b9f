"""`default_limits`: each route by itself; exemptions and limits at the endpoint take the place of defaults."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from slidegate import Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule
from slidegate.testing import FakeClock

from ..asgi import call, hello, page, scope_of, send_scope, statuses
from .limited import wrapping
from .middlewares import charged
from .route_trees import Tree
from .test_route_trees import ask


async def other(request: Any) -> PlainTextResponse:
    return PlainTextResponse("other")


@RateLimit.exempt
async def health(request: Any) -> PlainTextResponse:
    return PlainTextResponse("well")


def limited(app: ASGIApp, default_limits: Any = "2/minute", **options: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(
        app, default_limits=default_limits, limiter=Limiter(MemoryStore(clock=FakeClock())), **options
    )


def site(*routes: Any, **options: Any) -> RateLimitMiddleware:
    return limited(Starlette(routes=list(routes)), **options)


async def counted(app: ASGIApp, path: str, method: str = "GET", **more: Any) -> list[str]:
    scope = scope_of(path, method, **more)
    await send_scope(app, scope)
    return charged(scope)


@RateLimit.exempt
class Base(HTTPEndpoint):
    async def get(self, request: Any) -> PlainTextResponse:
        return PlainTextResponse("hi")


class Child(Base):
    pass


API = Router([Route("/api", page)])
INNER = [Route("/items/{item:int}", page), Route("/", health), Route("/free/", health), Route("/b/", page)]
ROUTES = [
    Route("/a", page, methods=["GET", "PUT"]),
    Route("/a", other, methods=["POST"]),
    Route("/b/", page),
    Route("/free/", health),
    Route("/free/{rest:path}", health),
    Route("/below", wrapping(RateLimit.exempt(wrapping(page)))),
    Route("/above", RateLimit.exempt(wrapping(page))),
    Route("/limited", RateLimit("30/minute", name="own")(RateLimit.exempt(wrapping(page)))),
    Route("/base", Base),
    Route("/child", Child),
    Mount("/v1/{tenant}", routes=INNER),
    Mount("/raw", hello),
    Mount("/exempt", RateLimit.exempt(StaticFiles(directory=Path(__file__).parent))),
    Host("api.example.org", API),
    Host("{sub}.example.net", API),
    Host("www.example.org", Router([Route("/api", page)])),
]
LABELS: list[tuple[str, str]] = [
    ("GET /a", "GET,PUT /a"),
    ("HEAD /a", "GET,PUT /a"),
    ("PUT /a", "GET,PUT /a"),
    ("POST /a", "POST /a"),
    ("DELETE /a", "GET,PUT /a"),
    ("GET /b", "*"),
    ("GET /b/", "GET /b/"),
    ("GET /nowhere", "*"),
    ("DELETE /free/", "GET /free/"),
    ("GET /free/", ""),
    ("GET /free/a;b//c", ""),
    ("GET /free/x/../../a", "*"),
    (f"GET /free/{'a/' * 3_000}../b", "*"),
    ("GET /below", ""),
    ("GET /above", ""),
    ("GET /limited", "own"),
    ("GET /base", ""),
    ("GET /child", "* /child"),
    ("GET /v1/ann/items/1", "GET /v1/{tenant}/items/{item}"),
    ("GET /v1/ann/", ""),
    ("GET /v1/ann/free/", ""),
    ("GET /v1/ann/b/", "GET /v1/{tenant}/b/"),
    ("GET /raw/anything", "* /raw/{path}"),
    ("GET /exempt/limited.py", ""),
    ("GET api.example.org/api", "GET /api"),
    ("GET x.example.net/api", "GET /api"),
    ("GET www.example.org/api", "GET //www.example.org/api"),
]
"""Requests, and the bucket in which each counts; none where it is exempt."""


@pytest.mark.parametrize(("asked", "label"), LABELS, ids=[asked[:40] for asked, _ in LABELS])
@pytest.mark.parametrize("between", [False, True])
async def test_each_route_is_a_bucket_unless_it_is_exempt(asked: str, label: str, between: bool) -> None:
    app = Starlette(routes=ROUTES, middleware=[Middleware(Own)] * between)
    method, _, target = asked.partition(" ")
    host, _, path = target.partition("/")
    found = await counted(limited(app), f"/{path}", method, headers={"host": host or "example.com"})
    assert [one.removeprefix("per-route ") for one in found] == [label.replace(":", "|")] * bool(label)


class Own:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


async def test_names_in_the_header_fields_say_the_route_in_short_printable_text() -> None:
    routes = [Route(f"/{path}", page) for path in ("items/{item:int}", "h\u00e9llo", "a" * 80 + "/x", "a" * 80 + "/y")]
    app = site(*routes, default_limits="2/minute; 20/hour")
    first = (await call(app, "/items/5")).headers["ratelimit-policy"]
    assert '"per_route_GET__items__item__60"' in first
    assert '"per_route_GET__items__item__3600"' in first
    assert (await call(app, "/h\u00e9llo")).headers["ratelimit"].isascii()
    names = [(await counted(app, f"/{'a' * 80}/{name}"))[0] for name in "xy"]
    assert max(map(len, names)) < 72


async def test_the_application_tells_its_routes_where_something_between_hides_them() -> None:
    inner = Starlette(routes=[Route("/a", page), Route("/health", health)])
    inner.add_middleware(Own)
    inner.add_middleware(limited)
    assert await statuses(inner, 3, "/a") == [200, 200, 429]
    assert await statuses(inner, 4, "/health") == [200] * 4


@pytest.mark.parametrize("prefixes", [("/in", ""), ("", "/in"), ("/in", "/deep")])
async def test_included_and_nested_routers_count_at_their_routes(prefixes: tuple[str, str]) -> None:
    inner, outer, app = APIRouter(prefix=prefixes[0]), APIRouter(), FastAPI()
    for method in ("GET", "POST"):
        inner.add_api_route("/items/{number}", page, methods=[method])
    inner.add_api_route("/free", health)
    outer.include_router(inner, prefix=prefixes[1])
    app.include_router(outer, prefix="/v1")
    middleware = limited(app, "20/minute")
    above = f"/v1{prefixes[1]}{prefixes[0]}"
    for method, taken in (("GET", "GET"), ("POST", "POST"), ("PUT", "GET")):
        found = await counted(middleware, f"{above}/items/1", method)
        assert found == [f"per-route {taken} {above}/items/{{number}}"]
    assert await counted(middleware, f"{above}/free") == []
    assert await counted(middleware, f"{above}/none") == ["per-route *"]
    app.add_api_route("/late", page)
    assert await counted(middleware, "/late") == ["per-route GET /late"]


async def test_what_fails_before_a_limit_at_the_endpoint_is_counted_by_the_defaults() -> None:
    app = FastAPI()

    @app.get("/items/{number}")
    @RateLimit("5/minute")
    def item(number: int) -> int:
        return number

    assert await statuses(limited(app), 3, "/items/x") == [422, 422, 429]


# -- no mix of spellings gets more requests to a route than one spelling does ------------------------------------------


AMOUNT = 3
REQUESTS = 40
"""How many requests fall into one window."""


@dataclass
class MarkedTree(Tree):
    """A tree in which some endpoints are exempt.

    Attributes:
        exempt: Their names.
    """

    exempt: set[str] = field(default_factory=set)

    def _marked(self, name: str, endpoint: Any) -> Any:
        self.exempt.discard(name)
        if self.random.random() < 0.25:
            self.exempt.add(name)
            RateLimit.exempt(endpoint)
        return endpoint

    def _page(self, name: str) -> Any:
        return self._marked(name, super()._page(name))

    def _api(self, name: str) -> Any:
        return self._marked(name, super()._api(name))

    def _class(self, name: str) -> Any:
        return self._marked(name, super()._class(name))


async def found_paths(tree: MarkedTree, random: Random, app: ASGIApp) -> list[str]:
    """Return ordinary paths that reach a route which is not exempt."""
    open_middleware = RateLimitMiddleware(app, rules=[Rule("/nothing/here", "1/minute")], headers=None)
    paths = []
    for _ in range(60):
        path = tree.spelling(0)
        await ask(open_middleware, tree, random, path, "", ["GET"])
        if any(name not in tree.exempt for name, _ in tree.served):
            paths.append(path)
    return paths


async def search(seed: int, directory: Path, windows: int) -> int:
    """Look for a window in which a route served more requests than its limit; say how often routes were full."""
    random = Random(seed)
    tree = MarkedTree(random, directory)
    clock = FakeClock()
    paths = await found_paths(tree, random, tree.app)
    app = RateLimitMiddleware(
        tree.app, default_limits=f"{AMOUNT}/minute", limiter=Limiter(MemoryStore(clock=clock)), headers=None
    )
    full = 0
    for _ in range(windows if paths else 0):
        served: Counter[str] = Counter()
        # Few paths in a window, or no route would be asked for more often than its limit.
        some = random.choices(paths, k=2)
        for _ in range(REQUESTS):
            path = random.choice(some)
            for _ in range(random.choice([0, 0, 0, 1, 1, 1, 2])):
                path = tree._changed(path)
            root_path = random.choice(["", "", "", "", "", "", "/api", "/v1"])
            if root_path and random.random() < 0.6:
                path = root_path + path
            await ask(app, tree, random, path, root_path, ["GET", "GET", "POST", "HEAD", "post"])
            served.update({name for name, _ in tree.served})
            over = [name for name in served if served[name] > AMOUNT and name not in tree.exempt]
            assert not over, f"path {path!r}, root {root_path!r}: {[tree.handlers[name] for name in over]}"
        full += sum(count == AMOUNT for count in served.values())
        clock.advance("61s")
    return full


@pytest.mark.parametrize(("trees", "windows"), [(10, 8), pytest.param(200, 200, marks=pytest.mark.deep)])
def test_no_mix_of_spellings_gets_more_requests_to_a_route(trees: int, windows: int, directory: Path) -> None:
    full = 0

    @settings(max_examples=trees, deadline=None)
    @given(st.integers(0, 2**32 - 1))
    def look(seed: int) -> None:
        nonlocal full
        full += asyncio.run(search(seed, directory, windows))

    look()
    assert full > trees
