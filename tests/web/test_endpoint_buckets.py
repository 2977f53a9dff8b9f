"""Limits at endpoints that look alike, wherever they stand: each place is one bucket, and no two places share one."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from slidegate import RateLimit, RateLimitMiddleware

from ..asgi import scope_of, send_scope
from .middlewares import checks

pytest.importorskip("fastapi", "0.160")

MIDDLEWARE = Middleware(RateLimitMiddleware, rules=[])


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "a.js").write_text("hi")
    return tmp_path


class Page(HTTPEndpoint):
    @RateLimit("900/hour")
    async def get(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse("hi")

    @RateLimit("900/hour")
    def post(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse("hi")


class Trees:
    """Makes applications with limits that look alike at random places, and says which places a request is held to."""

    def __init__(self, seed: int, files: Path) -> None:
        self.random = random.Random(seed)
        self.files = files
        self.count = 0
        self.asked: list[tuple[str, str, frozenset[str]]] = []
        self.app = FastAPI(middleware=[MIDDLEWARE], **self.maybe("application", ()))
        self.fill(self.app, "", self.spots, 0)

    def maybe(self, spot: str, above: tuple[str, ...]) -> dict[str, Any]:
        limited = self.random.random() < 0.5
        self.spots = (*above, spot) if limited else above
        return {"dependencies": [Depends(RateLimit("900/hour"))]} if limited else {}

    def fill(self, router: Any, path: str, above: tuple[str, ...], depth: int) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.count += 1
            name = f"/n{self.count}"
            add: Callable[..., None] = self.random.choice(
                [self.add_route, self.add_helped, self.add_class, self.add_router][: 4 if depth < 3 else 3]
            )
            add(router, path, name, above, depth)
        if self.random.random() < 0.5:
            self.count += 1
            router.frontend(f"/f{self.count}", directory=self.files)
            self.asked.append(("GET", f"{path}/f{self.count}/a.js", frozenset(above)))

    def add_route(self, router: Any, path: str, name: str, above: tuple[str, ...], depth: int) -> None:
        methods = self.random.sample(["GET", "POST", "PUT"], k=2)
        for method in methods:
            options = self.maybe(f"{method} {path}{name}", above)
            router.add_api_route(name + "/{n}", lambda: 1, methods=[method], **options)
            self.asked.append((method, f"{path}{name}/{self.random.randint(0, 9)}", frozenset(self.spots)))

    def add_helped(self, router: Any, path: str, name: str, above: tuple[str, ...], depth: int) -> None:
        """Add a route with two limited functions beside it, of which a request needs one or both."""

        async def one(request: Request) -> None: ...
        async def other(request: Request) -> None: ...

        helpers = RateLimit("900/hour")(one), RateLimit("9/hour")(other)

        async def page(request: Request, which: str) -> None:
            for letter in which:
                await helpers[int(letter)](request)

        router.add_api_route(name, page)
        for which in ("0", "1", "01", "10"):
            own = {f"{path}{name} {letter}" for letter in which}
            self.asked.append(("GET", f"{path}{name}?which={which}", frozenset(above) | own))

    def add_class(self, router: Any, path: str, name: str, above: tuple[str, ...], depth: int) -> None:
        # FastAPI leaves a router's own prefix out of what is Starlette's.
        methods = self.random.choice([None, ["GET", "POST"]])
        router.add_route(getattr(router, "prefix", "") + name, Page, methods=methods)
        for method in ("GET", "POST"):
            # What a router requires is FastAPI's, which leaves a route of Starlette alone.
            self.asked.append((method, f"{path}{name}", frozenset({f"{method} {path}{name}"})))

    def add_router(self, router: Any, path: str, name: str, above: tuple[str, ...], depth: int) -> None:
        prefixes = self.random.choice([(name, ""), ("", name)])
        inner = APIRouter(prefix=prefixes[0], **self.maybe(f"router {path}{name}", above))
        self.fill(inner, path + name, self.spots, depth + 1)
        router.include_router(inner, prefix=prefixes[1])


@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(1_000, 4_000), marks=pytest.mark.deep)])
async def test_in_random_trees_every_place_is_one_bucket_and_no_two_share_one(seeds: range, files: Path) -> None:
    for seed in seeds:
        trees = Trees(seed, files)
        bucket_of: dict[str, str] = {}
        trees.random.shuffle(trees.asked)
        for method, target, spots in trees.asked:
            path, _, query = target.partition("?")
            scope = scope_of(path, method, query_string=query.encode())
            await send_scope(trees.app, scope)
            charged = {bucket.name for bucket, _, _ in checks(scope)}
            assert len(charged) == len(spots), f"seed {seed}: {method} {target}: {charged}, expected {sorted(spots)}"
            # Whoever is met with others is told apart by what is known already; a lone stranger is learned.
            unknown = [spot for spot in sorted(spots) if spot not in bucket_of]
            left = charged - {bucket_of[spot] for spot in spots if spot in bucket_of}
            assert len(left) == len(unknown), f"seed {seed}: {method} {target}: {charged}, {bucket_of}"
            if len(unknown) == 1:
                assert left.isdisjoint(bucket_of.values()), f"seed {seed}: {method} {target} shares {left}"
                bucket_of[unknown[0]] = left.pop()
