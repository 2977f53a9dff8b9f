"""`@RateLimit` in the wrong place: above a route decorator, without parentheses, or where an endpoint should be."""

from __future__ import annotations

import functools
from itertools import product
from textwrap import indent
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Route
from starlette.testclient import TestClient

from slidegate import ConfigurationError, RateLimit, RateLimitMiddleware

from ..asgi import call, statuses
from .limited import wrapping

MIDDLEWARE = Middleware(RateLimitMiddleware, rules=[])


def complaint(app: Any) -> str:
    """Return what the start of an application is told."""
    try:
        with TestClient(app):
            return ""
    except ConfigurationError as error:
        return str(error)


WORDS = {"route": "@router.get(f'/{next(names)}')", "limit": "@RateLimit('1/hour')", "wraps": "@wrapping"}
STACKS = [stack for length in range(1, 5) for stack in product(WORDS, repeat=length) if "route" in stack]


def put_up(stack: tuple[str, ...], router: Any) -> None:
    """Define an endpoint below a stack of decorators."""
    source = "\n".join([*(WORDS[word] for word in stack), "async def page():", "    return 'hi'"])
    names = iter(range(len(stack)))
    exec(source, {"RateLimit": RateLimit, "router": router, "wrapping": wrapping, "names": names})


def is_misplaced(stack: tuple[str, ...]) -> bool:
    """Tell whether a limit stands above all routes, so that none has it."""
    return next(word for word in stack if word != "wraps") == "limit"


def test_in_every_stack_of_decorators_a_limit_above_all_routes_fails_the_start_and_no_other_does() -> None:
    assert sum(map(is_misplaced, STACKS)) > 15
    for stack in STACKS:
        app = FastAPI(middleware=[MIDDLEWARE])
        put_up(stack, app)
        found = complaint(app)
        assert ("it would never run" in found) is is_misplaced(stack), f"{stack}: {found!r}"


async def test_without_a_lifespan_it_is_found_at_the_first_request() -> None:
    app = FastAPI(middleware=[MIDDLEWARE])
    put_up(("limit", "wraps", "route"), app)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"'GET /0'.*next to 'page'"):
            await call(app, "/0")


def test_a_class_below_a_mount_is_found_as_a_function_is() -> None:
    inner, app = FastAPI(), FastAPI(middleware=[MIDDLEWARE])
    app.mount("/v1", inner)
    limit = RateLimit("1/hour")

    class Wrong(HTTPEndpoint): ...

    class Right(HTTPEndpoint): ...

    inner.add_route("/right", limit(Right))
    assert complaint(app) == ""
    inner.add_route("/wrong", Wrong)
    limit(Wrong)
    app.middleware_stack = None
    assert "'* /v1/wrong'" in complaint(app)
    assert "next to 'Wrong'" in complaint(app)


# -- without parentheses: the endpoint would be taken for a function that returns limits, and never run ----------------

DEFINED = ("def page():", "async def page(request: Request):")
DECORATORS = ("", "@app.get('/')", "@wrapping", "@functools.cache", "@app.get('/')\n@wrapping")
WHERE = ("{}", "def make():\n{}\nmake()", "class Pages:\n{}")


@pytest.mark.parametrize(
    ("where", "decorators", "head"), [*product(WHERE, DECORATORS, DEFINED), ("{}", "", "class page:")]
)
def test_it_is_refused_where_it_is_written(where: str, decorators: str, head: str) -> None:
    names = {"RateLimit": RateLimit, "Request": Request, "functools": functools, "wrapping": wrapping}
    for above in ("", "@wrapping\n"):
        written = f"{above}@RateLimit\n{decorators}\n{head}\n    pass"
        with pytest.raises(ConfigurationError, match=r'write @RateLimit\("5/minute"\) above \'page\''):
            exec(where.format(written if where == "{}" else indent(written, "    ")), names | {"app": FastAPI()})


class Plans:
    def plan(self, request: Any) -> str:
        return "1/hour"

    def of_this_class(request: Any) -> str:  # type: ignore[misc]
        return "1/hour"

    limit = RateLimit(of_this_class)  # type: ignore[arg-type]


def limits_functions() -> list[RateLimit]:
    """Return limits whose function is written in ways that are no decorator."""

    async def later(request: Any) -> str:
        return "1/hour"

    @functools.cache
    def cached(request: Any) -> str:
        return "1/hour"

    given: list[Any] = [later, cached, Plans().plan, lambda request: "1/hour"]
    for amount in (1, 1):

        def counted(request: Any, amount: int = amount) -> str:
            return f"{amount}/hour"

        given.append(counted)
    return [*map(RateLimit, given), Plans.limit]


@pytest.mark.parametrize("limit", limits_functions(), ids=str)
async def test_a_function_that_returns_limits_still_works(limit: RateLimit) -> None:
    app = FastAPI(middleware=[MIDDLEWARE])
    app.get("/")(limit(lambda: "hi"))
    app.get("/other", dependencies=[Depends(limit)])(lambda: "hi")
    assert [await statuses(app, 2, path) for path in ("/", "/other")] == [[200, 429]] * 2


@pytest.mark.parametrize("app", [FastAPI(), Starlette()])
def test_a_limit_in_the_place_of_an_endpoint_ends_the_start(app: Any) -> None:
    add = app.get("/page") if isinstance(app, FastAPI) else lambda limit: app.routes.append(Route("/page", limit))
    add(RateLimit(lambda request: "5/minute"))
    app.add_middleware(RateLimitMiddleware, rules=[])
    found = complaint(app)
    assert "/page' is a limit" in found
    assert '@RateLimit("5/minute")' in found
