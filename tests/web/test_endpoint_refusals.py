"""What a client gets that a limit at an endpoint refuses: wherever it stands, whatever answers exceptions there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import anyio
import fastapi
import pytest
from fastapi import Depends, FastAPI, WebSocket
from fastapi.exception_handlers import http_exception_handler
from starlette.applications import Starlette
from starlette.endpoints import WebSocketEndpoint
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from slidegate import BanPolicy, Limiter, RateLimit, RateLimitExceeded, RateLimitMiddleware, SlidegateError

from ..asgi import PEER, Answer, attempt, scope_of, send_scope
from . import limited

MIDDLEWARE = Middleware(RateLimitMiddleware, rules=[])
LIMITS = "1/hour"
PROBLEM, THEIRS, DETAIL = "problem details", "the user's answer", "FastAPI's answer"


async def theirs(request: Request, error: Exception) -> Response:
    return PlainTextResponse(THEIRS, 418)


async def delegating(request: Request, error: Any) -> Response:
    return await http_exception_handler(request, error)


async def broken(request: Request, error: Exception) -> Response:
    raise ZeroDivisionError


HANDLERS: dict[str, tuple[dict[Any, Any], str]] = {
    "none": ({}, PROBLEM),
    "Exception": ({Exception: theirs}, PROBLEM),
    "RateLimitExceeded": ({RateLimitExceeded: theirs}, THEIRS),
    "SlidegateError": ({SlidegateError: theirs}, THEIRS),
    "Starlette's HTTPException": ({HTTPException: theirs}, THEIRS),
    "FastAPI's HTTPException": ({fastapi.HTTPException: theirs}, THEIRS),
    "429": ({429: theirs}, THEIRS),
    "delegating": ({HTTPException: delegating}, DETAIL),
    "broken": ({HTTPException: broken}, PROBLEM),
}
"""Handlers of an application, and which answer a client gets that is refused there."""


class Site:
    """What a place is made of: the limit, the endpoint that it holds, and the handlers of its application."""

    def __init__(self, handlers: dict[Any, Any]) -> None:
        self.limit = RateLimit(LIMITS)
        self.depends = [Depends(self.limit)]
        self.options: dict[str, Any] = {"exception_handlers": handlers, "middleware": [MIDDLEWARE]}
        self.handlers = handlers
        self.ran: list[int] = []

    async def page(self, request: Request) -> Response:
        self.ran.append(1)
        return PlainTextResponse("page")

    async def check(self, request: HTTPConnection) -> None:
        await self.limit.check(request)

    def fastapi(self, endpoint: Any, **options: Any) -> FastAPI:
        app = FastAPI(**self.options)
        app.get("/", **options)(endpoint)
        return app


def at(form: Any) -> Callable[[Site], ASGIApp]:
    """Return one of the forms of a limit as a place."""

    def made(site: Site) -> ASGIApp:
        return form(site.limit, site.page, **site.options)  # type: ignore[no-any-return]

    made.__name__ = form.__name__
    return made


dependency = at(limited.dependency)


def check_in_the_endpoint(site: Site) -> ASGIApp:
    async def page(request: Request) -> Response:
        await site.check(request)
        return await site.page(request)

    return Starlette(routes=[Route("/", page)], **site.options)


def plain(site: Site, checking: Callable[[HTTPConnection], Any] | None = None) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        await (checking or site.check)(request)
        await (await site.page(request))(scope, receive, send)

    return app


def middleware_at_the_route(site: Site) -> ASGIApp:
    routes = [Route("/", site.limit(site.page), middleware=[MIDDLEWARE])]
    return Starlette(routes=routes, exception_handlers=site.handlers)


async def passing(request: Request, call_next: Any) -> Response:
    return await call_next(request)  # type: ignore[no-any-return]


def copying(app: ASGIApp) -> ASGIApp:
    async def copied(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope}, receive, send)

    return copied


def below_middlewares_of_others(site: Site) -> ASGIApp:
    site.options["middleware"] += [Middleware(BaseHTTPMiddleware, dispatch=passing), Middleware(copying)]
    return dependency(site)


def task_groups_in_plain_asgi(site: Site) -> ASGIApp:
    async def nested(request: HTTPConnection) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(in_a_task_group(site, request))

    return Starlette(routes=[Mount("/", plain(site, nested))], **site.options)


async def in_a_task_group(site: Site, request: HTTPConnection) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(site.check, request)
        tasks.start_soon(anyio.sleep, 0)


ORDINARY = [
    *map(at, limited.EACH),
    check_in_the_endpoint,
    middleware_at_the_route,
    below_middlewares_of_others,
    task_groups_in_plain_asgi,
]
"""Where the handlers of the application answer."""


def handlers_of_the_outer_application(site: Site) -> ASGIApp:
    inner = FastAPI()
    inner.get("/", dependencies=site.depends)(site.page)
    return FastAPI(routes=[Mount("/", inner)], **site.options)


def no_framework(site: Site) -> ASGIApp:
    return RateLimitMiddleware(plain(site), rules=[])


UNASKED = [handlers_of_the_outer_application, no_framework]
"""Where Starlette asks no handler of the application for any `HTTPException`, so none is asked for a refusal."""


def kind_of(answer: Answer) -> str:
    if answer.headers["content-type"] == "application/problem+json":
        assert answer.status == json.loads(answer.body)["status"] == 429
        return PROBLEM
    if answer.body == THEIRS.encode():
        assert answer.status == 418
        return THEIRS
    assert answer.status == 429
    assert list(json.loads(answer.body)) == ["detail"]
    return DETAIL


def check_fields(answer: Answer) -> None:
    """Check the fields that every answer to a refused request has; `Answer.headers` fails if one comes twice."""
    assert 3_000 < int(answer.headers["retry-after"]) <= 3_600
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["ratelimit"].startswith('"')


async def refused(where: Callable[[Site], ASGIApp], site: Site) -> tuple[Answer, BaseException | None]:
    """Return the answer to the second request of two."""
    app = where(site)
    first, error = await attempt(app)
    assert (first.status, error, len(site.ran)) == (200, None, 1)
    answer, error = await attempt(app)
    assert len(site.ran) == 1, "a limited endpoint never runs after a refusal"
    check_fields(answer)
    return answer, error


@pytest.mark.parametrize("name", HANDLERS)
@pytest.mark.parametrize("where", ORDINARY, ids=lambda where: where.__name__)
async def test_a_users_handler_is_obeyed_and_else_problem_details_answer(where: Any, name: str) -> None:
    handlers, expected = HANDLERS[name]
    answer, error = await refused(where, Site(handlers))
    assert kind_of(answer) == expected
    assert type(error) is (ZeroDivisionError if name == "broken" else type(None)), "no bug is hidden"


@pytest.mark.parametrize("name", HANDLERS)
@pytest.mark.parametrize("where", UNASKED, ids=lambda where: where.__name__)
async def test_problem_details_answer_where_starlette_asks_no_handler(where: Any, name: str) -> None:
    answer, error = await refused(where, Site(HANDLERS[name][0]))
    assert (kind_of(answer), error) == (PROBLEM, None)


async def test_the_exception_says_all_that_a_handler_may_want() -> None:
    caught: list[Any] = []

    async def handler(request: Request, error: Any) -> Response:
        caught.append(error)
        return JSONResponse({"mine": error.detail}, error.status_code, headers=error.headers)

    answer, _ = await refused(dependency, Site({RateLimitExceeded: handler}))
    (error,) = caught
    assert isinstance(error, (RateLimitExceeded, SlidegateError))
    assert isinstance(error, HTTPException)
    assert (error.decision.allowed, error.decision.checks[0][0].limits) == (False, RateLimit(LIMITS).rule.limits)
    assert (answer.status, error.retry_after_s) == (429, pytest.approx(3_600, abs=2))
    assert json.loads(answer.body)["mine"] == "No more than 1 per 1h; Retry-After says when to try again."


def swallowing(site: Site, after: Exception | None) -> Any:
    async def needed() -> AsyncIterator[None]:
        try:
            yield
        except Exception:
            if after:
                raise after from None

    return site.fastapi(site.page, dependencies=[Depends(needed), *site.depends])


@pytest.mark.parametrize("name", HANDLERS)
async def test_a_dependency_that_swallows_the_exception_gives_way_to_the_refusal(name: str) -> None:
    answer, error = await refused(lambda site: swallowing(site, None), Site(HANDLERS[name][0]))
    assert (kind_of(answer), type(error).__name__) == (PROBLEM, "FastAPIError")


async def test_a_dependency_that_makes_another_answer_of_it_has_its_way() -> None:
    answer, error = await refused(lambda site: swallowing(site, fastapi.HTTPException(503)), Site({}))
    assert (answer.status, error) == (503, None)
    answer, error = await refused(lambda site: swallowing(site, ZeroDivisionError()), Site({}))
    assert (kind_of(answer), type(error)) == (PROBLEM, ZeroDivisionError)


async def test_who_raises_something_else_over_it_gets_it_logged_and_the_client_the_refusal() -> None:
    async def raised(request: HTTPConnection) -> None:
        try:
            await site.check(request)
        except Exception as error:
            raise LookupError("wrapped") from error

    async def beside(request: HTTPConnection) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(site.check(request))
            if site.ran:
                tasks.create_task(fail())

    async def fail() -> None:
        raise ZeroDivisionError

    for way, kind in ((raised, LookupError), (beside, ExceptionGroup)):
        site = Site({})
        answer, error = await refused(lambda site, way=way: RateLimitMiddleware(plain(site, way), rules=[]), site)
        assert (kind_of(answer), type(error)) == (PROBLEM, kind)


@pytest.mark.parametrize("name", ["none", "RateLimitExceeded", "delegating"])
async def test_strikes_follow_from_the_refusal_and_not_from_its_status(name: str) -> None:
    limiter = Limiter()
    site = Site(HANDLERS[name][0])
    policy = BanPolicy("2/10m", "1h", signals={"refused": 1, 500: 1, 418: "ban"})
    site.options["middleware"] = [Middleware(RateLimitMiddleware, rules=[], limiter=limiter, bans=policy)]
    app = dependency(site)
    banned = []
    for _ in range(3):
        await attempt(app)
        banned.append(await limiter.banned(PEER) is not None)
    assert banned == [False, False, True]


async def test_a_cancelled_request_is_not_answered() -> None:
    site = Site({})

    async def page(request: Request) -> Response:
        with suppress(RateLimitExceeded):
            await site.check(request)
        raise asyncio.CancelledError

    app = Starlette(routes=[Route("/", page)], **site.options)
    for _ in range(2):
        with pytest.raises(asyncio.CancelledError):
            await send_scope(app, scope_of())


async def talk(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.close()


def socket_dependency(site: Site) -> ASGIApp:
    app = FastAPI(**site.options)
    app.websocket("/", dependencies=site.depends)(talk)
    return app


def socket_class(site: Site) -> ASGIApp:
    class Talk(WebSocketEndpoint):
        async def dispatch(self) -> None:
            await talk(WebSocket(self.scope, self.receive, self.send))

    return Starlette(routes=[WebSocketRoute("/", site.limit(Talk))], **site.options)


@pytest.mark.parametrize("name", ["none", "RateLimitExceeded", "429"])
@pytest.mark.parametrize("where", [socket_dependency, socket_class], ids=lambda where: where.__name__)
async def test_a_handshake_is_refused_with_the_same_answer_or_by_a_close(where: Any, name: str) -> None:
    handlers, expected = HANDLERS[name]
    app = where(Site(handlers))
    denial = {"extensions": {"websocket.http.response": {}}}
    messages = (await send_scope(app, scope_of(type="websocket", **denial))).messages
    assert [message["type"] for message in messages] == ["websocket.accept", "websocket.close"]
    answer, error = await attempt(app, type="websocket", **denial)
    assert (kind_of(answer), error) == (expected, None)
    check_fields(answer)
    if expected == PROBLEM:
        answer, error = await attempt(app, type="websocket")
        assert (answer.messages, error) == ([{"type": "websocket.close", "code": 1008}], None)


async def test_an_accepted_websocket_is_closed_to_try_again_later() -> None:
    site = Site({RateLimitExceeded: theirs})

    async def late(websocket: WebSocket) -> None:
        await websocket.accept()
        for _ in range(2):
            await site.check(websocket)
            site.limit = RateLimit(LIMITS, name="other")
        await websocket.close()

    app = Starlette(routes=[WebSocketRoute("/", late)], **site.options)
    answers = [await send_scope(app, scope_of(type="websocket")) for _ in range(2)]
    assert [message.get("code") for message in answers[1].messages] == [None, 1013]
