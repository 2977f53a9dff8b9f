"""A limit above a route decorator would never run: the start, or the first request, says so."""

from __future__ import annotations

from functools import wraps
from itertools import product
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from slidegate import ConfigurationError, RateLimit, RateLimitMiddleware

from ..asgi import call

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


def complaint(app: Any) -> str:
    """Return what the start of an application is told."""
    try:
        with TestClient(app):
            return ""
    except ConfigurationError as error:
        return str(error)


def test_in_every_stack_of_decorators_a_limit_above_all_routes_fails_the_start_and_no_other_does() -> None:
    assert sum(map(is_misplaced, STACKS)) > 15
    for stack in STACKS:
        app = FastAPI(middleware=[GATE])
        put_up(stack, app)
        found = complaint(app)
        assert ("it would never run" in found) is is_misplaced(stack), f"{stack}: {found!r}"


async def test_without_a_lifespan_it_is_found_at_the_first_request() -> None:
    app = FastAPI(middleware=[GATE])
    put_up(("limit", "wraps", "route"), app)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"'GET /0'.*next to 'page'"):
            await call(app, "/0")


async def test_the_server_is_told_that_the_start_failed() -> None:
    app, sent = FastAPI(), []
    put_up(("limit", "route"), app)

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    with pytest.raises(ConfigurationError):
        await RateLimitMiddleware(app)({"type": "lifespan", "state": {}}, receive, send)
    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]
    assert "GET /0" in sent[0]["message"]


def test_a_class_is_found_as_a_function_is() -> None:
    app = FastAPI(middleware=[GATE])

    def route(path: str) -> Any:
        def add(endpoint: Any) -> Any:
            app.add_route(path, endpoint)
            return endpoint

        return add

    @route("/right")
    @RateLimit("1/hour")
    class Right(HTTPEndpoint): ...

    assert complaint(app) == ""

    @RateLimit("1/hour")
    @route("/wrong")
    class Wrong(HTTPEndpoint): ...

    app.middleware_stack = None
    assert "'* /wrong'" in complaint(app)
    assert "next to 'Wrong'" in complaint(app)


async def named(request: Any) -> PlainTextResponse:
    return PlainTextResponse("hi")


def test_a_function_that_is_limited_in_one_application_may_be_free_in_another() -> None:
    limited = Starlette(routes=[Route("/", RateLimit("1/hour")(named))], middleware=[GATE])
    free = Starlette(routes=[Route("/", named)], middleware=[GATE])
    assert [complaint(app) for app in (limited, free)] == ["", ""]
    assert [TestClient(free).get("/").status_code for _ in range(3)] == [200] * 3
