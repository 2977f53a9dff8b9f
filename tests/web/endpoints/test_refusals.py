"""A refusal of an endpoint's limit reaches the client, whatever the application makes of the exception on its way."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest
from fastapi import Depends, FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from slidegate import BanPolicy, Limiter, LimitExceeded, RateLimit, RateLimitMiddleware

from ...asgi import call, scope_of, send_scope

GATE = Middleware(RateLimitMiddleware, rules=[])
LIMIT = RateLimit("1/hour")


async def check(request: HTTPConnection) -> None:
    await LIMIT.check(request)


# -- what applications make of the exception ------------------------------------------------------------------------


async def in_a_task_group(request: Request) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(check, request)
        tasks.start_soon(anyio.sleep, 0)


async def in_nested_groups(request: Request) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(in_a_task_group(request))


async def raised_from(request: Request) -> None:
    try:
        await check(request)
    except Exception as error:
        raise RuntimeError("wrapped") from error


async def swallowed_by_a_context(request: Request) -> None:
    with suppress(Exception):
        await check(request)


async def swallowed_and_broken_later(request: Request) -> None:
    await swallowed_by_a_context(request)
    raise ZeroDivisionError


TROUBLES = [
    check,
    in_nested_groups,
    raised_from,
    swallowed_by_a_context,
    swallowed_and_broken_later,
]


def in_starlette(trouble: Any) -> ASGIApp:
    async def page(request: Request) -> Response:
        await trouble(request)
        return PlainTextResponse("hi")

    return Starlette(routes=[Route("/", page)], middleware=[GATE])


def in_a_dependency(trouble: Any) -> ASGIApp:
    app = FastAPI(middleware=[GATE])
    app.get("/", dependencies=[Depends(needing(trouble))])(lambda: "hi")
    return app


def needing(trouble: Any) -> Callable[..., Any]:
    async def needed(request: HTTPConnection) -> None:
        await trouble(request)

    return needed


SITES = [in_starlette, in_a_dependency]


@pytest.mark.parametrize("site", SITES, ids=lambda site: site.__name__)
@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.__name__)
async def test_the_refusal_goes_out_whatever_becomes_of_its_exception(site: Any, trouble: Any) -> None:
    async def well(request: Request) -> None:
        await (check if first else trouble)(request)

    app, first = site(well), True
    assert (await call(app)).status == 200
    first = False
    for _ in range(2):
        answer = await call(app)
        assert (answer.status, json.loads(answer.body)["status"]) == (429, 429)
        assert answer.headers["retry-after"] in ("3599", "3600")
        assert [message["type"] for message in answer.messages] == ["http.response.start", "http.response.body"]


async def test_a_websocket_whose_refusal_is_wrapped_is_refused_at_its_handshake() -> None:
    app = FastAPI(middleware=[GATE])

    async def talk(socket: WebSocket) -> None:
        await socket.close()

    app.websocket("/", dependencies=[Depends(needing(in_a_task_group))])(talk)
    await send_scope(app, scope_of(type="websocket", extensions={}))
    answer = await send_scope(app, scope_of(type="websocket", extensions={"websocket.http.response": {}}))
    assert answer.status == 429


async def test_what_failed_beside_a_refusal_is_logged_and_no_strike_for_a_500(caplog: Any) -> None:
    limiter = Limiter()
    policy = BanPolicy("2/10m", "1h", signals={500: 1})

    async def page(request: Request) -> Response:
        await swallowed_and_broken_later(request)
        return PlainTextResponse("hi")

    gate = Middleware(RateLimitMiddleware, rules=[], limiter=limiter, bans=policy)
    app = Starlette(routes=[Route("/", page)], middleware=[gate])
    with pytest.raises(ZeroDivisionError):
        await call(app)  # not refused: the failure is the application's, and goes its way
    for _ in range(5):
        assert (await call(app)).status == 429
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len([text for text in told if "ZeroDivisionError" in text]) == 1, "once a minute"
    assert await limiter.banned("203.0.113.9") is None


async def test_a_refusal_that_carries_nothing_else_is_not_an_error_in_the_log(caplog: Any) -> None:
    for trouble in (in_nested_groups, raised_from):
        app = in_starlette(trouble)
        with suppress(Exception):
            await call(app)
        assert (await call(app)).status == 429
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_limit_that_refuses_after_the_answer_has_begun_is_the_applications_failure() -> None:
    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await in_a_task_group(Request(scope, receive))

    app = RateLimitMiddleware(late, rules=[])
    await call(app)
    with pytest.raises(ExceptionGroup) as caught:
        await call(app)
    assert caught.group_contains(LimitExceeded)


async def test_a_cancelled_request_is_not_answered() -> None:
    async def page(request: Request) -> Response:
        with suppress(LimitExceeded):
            await check(request)
        raise asyncio.CancelledError

    app = Starlette(routes=[Route("/", page)], middleware=[GATE])
    for _ in range(2):
        with pytest.raises(asyncio.CancelledError):
            await call(app)
