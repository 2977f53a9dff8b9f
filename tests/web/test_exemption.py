"""A limit of a router or an application is lifted at a route, or another one takes its place."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Mount

from slidegate import RateLimit, RateLimitMiddleware, charge

from ..asgi import scope_of, send_scope, statuses
from .middlewares import charged

pytest.importorskip("fastapi", "0.160")


def application(*routers: APIRouter, rules: Any = (), **options: Any) -> FastAPI:
    app = FastAPI(middleware=[Middleware(RateLimitMiddleware, rules=list(rules))], **options)
    for router in routers:
        app.include_router(router)
    return app


def required(limit: Any) -> dict[str, Any]:
    return {"dependencies": [Depends(limit)]}


def free_and_limited(**options: Any) -> APIRouter:
    """Return a router with an exempt route and another one."""
    router = APIRouter(prefix="/api", **options)

    @router.get("/free")
    @RateLimit.exempt
    def free() -> str:
        return "free"

    @router.get("/limited")
    def limited() -> str:
        return "limited"

    return router


async def counted(app: Any, path: str, **more: Any) -> list[str]:
    """Send one request; return the labels of the buckets that it was counted on."""
    scope = scope_of(path, **more)
    assert (await send_scope(app, scope)).status == 200
    return charged(scope)


async def test_another_limit_takes_its_place() -> None:
    router = APIRouter(prefix="/api", **required(RateLimit("1/minute")))

    @router.get("/decorated")
    @RateLimit("2/minute", override=True)
    def decorated() -> str:
        return "2"

    @router.get("/dependency", **required(RateLimit("3/minute", override=True)))
    async def dependency() -> str:
        return "3"

    @router.get("/parameter")
    def parameter(_: Annotated[None, Depends(RateLimit("4/minute", override=True))]) -> str:
        return "4"

    @router.get("/beside")
    @RateLimit("5/minute")
    def beside() -> str:
        return "5"

    @router.get("/own")
    @RateLimit.exempt
    @RateLimit("6/minute")
    def own() -> str:
        return "6"

    app = application(router)
    for path, amount in (("decorated", 2), ("dependency", 3), ("parameter", 4), ("own", 6), ("beside", 1)):
        assert await statuses(app, amount + 1, f"/api/{path}") == [200] * amount + [429], path


async def test_a_limit_inside_of_a_dependency_of_a_router_is_lifted_with_it() -> None:
    async def guard(_: Annotated[None, Depends(RateLimit("1/minute"))]) -> None:
        """Ask the limit."""

    app = application(free_and_limited(**required(guard)))
    assert await statuses(app, 2, "/api/free") == [200, 200]
    assert await statuses(app, 2, "/api/limited") == [200, 429]


async def test_a_dependency_of_the_users_that_is_marked_exempts_its_routes() -> None:
    @RateLimit.exempt
    async def trusted() -> None:
        """Check something else."""

    @RateLimit("3/minute", override=True)
    async def priced() -> None:
        """Check something else."""

    router = APIRouter(**required(RateLimit("1/minute")))
    router.get("/free", **required(trusted))(lambda: "free")
    router.get("/priced", **required(priced))(lambda: "priced")
    app = application(router)
    assert await statuses(app, 4, "/free") == [200] * 4
    assert await statuses(app, 4, "/priced") == [200, 200, 200, 429]


async def test_the_mark_is_seen_through_decorators_in_any_order() -> None:
    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def wrapper(*args: Any, **options: Any) -> Any:
            return await function(*args, **options)

        return wrapper

    router = APIRouter(**required(RateLimit("1/minute")))

    @router.get("/below")
    @decorated
    @RateLimit.exempt
    async def below() -> str:
        return "below"

    @router.get("/above")
    @RateLimit.exempt
    @decorated
    async def above() -> str:
        return "above"

    @router.get("/limited")
    @RateLimit("2/minute")
    @RateLimit.exempt
    async def limited() -> str:
        return "limited"

    app = application(router)
    assert await statuses(app, 3, "/below") == [200] * 3
    assert await statuses(app, 3, "/above") == [200] * 3
    assert await statuses(app, 3, "/limited") == [200, 200, 429]


@pytest.mark.parametrize("options", [{"shadow": True}, {"concurrency": 1}, {"key": lambda request: 1 / 0}])
async def test_nothing_is_asked_where_a_limit_is_lifted(options: dict[str, Any]) -> None:
    router = APIRouter(**required(RateLimit("1/minute", name="lifted", **options)))

    @router.get("/free")
    @RateLimit.exempt
    async def free(request: Request) -> str:
        assert not (await charge(request, 5, rule="lifted")).states
        return "free"

    app = application(router)
    assert await counted(app, "/free") == await counted(app, "/free") == []


async def test_handshakes_of_websockets_are_exempt_too() -> None:
    router = APIRouter(**required(RateLimit("1/minute")))

    @router.websocket("/free")
    @RateLimit.exempt
    async def free(socket: WebSocket) -> None:
        await socket.accept()
        await socket.close()

    app = application(router)
    for _ in range(3):
        answer = await send_scope(app, scope_of("/free", type="websocket"))
        assert answer.messages[0]["type"] == "websocket.accept"


async def test_it_lifts_the_limit_of_an_application_that_is_mounted_in_another() -> None:
    below = FastAPI(**required(RateLimit("1/minute")))
    below.get("/free")(RateLimit.exempt(lambda: "free"))
    below.get("/limited")(lambda: "limited")
    app = Starlette(routes=[Mount("/below", app=below)], middleware=[Middleware(RateLimitMiddleware, rules=[])])
    assert await statuses(app, 3, "/below/free") == [200] * 3
    assert await statuses(app, 2, "/below/limited") == [200, 429]


def one_function() -> int:
    """Serve every route of a tree: what lifts a limit at one of them lifts it there alone."""
    return 1


class Trees:
    """Makes an application of routers with limits, exemptions and overrides at random places."""

    def __init__(self, drawn: random.Random) -> None:
        self._drawn = drawn
        self._made = 0
        self.expected: dict[str, list[str]] = {}
        dependencies, counting = self._level([])
        middleware = Middleware(RateLimitMiddleware, rules=[])
        self.app = FastAPI(dependencies=dependencies, middleware=[middleware])
        self._fill(self.app, "", counting, 2)

    def _level(self, further_out: list[str]) -> tuple[list[Any], list[str]]:
        """Return the dependencies of one place, and the names of the limits that count there and further out."""
        limits: list[Any] = []
        for _ in range(self._drawn.choice((0, 0, 1, 1, 2))):
            self._made += 1
            override = self._drawn.random() < 0.2
            limits.append(RateLimit("900/minute", name=f"limit{self._made}", override=override))
        names = [limit.rule.name for limit in limits]
        instead = any(limit.override for limit in limits)
        if self._drawn.random() < 0.2:
            limits.insert(self._drawn.randint(0, len(limits)), RateLimit.exempt)
            instead = True
        return [Depends(limit) for limit in limits], [*([] if instead else further_out), *names]

    def _fill(self, parent: Any, prefix: str, further_out: list[str], levels: int) -> None:
        for number in range(2):
            dependencies, self.expected[f"{prefix}/page{number}"] = self._level(further_out)
            parent.get(f"/page{number}", dependencies=dependencies)(one_function)
        for number in range(2 if levels else 0):
            included, at_inclusion = self._level(further_out)
            dependencies, inside = self._level(at_inclusion)
            router = APIRouter(prefix=f"/router{number}", dependencies=dependencies)
            self._fill(router, f"{prefix}/router{number}", inside, levels - 1)
            parent.include_router(router, dependencies=included)


@pytest.mark.parametrize("seed", range(20))
async def test_in_random_trees_of_routers_all_that_nothing_further_in_lifts_counts(seed: int) -> None:
    trees = Trees(random.Random(seed))
    for path, names in trees.expected.items():
        assert sorted(await counted(trees.app, path)) == sorted(names), path
