"""Limits at endpoints: how they look to a framework, whose count they charge, and what their refusal is."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Annotated, Any

import fastapi
import httpx
import pytest
from fastapi import APIRouter, Body, Depends, FastAPI, Form
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute, request_response
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from slidegate import (
    BanPolicy,
    Limiter,
    RateLimit,
    RateLimitExceeded,
    RateLimitMiddleware,
    client_key,
    rate_limit_exceeded,
)
from slidegate.testing import RecordingObserver

from ..asgi import PEER, call, page, scope_of, send_scope, statuses
from .middlewares import FORMS, checks, class_of
from .middlewares import fastapi as of_fastapi


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


def made(word: str) -> Any:
    """Return another endpoint of the same name at each call."""

    async def same_name(request: Request) -> Response:
        return PlainTextResponse(word)

    return same_name


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
            endpoint, router = made(str(at)), APIRouter(dependencies=depends(of_router))
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


async def test_without_a_router_the_function_is_known_all_the_same() -> None:
    limit = RateLimit("1/hour")
    one, two = request_response(limit(page)), request_response(limit(made("other")))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (two if scope["path"] == "/two" else one)(scope, receive, send)

    middleware = RateLimitMiddleware(ExceptionMiddleware(app))
    paths = ["/one/1", "/two", "/one/2", "/two"]
    assert [(await call(middleware, path)).status for path in paths] == [200, 200, 429, 429]


# -- refusals ----------------------------------------------------------------------------------------------------------


async def test_a_middleware_at_the_route_refuses_by_the_handlers_of_the_application() -> None:
    route = Route("/", RateLimit("1/hour")(page), middleware=[Middleware(RateLimitMiddleware)])
    app = Starlette(routes=[route], exception_handlers={429: lambda request, error: PlainTextResponse("mine", 418)})
    assert await statuses(app, 2) == [200, 418]


async def test_the_handler_of_a_status_answers_what_the_application_itself_raises() -> None:
    def busy(request: Request) -> None:
        if request.headers.get("x-busy"):
            raise fastapi.HTTPException(429, "busy", {"Retry-After": "5"})

    handlers = {429: rate_limit_exceeded}
    site = of_fastapi(page, dependencies=[Depends(busy)], of_route=[RateLimit("1/hour")], exception_handlers=handlers)
    app = RateLimitMiddleware(site, rules=[])
    answer = await call(app, headers={"X-Busy": "1"})
    assert (answer.status, answer.body, answer.headers["retry-after"]) == (429, b'{"detail":"busy"}', "5")
    assert await statuses(app, 1) == [200]
    assert b"violated-policies" in (await call(app)).body


@pytest.mark.parametrize("on_refused", [None, lambda request, decision: PlainTextResponse("mine", 418)])
async def test_a_class_below_a_middleware_at_its_route_is_answered_as_a_function(on_refused: Any) -> None:
    """Starlette answers what a class raises when the middlewares of its route have ended."""
    answers, limit = [], RateLimit("1/hour", name="it")
    for endpoint in (limit(page), class_of(page, limit)):
        route = Route("/", endpoint, middleware=[Middleware(RateLimitMiddleware, on_refused=on_refused)])
        app = Starlette(routes=[route], exception_handlers={RateLimitExceeded: rate_limit_exceeded})
        assert await statuses(app, 1) == [200]
        answers.append(await call(app))
    of_function, of_class = [(answer.status, answer.body, dict(answer.headers)) for answer in answers]
    assert of_class == of_function
    assert of_function[0] == (429 if on_refused is None else 418)


@pytest.mark.parametrize("banned", [False, True])
async def test_an_accepted_websocket_is_closed_with_try_again_later_or_as_a_banned_one(banned: bool) -> None:
    limit = RateLimit("1/hour")

    async def late(websocket: WebSocket) -> None:
        await websocket.accept()
        if banned:
            await limiter.ban(client_key(websocket), "1h")
        await limit.check(websocket)

    limiter = Limiter(observers=[observer := RecordingObserver(without=["banned"])])
    app = Starlette(routes=[WebSocketRoute("/", late)])
    middleware = RateLimitMiddleware(app, rules=[], limiter=limiter, bans=BanPolicy("1/1m"))
    answer = [await call(middleware, type="websocket") for _ in range(1 if banned else 2)][-1]
    closed = (1008, "banned") if banned else (1013, "Too many requests.")
    assert [(message.get("code"), message.get("reason")) for message in answer.messages] == [(None, None), closed]
    assert observer.kinds == (["refused"] if banned else ["exceeded", "refused"]), "it strikes and is reported"


# -- functions may read the body in any way, and the endpoint reads it again in any way --------------------------------


async def as_stream(request: Request) -> str:
    return b"".join([part async for part in request.stream()]).decode()


async def as_form(request: Request) -> Any:
    return dict(await request.form())


async def as_body(request: Request) -> str:
    return (await request.body()).decode()


async def not_at_all(request: Request) -> str:
    return "nothing"


Read = Callable[[Request], Awaitable[Any]]
FORM, JSON = b"who=ann&more=%20x", b'{"who": "ann"}'
TEXTS: dict[bytes, tuple[str, dict[Read, Any]]] = {
    FORM: ("application/x-www-form-urlencoded", {as_form: {"who": "ann", "more": " x"}, as_body: FORM.decode()}),
    JSON: ("application/json", {Request.json: {"who": "ann"}, as_body: JSON.decode()}),
}


def served(where: str, limit: RateLimit, read: Read) -> RateLimitMiddleware:
    async def endpoint(request: Request) -> JSONResponse:
        return JSONResponse(await read(request))

    return RateLimitMiddleware(FORMS[where](limit, endpoint))


async def post(app: Any, kind: str, parts: list[bytes]) -> tuple[int, Any]:
    """Send a request whose body arrives in these parts; return the status and the JSON of its answer."""

    async def body() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    transport = httpx.ASGITransport(app, client=(PEER, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://app.test") as client:
        answer = await client.post("/", content=body(), headers={"content-type": kind})
    return answer.status_code, answer.json() if answer.status_code == 200 else None


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.sampled_from([*FORMS]), st.sampled_from(sorted(TEXTS)), st.booleans())
async def test_an_endpoint_reads_all_of_a_body_that_was_read(
    caplog: pytest.LogCaptureFixture, data: st.DataObject, where: str, text: bytes, is_above: bool
) -> None:
    """A function fails that reads a body above `max_body`."""
    kind, values = TEXTS[text]
    reads = st.sampled_from([*values, as_stream, not_at_all])
    how = {name: data.draw(reads) for name in ("key", "cost", "when", "endpoint")}
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=4).map(sorted))
    expected = {as_stream: text.decode(), not_at_all: "nothing", **values}
    seen: dict[str, Any] = {}
    caplog.clear()

    def function(name: str, result: Any) -> Any:
        async def ask(request: Request) -> Any:
            seen[name] = await how[name](request)
            return result

        return ask

    functions = {"key": function("key", "k"), "cost": function("cost", 3), "when": function("when", True)}
    limit = RateLimit("3/hour", **functions, max_body=len(text) - is_above, name="it")
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    app = served(where, limit, how["endpoint"])
    assert await post(app, kind, parts) == (200, expected[how["endpoint"]])
    failing = {name for name in functions if is_above and how[name] is not not_at_all}
    assert seen == {name: expected[how[name]] for name in functions if name not in failing}
    assert ("write RateLimit(..., max_body=" in caplog.text) is bool(failing)
    cost = 1 if "cost" in failing else 3
    counted = await app.limiter.peek(PEER if "key" in failing else "k", "3/hour", 0, rule="it")
    assert counted.remaining == 3 - cost, "counted by address where the function of the key fails"
    assert (await post(app, kind, parts))[0] == (200 if cost == 1 else 429)


async def how_many_messages(request: Request) -> int:
    count = 1
    while (await request.receive()).get("more_body"):
        count += 1
    return count


@pytest.mark.parametrize("where", FORMS)
@pytest.mark.parametrize("part", [b"", b"a"])
async def test_what_is_kept_of_a_body_does_not_grow_with_the_number_of_its_parts(where: str, part: bytes) -> None:
    limit = RateLimit("9/hour", key=as_body, when=as_body)
    assert await post(served(where, limit, how_many_messages), "text/plain", [b"k", *[part] * 1_000]) == (200, 1)


async def by_form(account: Annotated[str, Form()]) -> str:
    return account


async def by_json(account: Annotated[str, Body(embed=True)]) -> str:
    return account


@pytest.mark.parametrize("where", ["dependency", "decorator"])
@pytest.mark.parametrize(
    ("endpoint", "read"), [(by_json, Request.json), (by_form, as_form), (by_form, as_body), (by_form, Request.json)]
)
def test_what_fastapi_has_read_is_read_again_but_a_form_as_a_form_alone(
    where: str, endpoint: Any, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    async def key(request: Request) -> str:
        return str(await read(request))

    client = TestClient(RateLimitMiddleware(FORMS[where](RateLimit("2/hour", key=key), endpoint)))
    sent = "json" if endpoint is by_json else "data"
    answers = [client.post("/", **{sent: {"account": account}}) for account in "aaab"]
    fails = endpoint is by_form and read is not as_form
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429 if fails else 200]
    assert answers[0].json() == "a"
    assert ("Stream consumed" in caplog.text) is fails
