"""The middleware as a piece of ASGI, how middlewares stack, and limits at endpoints."""

import asyncio
import contextvars
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from fastapi import APIRouter, Depends, FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Host, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from slidegate import BanPolicy, ConfigurationError, Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule
from slidegate.testing import FakeClock, limits_clock
from slidegate.web.callbacks import whole_cost
from slidegate.web.websockets import MessageLimits

from ..asgi import PEER, attempt, call, hello, page, scope_of, send_scope, statuses
from ..remote_stores import SlowStore
from ..test_public_values import WRONG
from ..virtual_time import turns
from .middlewares import BYE, SocketClient, around, charged, checks, class_of, listening, texts
from .stage import expanded


@pytest.mark.parametrize("of_a_file", [False, True])
@pytest.mark.parametrize("kind", ["lifespan", "foo"])
async def test_other_scope_types_pass_unchanged(kind: str, of_a_file: bool, tmp_path: Path) -> None:
    came, sent = list[Any](), list[Any]()
    message = {"type": f"{kind}.startup.complete"}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        came.extend([scope, receive])
        await send(message)

    async def send(message: Any) -> None:
        sent.append(message)

    scope, file = {"type": kind, "state": {}}, tmp_path / "slidegate.toml"
    file.write_text('limits = "1/hour"')
    made: Any = RateLimitMiddleware.from_file(app, file) if of_a_file else RateLimitMiddleware(app, limits="1/hour")
    given = scope, object()
    await made(*given, send)
    assert [*map(id, [*came, *sent])] == [*map(id, [*given, message])]
    assert scope == {"type": kind, "state": {}}


async def test_context_variables_streams_and_background_tasks_behave_as_without_the_middleware() -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user")
    done: list[str] = []

    async def stream(request: Request) -> StreamingResponse:
        user.set("inner")
        return StreamingResponse(iter("abc"), background=BackgroundTask(done.append, "task"))

    app = Starlette(routes=[Route("/", stream)], middleware=[Middleware(RateLimitMiddleware, limits="9/hour")])
    answer = await call(app)
    assert answer.body == b"abc"
    assert user.get() == "inner"  # the application ran in the caller's own task and context
    assert done == ["task"]


async def test_an_answer_that_breaks_after_its_start_is_not_started_twice() -> None:
    class Broken(PlainTextResponse):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 429, "headers": []})
            raise KeyError("half")

    app = RateLimitMiddleware(hello, limits="1/hour", on_refused=lambda request, decision: Broken("x"))
    await call(app)
    answer, error = await attempt(app)
    assert (repr(error), answer.messages) == ("KeyError('half')", [answer.start])


@pytest.mark.parametrize("count_if", [None, lambda status: True])
@pytest.mark.parametrize("headers", [[7], [(None, b"a")], None])
async def test_a_client_gets_the_default_answer_where_the_fields_of_another_one_cannot_be_read(
    headers: Any, count_if: Any
) -> None:
    async def odd(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 420, "headers": headers})

    rules = [Rule("*", "1/hour", count_if=count_if)]
    app = RateLimitMiddleware(hello, rules=rules, on_refused=lambda request, decision: odd)  # type: ignore[arg-type,return-value]
    assert await statuses(app, 2) == [200, 429]


@pytest.mark.parametrize("read", ["limits", "cost"])
def test_what_a_function_returns_is_taken_or_refused_with_what_was_expected(read: str) -> None:
    rule = Rule("*", lambda request: "5/minute", fallback_limits="5/minute")
    (bound,) = RateLimitMiddleware(hello, rules=[rule]).policy.rules.bound()
    for returned in WRONG:
        with suppress(ConfigurationError):  # and nothing else, of which the log would have a traceback
            bound.bucket_for(returned) if read == "limits" else whole_cost(returned)


# -- default_limits: each route by itself; exemptions and limits at the endpoint take the place of defaults ------------


async def other(request: Any) -> PlainTextResponse:
    return PlainTextResponse("other")


@RateLimit.exempt
async def health(request: Any) -> PlainTextResponse:
    return PlainTextResponse("well")


def with_defaults(app: ASGIApp) -> RateLimitMiddleware:
    return RateLimitMiddleware(app, default_limits="2/minute", limiter=Limiter(MemoryStore(clock=FakeClock())))


Base = RateLimit.exempt(class_of(page))
Child = type("Child", (Base,), {})
Mixed = class_of(page, RateLimit.exempt)
API = Router([Route("/api", page)])
INNER = [Route("/items/{item:int}", page), Route("/", health)]
ROUTES = [
    Route("/a", page, methods=["GET", "PUT"]),
    Route("/a", other, methods=["POST"]),
    Route("/b/", page),
    Route("/free/{rest:path}", health),
    Route("/below", around(RateLimit.exempt(around(page)))),
    Route("/above", RateLimit.exempt(around(page))),
    Route("/limited", RateLimit("30/minute", name="own")(RateLimit.exempt(around(page)))),
    Route("/base", Base),
    Route("/child", Child),
    Route("/mixed", Mixed),
    Route("/method", Mixed(scope_of(), id, id).get),
    Mount("/v1/{tenant}", routes=INNER),
    Mount("/raw", hello),
    Mount("/exempt", RateLimit.exempt(StaticFiles(directory=Path(__file__).parent))),
    Host("api.example.org", API),
    Host("www.example.org", Router([Route("/api", page)])),
]
INCLUDED, INNERMOST = APIRouter(), APIRouter(prefix="/in")
for method in ("GET", "POST"):
    INNERMOST.add_api_route("/parts/{number}", page, methods=[method])
INNERMOST.add_api_route("/free", health)
INCLUDED.include_router(INNERMOST, prefix="/around/deep")


BUCKETS = {
    "GET /a": "per-route GET,PUT /a",
    "POST /a": "per-route POST /a",
    "GET /b": "per-route *",
    "DELETE /free/x": "exempt",
    "GET /free/x/../../a": "per-route *",
    "GET /free/{a/*3000}../b": "per-route *",
    "GET /below": "exempt",
    "GET /above": "exempt",
    "GET /limited": "own",
    "GET /base": "exempt",
    "GET /mixed": "exempt",
    "GET /method": "exempt",
    "GET /child": "per-route * /child",
    "GET /v1/ann/items/1": "per-route GET /v1/{tenant}/items/{item}",
    "GET /v1/ann/": "exempt",
    "GET /raw/anything": "per-route * /raw/{path}",
    "GET /exempt/limited.py": "exempt",
    "GET api.example.org/api": "per-route GET /api",
    "GET www.example.org/api": "per-route GET /api",
    "GET /v2/around/deep/in/parts/1": "per-route GET /v2/around/deep/in/parts/{number}",
    "GET /v2/around/deep/in/free": "exempt",
    "GET /v2/around/deep/in/none": "per-route *",
}
"""Requests, and the bucket in which each counts."""


@pytest.mark.parametrize("stack", [[], [GZipMiddleware], [with_defaults, GZipMiddleware]])
async def test_each_route_is_a_bucket_unless_it_is_exempt(stack: list[Any]) -> None:
    """Also where the application alone tells its routes, because something between hides them."""
    for request_line, bucket in BUCKETS.items():
        method, _, target = request_line.partition(" ")
        host, _, path = target.partition("/")
        app = FastAPI(routes=ROUTES, middleware=[Middleware(one) for one in stack], openapi_url=None)
        app.include_router(INCLUDED, prefix="/v2")
        middleware = app if with_defaults in stack else with_defaults(app)
        scope = scope_of(f"/{expanded(path)}", method, headers={"host": host or "example.com"})
        await send_scope(middleware, scope)
        assert (", ".join(charged(scope)) or "exempt") == bucket, request_line
    assert await statuses(RateLimitMiddleware(app, limits="1/minute"), 2, "/base") == [200, 429], "of other limits"


# -- messages of websockets --------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9), max_size=8), st.sampled_from(["counts", "refuses", "looks", "banned"]))
async def test_no_message_is_lost_or_counted_twice_when_a_read_is_given_up(patience: list[int], what: str) -> None:
    """As with a timeout around a read, while a store is asked about its message, or counts a strike."""
    clock = FakeClock(10**9)
    limiter = Limiter(SlowStore(clock), deadline="60s")

    async def impatient(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        scope["received"] = []
        if what == "banned":
            await limiter.ban(PEER, "1d")
            clock.advance("10s")
        for count in [*patience, *[99] * 4]:
            if what == "looks":  # for a ban of the client, at each message
                clock.advance("10s")
            read = asyncio.create_task(receive())
            await turns(count)
            read.cancel()
            (came,) = await asyncio.gather(read, return_exceptions=True)
            scope["received"] += [came] if isinstance(came, dict) else []

    bans = BanPolicy("2/d", "1d", signals={"refused": 1})
    messages = None if what == "banned" else MessageLimits("2/hour" if what == "refuses" else "9/hour")
    app = RateLimitMiddleware(impatient, messages=messages, limiter=limiter, bans=bans)
    with limits_clock(clock):
        client = await SocketClient(*texts(3), BYE).run(app)
    admitted, code = {"refuses": (2, 1013), "banned": (0, 1008)}.get(what, (3, 1000))
    assert client.received[:admitted] == texts(admitted)
    assert client.received[admitted]["code"] == code
    assert sum(one.used for one in (await limiter.inspect(PEER)).windows) == admitted
    assert (await limiter.banned(PEER) is not None) is (what == "banned"), "a refused message is one strike"


def test_under_trio_messages_are_counted_too() -> None:
    client = SocketClient(*texts(2), BYE)
    anyio.run(client.run, RateLimitMiddleware(listening, messages=MessageLimits("1/hour")), backend="trio")
    assert [message["type"] for message in client.came] == ["websocket.accept", "websocket.close"]
    assert client.closes == [(1013, "message limit exceeded")]


@pytest.mark.parametrize("what", ["key", "cost", "when", "limits"])
def test_under_trio_functions_of_the_request_are_awaited_too(what: str) -> None:
    results = {"key": "somebody", "cost": 5, "when": True, "limits": "5/hour"}

    async def function(request: Request) -> Any:
        await anyio.lowlevel.checkpoint()
        return results[what]

    rule = Rule("*", **{"limits": "5/hour", "cost": 5, what: function})
    assert anyio.run(statuses, RateLimitMiddleware(hello, rules=[rule]), 2, backend="trio") == [200, 429]


# -- limits at endpoints: how they look to a framework, and whose count they charge ------------------------------------


def test_a_decorated_endpoint_is_documented_as_before() -> None:
    app = FastAPI()

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


LIMITS = st.sampled_from(["7/hour", "8/hour", "9/hour", "9/minute"])
ENDPOINTS = st.lists(st.tuples(st.lists(LIMITS, max_size=3), st.lists(LIMITS, max_size=2)), min_size=1, max_size=4)


@given(st.lists(LIMITS, max_size=2), st.lists(LIMITS, max_size=2), ENDPOINTS, st.randoms(use_true_random=False))
def test_each_endpoint_has_one_count_for_each_of_its_limits_whatever_comes_first(
    of_app: list[str], of_router: list[str], endpoints: list[tuple[list[str], list[str]]], random: Any
) -> None:
    """At the same path of a router, of included and of mounted ones, as a factory may make them."""
    places = ["GET /x", "POST /x", "GET /included/x", "GET /mounted/x"]

    def depends(limits: Iterable[str]) -> list[Any]:
        return [Depends(RateLimit(one)) for one in limits]

    async def all_counts(order: list[int]) -> dict[int, set[str]]:
        app = FastAPI(middleware=[Middleware(RateLimitMiddleware)], dependencies=depends(of_app))
        mounted = FastAPI(dependencies=depends(of_app))
        for at, (decorators, dependencies) in enumerate(endpoints):

            async def endpoint(request: Request) -> Any:
                return PlainTextResponse()

            router = APIRouter(dependencies=depends(of_router))
            for one in decorators:
                endpoint = RateLimit(one)(endpoint)
            router.api_route("/x", methods=places[at].split()[:1], dependencies=depends(dependencies))(endpoint)
            (mounted if at == 3 else app).include_router(router, prefix="/included" if at == 2 else "")
        app.mount("/mounted", mounted)
        found = dict[int, set[str]]()
        for at in order:
            method, path = places[at].split()
            await send_scope(app, scope := scope_of(path, method))
            names = [bucket.name for bucket, _, _ in checks(scope)]
            found[at] = set(names)
            assert len(names) == len(found[at]), "a limit that is met twice is charged once"
        return found

    order = list(range(len(endpoints)))
    found = asyncio.run(all_counts(order))
    for at, (decorators, dependencies) in enumerate(endpoints):
        assert len(found[at]) == len({*of_app, *of_router, *decorators, *dependencies})
        assert all(found[at].isdisjoint(found[one]) for one in range(at)), "no two endpoints share a count"
    random.shuffle(order)
    assert asyncio.run(all_counts(order)) == found
