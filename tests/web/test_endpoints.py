"""Limits at the endpoint: every way to put one there, each shown by a real refusal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import partial, wraps
from typing import Any

import pytest
from fastapi import APIRouter, Body, Depends, FastAPI
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Host, Mount, Route, Router, request_response
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from slidegate import ConfigurationError, Networks, RateLimit, RateLimitMiddleware, everyone

from ..asgi import PEER, call, page, scope_of, send_scope, statuses

MIDDLEWARE = Middleware(RateLimitMiddleware, rules=[])


def starlette(*routes: Any) -> Starlette:
    return Starlette(routes=routes, middleware=[MIDDLEWARE])


def fastapi() -> FastAPI:
    return FastAPI(middleware=[MIDDLEWARE])


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
    with pytest.raises(RuntimeError, match="no running event loop"):  # it runs in a thread
        asyncio.get_running_loop()
    return n + 1


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
WAYS: dict[str, Callable[[], ASGIApp]] = {
    "a partial": lambda: starlette(Route("/x/{n}", LIMIT(partial(more, "hi")))),
    "under another decorator": lambda: starlette(Route("/x/{n}", shouting(LIMIT(page)))),
    "in nested routers": in_nested_routers,
    "a dependency of a dependency": as_a_dependency_of_a_dependency,
    "a sync endpoint without a request": lambda: on_fastapi(LIMIT(next_number)),
    "an endpoint with a connection": lambda: on_fastapi(LIMIT(with_a_connection)),
    "an endpoint twice": lambda: on_fastapi(RateLimit("9/hour", key=everyone)(LIMIT(number))),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_third_request_is_refused_whatever_the_path_parameter(way: str) -> None:
    client = TestClient(WAYS[way]())
    answers = [client.get(f"/x/{n}") for n in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert 3_000 < int(answers[2].headers["retry-after"]) <= 3_600  # the clock is that of the machine
    assert answers[2].json()["status"] == 429
    assert answers[0].headers["ratelimit"].partition(",")[0].endswith(";r=1;t=3600")


# -- whose bucket ------------------------------------------------------------------------------------------------------


def at(*paths: str, root: str = "", host: str = "") -> list[dict[str, Any]]:
    return [{"path": path, "root_path": root, "headers": {"Host": host} if host else {}} for path in paths]


def once(path: str = "/x", limits: str = "1/hour") -> Router:
    return Router([Route(path, RateLimit(limits)(page))])


SHARED = once()
BUCKETS: dict[str, tuple[ASGIApp, list[dict[str, Any]], str]] = {
    "parameters of mounts and routes are one": (
        starlette(Mount("/{tenant}", once("/{n}", "2/hour"))),
        at("/a/x", "/x/x", "/n/x", "/t/x"),
        "GET /{tenant}/{n}",
    ),
    "both conventions for root_path": (
        starlette(Route("/x", RateLimit("2/hour")(page))),
        [*at("/app/x", "/x", root="/app"), *at("/x"), *at("/app/x", root="/app")],
        "GET /x",
    ),
    "an application mounted twice, under a root_path or not": (
        starlette(Mount("/a", SHARED), Mount("/b", SHARED)),
        [*at("/app/a/x", root="/app"), *at("/b/x", "/a/x"), *at("/app/b/x", root="/app")],
        "GET /b/x",
    ),
    "hosts are told apart": (
        starlette(Host("a.example", once()), Host("b.example", once())),
        [asked for letter in "abab" for asked in at("/x", host=f"{letter}.example")],
        "GET //b.example/x",
    ),
}


@pytest.mark.parametrize("whose", BUCKETS)
async def test_each_route_has_one_bucket_wherever_it_stands(whose: str) -> None:
    app, asked, name = BUCKETS[whose]
    answers = [await call(app, **one) for one in asked]
    assert [answer.status for answer in answers] == [200, 200, 429, 429]
    assert json.loads(answers[-1].body)["violated-policies"] == [name]


async def test_buckets_and_names_are_the_same_in_every_process_whatever_comes_first() -> None:
    seen: list[dict[str, tuple[str, str]]] = []
    for paths in (["/a", "/b", "/c/1"], ["/c/1", "/b", "/a"]):
        app, found = fastapi(), {}
        for letter in "ab":
            router = APIRouter(dependencies=[Depends(RateLimit("9/hour"))])
            app.include_router(on_fastapi(number, f"/{letter}", app=router))
        on_fastapi(number, "/c/{n}", app=app, dependencies=DEPENDS)
        for path in paths:
            scope = scope_of(path)
            await send_scope(app, scope)
            state = scope["slidegate.ended"].decision.binding
            found[path] = state.rule, state.name
        seen.append(found)
    assert seen[0] == seen[1]
    assert len({rule for rule, _ in seen[0].values()}) == 3
    assert [seen[0][path][1] for path in ("/a", "/b", "/c/1")] == ["/*", "/*", "GET /c/{n}"]


async def test_where_no_router_says_the_function_is_the_bucket() -> None:
    limit = RateLimit("1/hour")
    one, two = request_response(limit(page)), request_response(limit(lambda request: PlainTextResponse("hi")))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (two if scope["path"] == "/two" else one)(scope, receive, send)

    middleware = RateLimitMiddleware(app, rules=[])
    paths = ["/one/1", "/two", "/one/2", "/two"]
    answers = [await call(middleware, path) for path in paths]
    assert [answer.status for answer in answers] == [200, 200, 429, 429]
    assert json.loads(answers[2].body)["violated-policies"] == [f"{page.__module__}.page"]


# -- keys and costs ----------------------------------------------------------------------------------------------------


async def echo(request: Request) -> Response:
    return JSONResponse(await request.json())


async def post(self: Any, request: Request) -> Response:
    return await echo(request)


async def name_of(name: str = Body(embed=True)) -> dict[str, str]:
    return {"name": name}


def body_of_a_dependency(limit: RateLimit) -> ASGIApp:
    app = fastapi()
    app.post("/", dependencies=[Depends(limit)])(name_of)
    return app


@pytest.mark.parametrize(
    "way",
    [
        lambda limit: starlette(Route("/", limit(echo), methods=["POST"])),
        lambda limit: starlette(Route("/", limit(type("Echo", (HTTPEndpoint,), {"post": post})))),
        body_of_a_dependency,
    ],
)
def test_a_key_function_may_read_the_body_and_the_endpoint_reads_it_again(way: Callable[[RateLimit], ASGIApp]) -> None:
    async def by_name(request: Any) -> str:
        return str((await request.json())["name"])

    client = TestClient(way(RateLimit("1/hour", key=by_name)))
    asked = [{"name": name} for name in ("ann", "bob", "ann")]
    answers = [client.post("/", json=body) for body in asked]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.json() for answer in answers[:2]] == asked[:2]


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_without_a_middleware_above_the_error_names_the_line_to_add() -> None:
    app = on_fastapi(number, app=FastAPI(), dependencies=DEPENDS)
    with pytest.raises(ConfigurationError, match=r"app\.add_middleware\(RateLimitMiddleware\), with rules"):
        TestClient(app).get("/x/1")


@pytest.mark.parametrize("options", [{"enabled": False}, {"allowlist": Networks([PEER])}], ids=str)
async def test_whoever_the_middleware_lets_through_uncounted_is_not_counted_further_in(options: dict[str, Any]) -> None:
    app = RateLimitMiddleware(Router([Route("/", RateLimit("1/hour")(page))]), rules=[], **options)
    assert await statuses(app, 3) == [200, 200, 200]


async def rows() -> AsyncIterator[str]:
    yield "a"


class Application:
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (rows, r"'rows' is a generator.*Depends\(RateLimit"),
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


async def test_limits_that_look_alike_are_two_limits_and_each_counts() -> None:
    app = fastapi()

    @app.get("/")
    @RateLimit("2/minute", key=lambda request: request.headers.get("x-tenant"))
    @RateLimit("2/minute", key=lambda request: request.headers.get("x-account"))
    async def get() -> int:
        return 1

    @app.get("/costs")
    @RateLimit("8/minute", cost=lambda request: 1)
    @RateLimit("8/minute", cost=lambda request: 4)
    async def costs() -> int:
        return 1

    for who, other in (("x-tenant", "x-account"), ("x-account", "x-tenant")):
        answers = [(await call(app, headers={who: f"victim-{who}", other: f"{who}-{n}"})).status for n in range(3)]
        assert answers == [200, 200, 429]
    assert await statuses(app, 3, "/costs") == [200, 200, 429]
