"""A limit above a route decorator would never run: that is found in whatever company, at the latest at a request."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import product
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount

from slidegate import ConfigurationError, RateLimit, RateLimitMiddleware
from slidegate.web.endpoints.decorator import check_places

from ...asgi import call, statuses

GATE = Middleware(RateLimitMiddleware, rules=[])
WORDS = {"route": "@router.get(f'/{next(names)}')", "limit": "@RateLimit('1/hour')", "wraps": "@wrapping"}
STACKS = [stack for length in range(1, 5) for stack in product(WORDS, repeat=length) if "route" in stack]


def wrapping(endpoint: Any) -> Any:
    @wraps(endpoint)
    async def wrapped(*args: Any, **options: Any) -> Any:
        return await endpoint(*args, **options)

    return wrapped


def put_up(stack: tuple[str, ...], router: Any) -> int:
    """Define an endpoint below a stack of decorators, and return how many routes it has got."""
    source = "\n".join([*(WORDS[word] for word in stack), "async def page():", "    return 'hi'"])
    names = iter(range(len(stack)))
    exec(source, {"RateLimit": RateLimit, "router": router, "wrapping": wrapping, "names": names})
    return stack.count("route")


def is_misplaced(stack: tuple[str, ...]) -> bool:
    """Tell whether a limit stands above all routes, so that none has it."""
    return next(word for word in stack if word != "wraps") == "limit"


def complaint(check: Callable[..., None], *args: object) -> str:
    try:
        check(*args)
    except ConfigurationError as error:
        return str(error)
    return ""


async def outcome(app: Any, path: str) -> str:
    try:
        return str((await call(app, path)).status)
    except ConfigurationError as error:
        return str(error)


def test_in_every_stack_of_decorators_a_limit_above_all_routes_fails_the_start_and_no_other_does() -> None:
    assert sum(map(is_misplaced, STACKS)) > 15
    for stack in STACKS:
        app = FastAPI()
        put_up(stack, app)
        found = complaint(check_places, app)
        assert ("it would never run" in found) is is_misplaced(stack), f"{stack}: {found!r}"


async def test_on_a_route_that_is_added_later_it_is_found_at_the_first_request() -> None:
    for stack in STACKS:
        app, router = FastAPI(middleware=[GATE]), APIRouter(prefix="/late")
        app.get("/early")(lambda: "hi")
        assert await statuses(app, 1, "/early") == [200]
        count = put_up(stack, router)
        app.include_router(router)
        outcomes = [await outcome(app, f"/late/{number}") for number in [*range(count)] * 2]
        failed = [text for text in outcomes if text not in ("200", "429")]
        assert all("it would never run" in text for text in failed), failed
        assert bool(failed) is is_misplaced(stack), f"{stack}: {outcomes}"
        assert await statuses(app, 1, "/early") == [200], "other routes go on"


async def test_later_routes_of_a_mounted_application_are_found_too() -> None:
    inner = FastAPI()
    app = FastAPI(middleware=[GATE], routes=[Mount("/v1", inner)])
    assert await statuses(app, 1, "/v1/openapi.json") == [200]
    put_up(("limit", "wraps", "route"), inner)
    with pytest.raises(ConfigurationError, match="'GET /v1/0'"):
        await call(app, "/v1/0")


async def test_a_class_below_its_route_decorator_is_found() -> None:
    app = FastAPI(middleware=[GATE])

    def route(path: str) -> Any:
        def add(endpoint: Any) -> Any:
            app.add_route(path, endpoint)
            return endpoint

        return add

    @route("/right")
    @RateLimit("1/hour")
    class Right(HTTPEndpoint):
        async def get(self, request: Any) -> PlainTextResponse:
            return PlainTextResponse("hi")

    assert await statuses(app, 2, "/right") == [200, 429]

    @RateLimit("1/hour")
    @route("/wrong")
    class Wrong(HTTPEndpoint):
        async def get(self, request: Any) -> PlainTextResponse:
            return PlainTextResponse("hi")

    with pytest.raises(ConfigurationError, match=r"'\* /wrong'.*next to 'Wrong'"):
        await call(app, "/wrong")
