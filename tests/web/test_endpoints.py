"""Limits at endpoints: how they look to a framework, whose count they charge, and what their refusal is."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import fastapi
import pytest
from fastapi import APIRouter, Depends, FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute, request_response
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from slidegate import (
    BanPolicy,
    ConfigurationError,
    Limiter,
    RateLimit,
    RateLimitExceeded,
    RateLimitMiddleware,
    client_key,
    rate_limit_exceeded,
)
from slidegate.testing import RecordingObserver

from ..asgi import Answer, call, page, scope_of, send_scope, statuses
from . import limited
from .limited import FORMS, item
from .middlewares import checks


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


async def other(request: Request) -> Response:
    return PlainTextResponse("other")


async def counts(app: ASGIApp, path: str, method: str = "GET") -> list[str]:
    """Return the names of the counts that a request charges."""
    scope = scope_of(path, method)
    await send_scope(app, scope)
    return [bucket.name for bucket, _, _ in checks(scope)]


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
        found = {at: await counts(app, *reversed(places[at].split())) for at in order}
        assert all(len(names) == len({*names}) for names in found.values()), "a limit that is met twice is charged once"
        return {at: set(names) for at, names in found.items()}

    order = list(range(len(endpoints)))
    found = asyncio.run(all_counts(order))
    for at, (decorators, dependencies) in enumerate(endpoints):
        assert len(found[at]) == len({*of_app, *of_router, *decorators, *dependencies})
        assert all(found[at].isdisjoint(found[one]) for one in range(at)), "no two endpoints share a count"
    random.shuffle(order)
    assert asyncio.run(all_counts(order)) == found


async def test_without_a_router_the_function_is_known_all_the_same() -> None:
    limit = RateLimit("1/hour")
    one, two = request_response(limit(page)), request_response(limit(other))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (two if scope["path"] == "/two" else one)(scope, receive, send)

    middleware = RateLimitMiddleware(ExceptionMiddleware(app))
    paths = ["/one/1", "/two", "/one/2", "/two"]
    assert [(await call(middleware, path)).status for path in paths] == [200, 200, 429, 429]


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_without_a_middleware_above_the_error_names_the_line_to_add() -> None:
    app = FORMS["dependency"](RateLimit("2/hour"), page)
    with pytest.raises(ConfigurationError, match=r"app\.add_middleware\(RateLimitMiddleware\), with rules"):
        TestClient(app).get("/")
    assert TestClient(app, raise_server_exceptions=False).get("/").status_code == 500


async def test_a_decorated_function_called_without_a_request_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="'item' was called without a request"):
        await RateLimit("1/hour")(item)(3)


# -- refusals ----------------------------------------------------------------------------------------------------------


async def refused(app: Any, limiter: Limiter | None = None, bans: Any = None, **more: Any) -> Answer:
    """Return the answer to the second request of two."""
    middleware = RateLimitMiddleware(app, rules=[], limiter=limiter or Limiter(), bans=bans)
    await call(middleware, **more)
    return await call(middleware, **more)


async def test_rate_limit_exceeded_answers_what_limited_raises_in_an_endpoint() -> None:
    limiter = Limiter()

    async def page(request: Request) -> Response:
        async with limiter.limited("1/hour", key="smtp"):
            return PlainTextResponse("sent")

    app = Starlette(routes=[Route("/", page)], exception_handlers={RateLimitExceeded: rate_limit_exceeded})
    answer = await refused(app, limiter)
    assert answer.status == 429
    assert 3_000 < int(answer.headers["retry-after"]) <= 3_600


async def test_a_dependency_that_makes_another_answer_of_it_has_its_way() -> None:
    async def needed() -> AsyncIterator[None]:
        try:
            yield
        except RateLimitExceeded:
            raise fastapi.HTTPException(503) from None

    answer = await refused(limited.fastapi(page, dependencies=[Depends(needed)], of_route=[RateLimit("1/hour")]))
    assert (answer.status, answer.headers["cache-control"]) == (503, "no-store")


async def test_a_middleware_at_the_route_refuses_by_the_handlers_of_the_application() -> None:
    async def handler(request: Request, error: Exception) -> Response:
        return PlainTextResponse("mine", 418)

    route = Route("/", RateLimit("1/hour")(page), middleware=[Middleware(RateLimitMiddleware)])
    app = Starlette(routes=[route], exception_handlers={429: handler})
    assert await statuses(app, 2) == [200, 418]


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


async def test_a_cancelled_request_is_not_answered() -> None:
    limit = RateLimit("1/hour")

    async def page(request: Request) -> Response:
        try:
            await limit.check(request)
        except RateLimitExceeded:
            raise asyncio.CancelledError from None
        return PlainTextResponse("page")

    with pytest.raises(asyncio.CancelledError):
        await refused(Starlette(routes=[Route("/", page)]))
