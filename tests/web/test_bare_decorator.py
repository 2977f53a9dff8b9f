"""`@RateLimit` without parentheses: the endpoint would be taken for a function that returns limits, and never run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import product
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

from ..asgi import statuses

GATE = Middleware(RateLimitMiddleware, rules=[])
SIGNATURES = ("", "request", "request: Request", "connection", "item: int", "request, item=1", "*args", "**options")
DEFINED = ("def page({}):", "async def page({}):")
DECORATORS = ("", "@app.get('/')", "@wrapping", "@functools.cache", "@app.get('/')\n@wrapping")
WHERE = ("{}", "def make():\n{}\nmake()", "class Pages:\n{}")


def wrapping(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(endpoint)
    async def wrapped(*args: Any, **options: Any) -> Any:
        return await endpoint(*args, **options)

    return wrapped


def run(source: str) -> None:
    names = {"RateLimit": RateLimit, "Request": Request}
    exec(source, {**names, "app": FastAPI(), "functools": functools, "wrapping": wrapping})


def indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


@pytest.mark.parametrize(("where", "decorators"), list(product(WHERE, DECORATORS)))
def test_it_is_refused_where_it_is_written_whatever_the_endpoint_takes(where: str, decorators: str) -> None:
    for head, signature in product(DEFINED, SIGNATURES):
        for above in ("", "@wrapping\n"):
            written = f"{above}@RateLimit\n{decorators}\n{head.format(signature)}\n    return 'hi'"
            source = where.format(written if where == "{}" else indented(written))
            with pytest.raises(ConfigurationError, match=r'write @RateLimit\("5/minute"\) above \'page\'') as caught:
                run(source)
            assert "5/minute" in str(caught.value), source


def test_it_is_refused_above_a_class() -> None:
    with pytest.raises(ConfigurationError, match=r'write @RateLimit\("5/minute"\) above \'Page\''):

        @RateLimit  # type: ignore[arg-type]
        class Page(HTTPEndpoint):
            pass


class Plans:
    def plan(self, request: Any) -> str:
        return "1/hour"

    def __call__(self, request: Any) -> str:
        return "1/hour"

    async def later(self, request: Any) -> str:
        return "1/hour"

    def of_this_class(request: Any) -> str:  # type: ignore[misc]
        return "1/hour"

    limit = RateLimit(of_this_class)  # type: ignore[arg-type]


def limits_functions() -> list[RateLimit]:
    """Return limits whose function is written in every way that is no decorator."""

    def plan(request: Any) -> str:
        return "1/hour"

    async def later(request: Any) -> str:
        return "1/hour"

    @functools.cache
    def cached(request: Any) -> str:
        return "1/hour"

    def made(amount: int) -> Callable[[Any], str]:
        def plan_of(request: Any) -> str:
            return f"{amount}/hour"

        return plan_of

    def limited_by(function: Callable[[Any], str]) -> RateLimit:
        return RateLimit(function)

    @limited_by
    def registered(request: Any) -> str:
        return "1/hour"

    many = []
    for amount in (1, 1):

        def counted(request: Any, amount: int = amount) -> str:
            return f"{amount}/hour"

        many.append(counted)
    kept = [plan]
    del plan
    return [
        RateLimit(kept[0]),
        RateLimit(later),
        RateLimit(cached),
        RateLimit(made(1)),
        RateLimit(lambda request: "1/hour"),
        RateLimit(functools.partial(made(1))),
        RateLimit(Plans().plan),
        RateLimit(Plans().later),
        RateLimit(Plans()),
        Plans.limit,
        registered,
        *[RateLimit(function) for function in many],
    ]


@pytest.mark.parametrize("limit", limits_functions(), ids=str)
@pytest.mark.parametrize("as_dependency", [False, True])
async def test_a_function_that_returns_limits_still_works(limit: RateLimit, as_dependency: bool) -> None:
    app = FastAPI(middleware=[GATE])
    if as_dependency:
        app.get("/", dependencies=[Depends(limit)])(lambda: "hi")
    else:
        app.get("/")(limit(lambda: "hi"))
    assert await statuses(app, 2) == [200, 429]


@pytest.mark.parametrize("of", ["fastapi", "starlette"])
def test_a_limit_in_the_place_of_an_endpoint_ends_the_start(of: str) -> None:
    limit = RateLimit(lambda request: "5/minute")
    app: Any = FastAPI(middleware=[GATE])
    if of == "fastapi":
        app.get("/page")(limit)
    else:
        app = Starlette(routes=[Route("/page", limit)], middleware=[GATE])
    with pytest.raises(ConfigurationError, match=r"the endpoint of '.* /page' is a limit") as caught, TestClient(app):
        pass
    assert '@RateLimit("5/minute")' in str(caught.value)
