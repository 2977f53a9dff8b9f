"""Limits at the endpoint: every way to put one there, each shown by a real refusal."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial, wraps
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Body, Depends, FastAPI
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Host, Mount, Route, Router, request_response
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from slidegate import (
    ConfigurationError,
    Networks,
    RateLimit,
    RateLimitMiddleware,
    everyone,
)

from ..asgi import PEER, call, page, scope_of, send_scope, statuses

MIDDLEWARE = Middleware(RateLimitMiddleware, rules=[])
Limited = Annotated[None, Depends(RateLimit("2/hour"))]


def starlette(*routes: Any) -> Starlette:
    return Starlette(routes=routes, middleware=[MIDDLEWARE])


def fastapi(**options: Any) -> FastAPI:
    return FastAPI(middleware=[MIDDLEWARE], **options)


def sync_page(request: Request) -> Response:
    return PlainTextResponse("hi")


# -- every way ---------------------------------------------------------------------------------------------------------
# Each builds an application whose /x/{n} lets two requests an hour through, whatever n is.


async def more(word: str, request: Request) -> Response:
    return PlainTextResponse(word)


def shouting(endpoint: Any) -> Any:
    @wraps(endpoint)
    async def shout(request: Request) -> Response:
        return PlainTextResponse((await endpoint(request)).body.upper())

    return shout


async def number(n: int) -> int:
    return n


def next_number(n: int) -> int:
    return n + 1


async def with_a_parameter(n: int, _: Limited) -> int:
    return n


async def with_a_connection(n: int, connection: HTTPConnection, request: Request) -> str:
    assert connection is request
    return connection.url.path


def on_fastapi(endpoint: Any, path: str = "/x/{n}", *, app: Any = None, **options: Any) -> Any:
    app = app or fastapi()
    app.get(path, **options)(endpoint)
    return app


def in_nested_routers() -> ASGIApp:
    app, outer = fastapi(), APIRouter()
    outer.include_router(on_fastapi(number, "/{n}", app=APIRouter(), dependencies=DEPENDS), prefix="/x")
    app.include_router(outer)
    return app


def as_a_dependency_of_a_dependency() -> ASGIApp:
    limit = RateLimit("2/hour")

    async def user(_: None = Depends(limit)) -> str:
        return "ann"

    async def get(n: int, name: str = Depends(user)) -> str:
        return name

    return on_fastapi(get)  # type: ignore[no-any-return]


DEPENDS = [Depends(RateLimit("2/hour"))]
LIMIT = RateLimit("2/hour")
AT_THE_ROUTE = [Middleware(RateLimitMiddleware, limits="2/hour")]
WAYS: dict[str, Callable[[], ASGIApp]] = {
    "a partial": lambda: starlette(Route("/x/{n}", LIMIT(partial(more, "hi")))),
    "under another decorator": lambda: starlette(Route("/x/{n}", shouting(LIMIT(page)))),
    "a middleware of the route": lambda: Starlette(routes=[Route("/x/{n}", page, middleware=AT_THE_ROUTE)]),
    "in a mount": lambda: starlette(Mount("/x", routes=[Route("/{n}", LIMIT(page))])),
    "an annotated parameter": lambda: on_fastapi(with_a_parameter),
    "in nested routers": in_nested_routers,
    "a dependency of a dependency": as_a_dependency_of_a_dependency,
    "a sync endpoint without a request": lambda: on_fastapi(LIMIT(next_number)),
    "an endpoint with a connection": lambda: on_fastapi(LIMIT(with_a_connection)),
    "an endpoint twice": lambda: on_fastapi(RateLimit("9/hour", key=everyone)(LIMIT(number))),
    "in a mounted fastapi": lambda: starlette(
        Mount("/x", on_fastapi(number, "/{n}", app=FastAPI(), dependencies=DEPENDS))
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_third_request_is_refused_whatever_the_path_parameter(way: str) -> None:
    client = TestClient(WAYS[way]())
    answers = [client.get(f"/x/{n}") for n in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    refused = answers[2]
    wait_s = refused.headers["retry-after"]
    assert 3_000 < int(wait_s) <= 3_600  # the clock is that of the machine
    assert refused.headers["cache-control"] == "no-store"
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["status"] == 429
    assert refused.headers["ratelimit"].partition(",")[0].endswith(f";r=0;t={wait_s}")
    assert answers[0].headers["ratelimit"].partition(",")[0].endswith(";r=1;t=3600")


# -- whose bucket ------------------------------------------------------------------------------------------------------


def twice_mounted(router: Any) -> ASGIApp:
    return starlette(Mount("/a", router), Mount("/b", router))


def at(*paths: str, root: str = "", host: str = "") -> list[dict[str, Any]]:
    return [{"path": path, "root_path": root, "headers": {"Host": host} if host else {}} for path in paths]


def once(path: str = "/x", limits: str = "1/hour") -> Router:
    return Router([Route(path, RateLimit(limits)(page))])


BUCKETS: dict[str, tuple[ASGIApp, list[dict[str, Any]], list[int], str]] = {
    "parameters of mounts are one": (
        starlette(Mount("/{tenant}", once("/x/{n}", "2/hour"))),
        at("/a/x/1", "/b/x/1", "/c/x/2", "/d/x/1"),
        [200, 200, 429, 429],
        "GET /{tenant}/x/{n}",
    ),
    "also where all are parameters": (
        starlette(Mount("/{tenant}", once("/{n}", "2/hour"))),
        at("/a/x", "/x/x", "/n/x", "/t/x"),
        [200, 200, 429, 429],
        "GET /{tenant}/{n}",
    ),
    "an application mounted twice": (
        twice_mounted(once()),
        at("/a/x", "/b/x", "/a/x", "/b/x"),
        [200, 200, 429, 429],
        "GET /b/x",
    ),
    "both conventions for root_path": (
        starlette(Route("/x", RateLimit("2/hour")(page))),
        [*at("/app/x", "/x", root="/app"), *at("/x"), *at("/app/x", root="/app")],
        [200, 200, 429, 429],
        "GET /x",
    ),
    "mounts under a root_path": (
        twice_mounted(once()),
        [*at("/app/a/x", root="/app"), *at("/b/x", "/a/x"), *at("/app/b/x", root="/app")],
        [200, 200, 429, 429],
        "GET /b/x",
    ),
    "hosts are told apart": (
        starlette(Host("a.example", once()), Host("b.example", once())),
        [asked for letter in "abab" for asked in at("/x", host=f"{letter}.example")],
        [200, 200, 429, 429],
        "GET //b.example/x",
    ),
}


@pytest.mark.parametrize("whose", BUCKETS)
async def test_each_route_has_one_bucket_wherever_it_stands(whose: str) -> None:
    app, asked, expected, name = BUCKETS[whose]
    answers = [await call(app, **one) for one in asked]
    assert [answer.status for answer in answers] == expected
    assert json.loads(answers[-1].body)["violated-policies"] == [name]


async def test_buckets_and_names_are_the_same_in_every_process_whatever_comes_first() -> None:
    seen: list[dict[str, tuple[str, str]]] = []
    for paths in (["/a", "/b", "/c/1"], ["/c/1", "/b", "/a"]):
        app, found = fastapi(), {}
        for letter in "ab":
            router = APIRouter(dependencies=[Depends(RateLimit("9/hour"))])
            router.get(f"/{letter}")(lambda: "hi")
            app.include_router(router)
        app.get("/c/{n}", dependencies=[Depends(RateLimit("9/hour"))])(lambda: "hi")
        for path in paths:
            scope = scope_of(path)
            await send_scope(app, scope)
            state = scope["slidegate.ended"].decision.binding
            found[path] = state.rule, state.name
        seen.append(found)
    assert seen[0] == seen[1]
    assert len({rule for rule, _ in seen[0].values()}) == 3
    assert {path: name for path, (_, name) in seen[0].items()} == {"/a": "/*", "/b": "/*", "/c/1": "GET /c/{n}"}


async def test_where_no_router_says_the_function_is_the_bucket() -> None:
    limit = RateLimit("1/hour")
    one, two = request_response(limit(page)), request_response(limit(sync_page))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (two if scope["path"] == "/two" else one)(scope, receive, send)

    middleware = RateLimitMiddleware(app, rules=[])
    paths = ["/one/1", "/two", "/one/2", "/two"]
    answers = [await call(middleware, path) for path in paths]
    assert [answer.status for answer in answers] == [200, 200, 429, 429]
    assert json.loads(answers[2].body)["violated-policies"] == [f"{page.__module__}.page"]


# -- charging ----------------------------------------------------------------------------------------------------------


async def test_of_many_requests_at_once_exactly_n_reach_the_endpoint() -> None:
    ran: list[int] = []

    @RateLimit("5/hour")
    async def count(request: Request) -> Response:
        ran.append(1)
        return PlainTextResponse("hi")

    app = starlette(Route("/", count))
    answers = await asyncio.gather(*(call(app) for _ in range(200)))
    assert sorted(answer.status for answer in answers) == [200] * 5 + [429] * 195
    assert len(ran) == 5


# -- keys and costs ----------------------------------------------------------------------------------------------------


async def by_name(request: Any) -> str:
    return str((await request.json())["name"])


def body_of_a_function() -> ASGIApp:
    async def echo(request: Request) -> Response:
        return JSONResponse(await request.json())

    return starlette(Route("/", RateLimit("1/hour", key=by_name)(echo), methods=["POST"]))


def body_of_a_class() -> ASGIApp:
    @RateLimit("1/hour", key=by_name)
    class Echo(HTTPEndpoint):
        async def post(self, request: Request) -> Response:
            return JSONResponse(await request.json())

    return starlette(Route("/", Echo))


def body_of_a_dependency() -> ASGIApp:
    app = fastapi()

    @app.post("/", dependencies=[Depends(RateLimit("1/hour", key=by_name))])
    async def echo(name: str = Body(embed=True)) -> dict[str, str]:
        return {"name": name}

    return app


@pytest.mark.parametrize("way", [body_of_a_function, body_of_a_class, body_of_a_dependency])
def test_a_key_function_may_read_the_body_and_the_endpoint_reads_it_again(way: Callable[[], ASGIApp]) -> None:
    client = TestClient(way())
    asked = [{"name": name} for name in ("ann", "bob", "ann")]
    answers = [client.post("/", json=body) for body in asked]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.json() for answer in answers[:2]] == asked[:2]


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_without_a_middleware_above_the_error_names_the_line_to_add() -> None:
    app = FastAPI()
    app.get("/", dependencies=[Depends(RateLimit("1/hour"))])(lambda: "hi")
    with pytest.raises(ConfigurationError, match=r"app\.add_middleware\(RateLimitMiddleware\), with rules"):
        TestClient(app).get("/")


@pytest.mark.parametrize("options", [{"enabled": False}, {"allowlist": Networks([PEER])}], ids=str)
async def test_whoever_the_middleware_lets_through_uncounted_is_not_counted_further_in(options: dict[str, Any]) -> None:
    app = RateLimitMiddleware(Router([Route("/", RateLimit("1/hour")(page))]), rules=[], **options)
    assert await statuses(app, 3) == [200, 200, 200]


async def rows() -> AsyncIterator[str]:
    yield "a"


def some_rows() -> Any:
    yield "a"


class Application:
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (rows, r"'rows' is a generator.*Depends\(RateLimit"),
        (some_rows, r"'some_rows' is a generator"),
        (Application, r"a class such as HTTPEndpoint.*Middleware\(RateLimitMiddleware"),
        ("5/second", r"expected a function or class to limit, for example @RateLimit\(.*, not '5/second'"),
    ],
)
def test_what_cannot_be_decorated_is_said_at_once(target: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RateLimit("1/hour")(target)


async def test_a_decorated_function_called_without_a_request_says_so() -> None:
    @RateLimit("1/hour")
    async def get(n: int) -> int:
        return n

    with pytest.raises(ConfigurationError, match="'get' was called without a request"):
        await get(3)


def test_a_decorated_endpoint_keeps_its_face() -> None:
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


def test_a_sync_endpoint_still_runs_in_a_thread() -> None:
    app = fastapi()

    @app.get("/")
    @RateLimit("9/hour")
    def get() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert TestClient(app).get("/").json() is False


def test_other_middlewares_in_between_neither_break_the_refusal_nor_lose_their_fields() -> None:
    async def stamp(request: Request, call_next: Any) -> Response:
        response: Response = await call_next(request)
        response.headers["x-stamp"] = "yes"
        return response

    app = Starlette(
        routes=[Route("/", RateLimit("1/hour")(page))],
        middleware=[
            MIDDLEWARE,
            Middleware(BaseHTTPMiddleware, dispatch=stamp),
            Middleware(CORSMiddleware, allow_origins=["https://example.org"]),
            Middleware(GZipMiddleware, minimum_size=1),
        ],
    )
    client = TestClient(app, headers={"Origin": "https://example.org", "Accept-Encoding": "gzip"})
    assert client.get("/").headers["content-encoding"] == "gzip"
    refused = client.get("/")
    assert refused.json()["status"] == 429
    assert refused.headers["content-encoding"] == "gzip"
    assert refused.headers["access-control-allow-origin"] == "https://example.org"
    assert refused.headers["x-stamp"] == "yes"


async def test_limits_that_look_alike_are_two_limits_and_each_counts() -> None:
    app = fastapi()

    @app.get("/")
    @RateLimit("2/minute", key=lambda request: request.headers.get("x-tenant"))
    @RateLimit("2/minute", key=lambda request: request.headers.get("x-account"))
    async def get() -> int:
        return 1

    for who, other in (("x-tenant", "x-account"), ("x-account", "x-tenant")):
        answers = [(await call(app, headers={who: f"victim-{who}", other: f"{who}-{n}"})).status for n in range(3)]
        assert answers == [200, 200, 429]
