"""What a client gets that a limit at an endpoint refuses: the application answers, the middleware completes it."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

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

from slidegate import (
    Limiter,
    RateLimit,
    RateLimitExceeded,
    RateLimitMiddleware,
    SlidegateError,
    rate_limit_exceeded,
)

from ..asgi import Answer, scope_of, send_scope
from . import limited

MIDDLEWARE = Middleware(RateLimitMiddleware)
LIMITS = "1/hour"
SENTENCE = "No more than 1 per 1h; Retry-After says when to try again."
FRAMEWORKS, THEIRS, PROBLEM = "the framework's answer", "the user's answer", "problem details"


async def theirs(request: Request, error: Exception) -> Response:
    return PlainTextResponse(THEIRS, 418)


async def delegating(request: Request, error: Any) -> Response:
    return await http_exception_handler(request, error)


HANDLERS: dict[str, tuple[dict[Any, Any], str]] = {
    "none": ({}, FRAMEWORKS),
    "Exception": ({Exception: theirs}, FRAMEWORKS),
    "FastAPI's own HTTPException": ({fastapi.HTTPException: theirs}, FRAMEWORKS),
    "Starlette's HTTPException": ({HTTPException: theirs}, THEIRS),
    "429": ({429: theirs}, THEIRS),
    "SlidegateError": ({SlidegateError: theirs}, THEIRS),
    "RateLimitExceeded": ({RateLimitExceeded: theirs}, THEIRS),
    "rate_limit_exceeded": ({RateLimitExceeded: rate_limit_exceeded}, PROBLEM),
    "delegating": ({HTTPException: delegating}, FRAMEWORKS),
}
"""Handlers of an application, and which answer a client gets that is refused there."""


class Site:
    """What an application is made of: a limit, the endpoint that has it, and the options of the application."""

    def __init__(self, handlers: dict[Any, Any], **middleware: Any) -> None:
        self.limit = RateLimit(LIMITS)
        self.handlers = handlers
        self.middleware = [Middleware(RateLimitMiddleware, **middleware)]
        self.ran = 0

    @property
    def options(self) -> dict[str, Any]:
        return {"exception_handlers": self.handlers, "middleware": self.middleware}

    async def page(self, request: Request) -> Response:
        self.ran += 1
        return PlainTextResponse("page")

    async def checking(self, request: Request) -> Response:
        await self.limit.check(request)
        return await self.page(request)


def form(made: Any) -> Callable[[Site], ASGIApp]:
    """Return one of the forms of a limit as an application."""

    def app(site: Site) -> ASGIApp:
        return made(site.limit, site.page, **site.options)  # type: ignore[no-any-return]

    app.__name__ = made.__name__
    return app


dependency = form(limited.dependency)


def checked_in_the_endpoint(site: Site) -> ASGIApp:
    return Starlette(routes=[Route("/", site.checking)], **site.options)


def middleware_at_the_route(site: Site) -> ASGIApp:
    route = Route("/", site.limit(site.page), middleware=[MIDDLEWARE])
    return Starlette(routes=[route], exception_handlers=site.handlers)


def nested_middlewares(site: Site) -> ASGIApp:
    site.middleware *= 2
    return dependency(site)


def mounted(site: Site) -> ASGIApp:
    inner = FastAPI(exception_handlers=site.handlers)
    inner.get("/", dependencies=[Depends(site.limit)])(site.page)
    return Starlette(routes=[Mount("/", inner)], middleware=site.middleware)


async def passing(request: Request, call_next: Any) -> Response:
    return await call_next(request)  # type: ignore[no-any-return]


class Copying:
    """A middleware that copies the scope, as those of monitoring do."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app({**scope}, receive, send)


def below_middlewares_of_others(site: Site) -> ASGIApp:
    site.middleware += [Middleware(BaseHTTPMiddleware, dispatch=passing), Middleware(Copying)]
    return dependency(site)


WHERE = [
    *map(form, limited.EACH),
    checked_in_the_endpoint,
    middleware_at_the_route,
    nested_middlewares,
    mounted,
    below_middlewares_of_others,
]


def kind_of(answer: Answer) -> str:
    if dict(answer.start["headers"])[b"content-type"] == b"application/problem+json":
        assert answer.status == json.loads(answer.body)["status"] == 429
        assert json.loads(answer.body)["detail"] == SENTENCE
        return PROBLEM
    if answer.body == THEIRS.encode():
        assert answer.status == 418
        return THEIRS
    assert answer.status == 429
    assert answer.body.decode() in (SENTENCE, json.dumps({"detail": SENTENCE}, separators=(",", ":")))
    return FRAMEWORKS


def check_fields(answer: Answer) -> None:
    """Check the fields that every answer to a refused request has, each once."""
    names = [name.lower() for name, _ in answer.start["headers"]]
    assert [names.count(name) for name in (b"retry-after", b"cache-control")] == [1, 1]
    fields = dict(answer.start["headers"])
    assert 3_000 < int(fields[b"retry-after"]) <= 3_600
    assert fields[b"cache-control"] == b"no-store"
    assert fields[b"ratelimit"].startswith(b'"')


async def ask(app: ASGIApp, **more: Any) -> Answer:
    return await send_scope(app, scope_of(**more))


async def refused(where: Callable[[Site], ASGIApp], site: Site, **more: Any) -> Answer:
    """Return the answer to the second request of two. The server has nothing to log: no exception reaches it."""
    app = where(site)
    await ask(app, **more)
    ran = site.ran
    answer = await ask(app, **more)
    assert site.ran == ran, "a refused endpoint does not run"
    check_fields(answer)
    return answer


@pytest.mark.parametrize("name", HANDLERS)
@pytest.mark.parametrize("where", WHERE, ids=lambda where: where.__name__)
async def test_the_application_answers_a_refusal_at_its_endpoint(where: Any, name: str) -> None:
    handlers, expected = HANDLERS[name]
    assert kind_of(await refused(where, Site(handlers))) == expected


async def test_rate_limit_exceeded_answers_what_limited_raises_in_an_endpoint() -> None:
    limiter = Limiter()

    async def page(request: Request) -> Response:
        async with limiter.limited(LIMITS, key="smtp"):
            return PlainTextResponse("sent")

    app = Starlette(routes=[Route("/", page)], **Site({RateLimitExceeded: rate_limit_exceeded}).options)
    answers = [await ask(app) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    assert 3_000 < int(answers[1].headers["retry-after"]) <= 3_600


async def test_the_exception_says_all_that_a_handler_may_want() -> None:
    caught: list[Any] = []

    async def handler(request: Request, error: Any) -> Response:
        caught.append(error)
        return JSONResponse({"mine": error.detail}, error.status_code, headers=error.headers)

    answer = await refused(dependency, Site({RateLimitExceeded: handler}))
    (error,) = caught
    assert isinstance(error, (RateLimitExceeded, SlidegateError))
    assert isinstance(error, HTTPException)
    assert (error.decision.allowed, error.decision.checks[0][0].limits) == (False, RateLimit(LIMITS).rule.limits)
    assert (answer.status, error.retry_after_s) == (429, pytest.approx(3_600, abs=2))
    assert json.loads(answer.body)["mine"] == SENTENCE


async def test_a_dependency_that_makes_another_answer_of_it_has_its_way() -> None:
    def swallowing(site: Site) -> ASGIApp:
        async def needed() -> Any:
            try:
                yield
            except Exception:
                raise fastapi.HTTPException(503) from None

        app = FastAPI(**site.options)
        app.get("/", dependencies=[Depends(needed), Depends(site.limit)])(site.page)
        return app

    assert (await refused(swallowing, Site({}))).status == 503


# -- websockets --------------------------------------------------------------------------------------------------------


async def talk(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.close()


def socket_dependency(site: Site) -> ASGIApp:
    app = FastAPI(**site.options)
    app.websocket("/", dependencies=[Depends(site.limit)])(talk)
    return app


def socket_class(site: Site) -> ASGIApp:
    class Talk(WebSocketEndpoint):
        async def dispatch(self) -> None:
            await talk(WebSocket(self.scope, self.receive, self.send))

    return Starlette(routes=[WebSocketRoute("/", site.limit(Talk))], **site.options)


@pytest.mark.parametrize("name", ["none", "RateLimitExceeded", "429", "rate_limit_exceeded"])
@pytest.mark.parametrize("where", [socket_dependency, socket_class], ids=lambda where: where.__name__)
async def test_before_accept_a_websocket_gets_the_same_answer_or_a_close(where: Any, name: str) -> None:
    handlers, expected = HANDLERS[name]
    denial = {"extensions": {"websocket.http.response": {}}}
    assert kind_of(await refused(where, Site(handlers), type="websocket", **denial)) == expected
    app = where(Site(handlers))
    answers = [await ask(app, type="websocket") for _ in range(2)]
    assert [(message["type"], message["code"]) for message in answers[1].messages] == [("websocket.close", 1008)]


async def test_an_accepted_websocket_is_closed_with_try_again_later() -> None:
    site = Site({RateLimitExceeded: theirs})

    async def late(websocket: WebSocket) -> None:
        await websocket.accept()
        await site.limit.check(websocket)
        await websocket.close()

    app = Starlette(routes=[WebSocketRoute("/", late)], **site.options)
    answers = [await ask(app, type="websocket") for _ in range(2)]
    assert [message.get("code") for message in answers[0].messages] == [None, 1000]
    assert [message.get("code") for message in answers[1].messages] == [None, 1013]


async def test_a_cancelled_request_is_not_answered() -> None:
    site = Site({})

    async def page(request: HTTPConnection) -> Response:
        try:
            await site.limit.check(request)
        except RateLimitExceeded:
            raise asyncio.CancelledError from None
        return PlainTextResponse("page")

    app = Starlette(routes=[Route("/", page)], **site.options)
    assert (await ask(app)).status == 200
    with pytest.raises(asyncio.CancelledError):
        await ask(app)
