"""Limits at endpoints: every way to put one there, and whose count it charges, each shown by real requests."""

import asyncio
import functools
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Body, Depends, FastAPI, Form
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route, Router, request_response
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from slidegate import ConfigurationError, Limiter, RateLimit, RateLimitMiddleware, everyone

from ..asgi import call, page
from .limited import wrapping

MIDDLEWARE = Middleware(RateLimitMiddleware)


def starlette(*routes: Any) -> Starlette:
    return Starlette(routes=routes, middleware=[MIDDLEWARE])


def fastapi(**options: Any) -> FastAPI:
    return FastAPI(middleware=[MIDDLEWARE], **options)


# -- every way ---------------------------------------------------------------------------------------------------------
# Each builds an application whose /x/{n} lets two requests an hour through, whatever n is.


async def more(word: str, request: Request) -> Response:
    return PlainTextResponse(word)


async def number(n: int) -> int:
    return n


def next_number(n: int) -> int:
    with pytest.raises(RuntimeError, match="no running event loop"):  # it runs in a thread
        asyncio.get_running_loop()
    return n + 1


async def with_a_connection(n: int, connection: HTTPConnection, request: Request) -> str:
    assert connection is request
    return connection.url.path


class Page(HTTPEndpoint):
    async def get(self, request: Request) -> Response:
        return PlainTextResponse("hi")


class Methods(HTTPEndpoint):
    @RateLimit("2/hour")
    async def get(self, request: Request) -> Response:
        return PlainTextResponse("hi")


def on_fastapi(endpoint: Any, path: str = "/x/{n}", *, app: Any = None, **options: Any) -> Any:
    app = app or fastapi()
    app.get(path, **options)(endpoint)
    return app


def in_nested_routers(limit: RateLimit) -> ASGIApp:
    app, outer = fastapi(), APIRouter()
    outer.include_router(on_fastapi(number, "/{n}", app=APIRouter(), dependencies=[Depends(limit)]), prefix="/x")
    app.include_router(outer)
    return app


def as_a_dependency_of_a_dependency(limit: RateLimit) -> ASGIApp:
    async def user(_: None = Depends(limit)) -> str:
        return "ann"

    async def get(n: int, name: str = Depends(user)) -> str:
        return name

    return on_fastapi(get)  # type: ignore[no-any-return]


WAYS: dict[str, Callable[[RateLimit], ASGIApp]] = {
    "a partial": lambda limit: starlette(Route("/x/{n}", limit(functools.partial(more, "hi")))),
    "a class": lambda limit: starlette(Route("/x/{n}", limit(Page))),
    "a method of a class": lambda limit: starlette(Route("/x/{n}", Methods)),
    "under another decorator": lambda limit: starlette(Route("/x/{n}", wrapping(limit(page)))),
    "above another decorator": lambda limit: starlette(Route("/x/{n}", limit(wrapping(page)))),
    "a dependency of the application": lambda limit: on_fastapi(number, app=fastapi(dependencies=[Depends(limit)])),
    "a dependency of a router in a router": in_nested_routers,
    "a dependency of the endpoint": lambda limit: on_fastapi(number, dependencies=[Depends(limit)]),
    "a dependency of a dependency": as_a_dependency_of_a_dependency,
    "a sync endpoint without a request": lambda limit: on_fastapi(limit(next_number)),
    "an endpoint with a connection": lambda limit: on_fastapi(limit(with_a_connection)),
    "an endpoint twice": lambda limit: on_fastapi(limit(limit(number))),
    "an endpoint with another limit": lambda limit: on_fastapi(RateLimit("9/hour", key=everyone)(limit(number))),
    "a decorator and a dependency": lambda limit: on_fastapi(limit(number), dependencies=[Depends(limit)]),
    "a mounted application": lambda limit: starlette(Mount("/x", Router([Route("/{n}", limit(page))]))),
    "a function of the request": lambda _: on_fastapi(RateLimit(limits=lambda request: "2/hour")(number)),
}


@pytest.mark.parametrize("way", WAYS)
async def test_the_third_request_is_refused_whatever_the_path_parameter(way: str) -> None:
    app = WAYS[way](RateLimit("2/hour"))
    answers = [await call(app, f"/x/{n}") for n in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 429, 429]
    fields = dict(answers[2].start["headers"])
    assert 3_000 < int(fields[b"retry-after"]) <= 3_600  # the clock is that of the machine
    assert fields[b"cache-control"] == b"no-store"


def test_a_decorated_endpoint_is_documented_as_before() -> None:
    app = fastapi()

    @app.get("/x/{n}")
    @RateLimit("1/hour")
    @RateLimit("2/hour")
    async def get(n: int, q: str = "a") -> list[int]:
        """Numbers."""
        return [n]

    operation = app.openapi()["paths"]["/x/{n}"]["get"]
    assert [parameter["name"] for parameter in operation["parameters"]] == ["n", "q"]
    assert (operation["description"], operation["operationId"]) == ("Numbers.", "get_x__n__get")
    assert operation["responses"]["200"]["content"]["application/json"]["schema"]["type"] == "array"
    assert "requestBody" not in operation


# -- whose count -------------------------------------------------------------------------------------------------------


def made(word: str) -> Any:
    """Return another endpoint of the same name at each call."""

    async def same_name(request: Request) -> Response:
        return PlainTextResponse(word)

    return same_name


async def other(request: Request) -> Response:
    return PlainTextResponse("other")


class Charges:
    """An observer that keeps the names of the counts that the last request has charged."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def request(self, outcome: Any) -> None:
        assert outcome.allowed
        self.names = [bucket.name for decision in outcome.decisions for bucket, _, _ in decision.checks]


LIMITS = st.sampled_from(["7/hour", "8/hour", "9/hour", "9/minute"])
ENDPOINTS = st.lists(st.tuples(st.lists(LIMITS, max_size=3), st.lists(LIMITS, max_size=2)), min_size=1, max_size=4)


@given(st.lists(LIMITS, max_size=2), st.lists(LIMITS, max_size=2), ENDPOINTS, st.randoms(use_true_random=False))
def test_each_endpoint_has_one_count_for_each_of_its_limits_whatever_comes_first(
    of_app: list[str], of_router: list[str], endpoints: list[tuple[list[str], list[str]]], random: Any
) -> None:
    def depends(limits: Iterable[str]) -> list[Any]:
        return [Depends(RateLimit(one)) for one in limits]

    async def counts(order: list[int]) -> dict[int, set[str]]:
        charges = Charges()
        middleware = Middleware(RateLimitMiddleware, limiter=Limiter(observers=[charges]))
        app = FastAPI(middleware=[middleware], dependencies=depends(of_app))
        router = APIRouter(dependencies=depends(of_router))
        for at, (decorators, dependencies) in enumerate(endpoints):
            endpoint = made(str(at))
            for one in decorators:
                endpoint = RateLimit(one)(endpoint)
            router.get(f"/{at}", dependencies=depends(dependencies))(endpoint)
        app.include_router(router)
        found = {}
        for at in order:
            await call(app, f"/{at}")
            found[at] = set(charges.names)
            assert len(charges.names) == len(found[at]), "a limit that is met twice is charged once"
        return found

    order = list(range(len(endpoints)))
    found = asyncio.run(counts(order))
    for at, (decorators, dependencies) in enumerate(endpoints):
        assert len(found[at]) == len({*of_app, *of_router, *decorators, *dependencies})
        assert all(found[at].isdisjoint(found[one]) for one in range(at)), "no two endpoints share a count"
    random.shuffle(order)
    assert asyncio.run(counts(order)) == found


async def test_the_count_is_named_after_the_function_and_the_limits() -> None:
    charges = Charges()
    app = Router([Route("/", RateLimit("5/minute")(page))])
    answer = await call(RateLimitMiddleware(app, limiter=Limiter(observers=[charges])))
    assert charges.names == [f"{page.__module__}.page 5/1m"]
    assert answer.headers["ratelimit-policy"] == f'"{page.__module__}.page";q=5;w=60'


async def test_without_a_router_the_function_is_known_all_the_same() -> None:
    limit = RateLimit("1/hour")
    one, two = request_response(limit(page)), request_response(limit(other))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (two if scope["path"] == "/two" else one)(scope, receive, send)

    middleware = RateLimitMiddleware(ExceptionMiddleware(app))
    paths = ["/one/1", "/two", "/one/2", "/two"]
    assert [(await call(middleware, path)).status for path in paths] == [200, 200, 429, 429]


# -- keys and costs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decorated", [False, True])
def test_a_key_function_may_read_the_body_from_which_fastapi_takes_a_parameter(decorated: bool) -> None:
    async def by_name(request: Request) -> str:
        return str((await request.json())["name"])

    async def name_of(name: str = Body(embed=True)) -> str:
        return name

    app, limit = fastapi(), RateLimit("1/hour", key=by_name)
    app.post("/", dependencies=[] if decorated else [Depends(limit)])(limit(name_of) if decorated else name_of)
    client = TestClient(app)
    answers = [client.post("/", json={"name": name}) for name in ("ann", "bob", "ann")]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.json() for answer in answers[:2]] == ["ann", "bob"]


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_without_a_middleware_above_the_error_names_the_line_to_add() -> None:
    app = on_fastapi(number, app=FastAPI(), dependencies=[Depends(RateLimit("2/hour"))])
    with pytest.raises(ConfigurationError, match=r"app\.add_middleware\(RateLimitMiddleware\), with rules"):
        TestClient(app).get("/x/1")
    assert TestClient(app, raise_server_exceptions=False).get("/x/1").status_code == 500


async def test_a_decorated_function_called_without_a_request_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="'number' was called without a request"):
        await RateLimit("1/hour")(number)(3)


@pytest.mark.parametrize("decorated", [False, True])
@pytest.mark.parametrize("reads", ["form", "body", "json"])
def test_a_form_that_fastapi_has_read_is_read_again_as_a_form_alone(
    decorated: bool, reads: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def by_account(request: Request) -> str:
        return str((await request.form())["account"] if reads == "form" else await getattr(request, reads)())

    app, limit = FastAPI(), RateLimit("2/hour", key=by_account)

    async def login(account: Annotated[str, Form()]) -> str:
        return account

    app.post("/login", dependencies=[] if decorated else [Depends(limit)])(limit(login) if decorated else login)
    app.add_middleware(RateLimitMiddleware)
    client = TestClient(app)
    answers = [client.post("/login", data={"account": account}).status_code for account in "aaab"]
    assert answers == [200, 200, 429, 200 if reads == "form" else 429]
    assert ("Stream consumed" in caplog.text) is (reads != "form")
