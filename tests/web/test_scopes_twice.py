"""A scope that is used twice, by a retry or a fallback further out, is two requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule, everyone, settle
from slidegate.testing import FakeClock, RecordingObserver

from ..asgi import Answer, call, hello, page, scope_of, send_scope

BOUND_S = 60


class Broken(Exception):
    """Stands for any failure of an application."""


class Failing:
    """Ends its first use in some way, and serves from then on."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.used = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.used += 1
        if self.used > 1:
            await hello(scope, receive, send)
        elif self.way == "raises":
            raise Broken
        elif self.way == "hangs":
            await asyncio.Event().wait()
        elif self.way == "answers 503":
            await PlainTextResponse("try again", 503)(scope, receive, send)


class Fallback:
    """Uses a scope for a first application, and where nothing good comes of it, for a second: the very same dict."""

    def __init__(self, first: ASGIApp, second: ASGIApp) -> None:
        self.first = first
        self.second = second

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kept: list[Message] = []

        async def keep(message: Message) -> None:
            kept.append(message)

        task = asyncio.ensure_future(self.first(scope, receive, keep))
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(Broken, asyncio.CancelledError):
            await task
        if kept and kept[0]["status"] < 400:
            for message in kept:
                await send(message)
        else:
            await self.second(scope, receive, send)


def limiter(*observers: Any) -> Limiter:
    return Limiter(MemoryStore(clock=FakeClock()), observers=observers)


def retrying(app: ASGIApp, *rules: Rule, limiter: Limiter) -> Fallback:
    """Return an application that is used a second time, with all that stands before it."""
    middleware = RateLimitMiddleware(app, rules=rules, limiter=limiter)
    return Fallback(middleware, middleware)


WAYS = ["raises", "hangs", "answers 503", "is silent"]
NAMED = pytest.mark.parametrize("name", [None, "it"])


@NAMED
@pytest.mark.parametrize("way", WAYS)
async def test_the_second_use_is_counted_and_its_answer_says_so(way: str, name: str | None) -> None:
    app = retrying(Failing(way), Rule("*", "9/minute", name=name), limiter=limiter())
    answer = await call(app)
    assert answer.status == 200
    assert ";r=7;" in answer.headers["ratelimit"]
    assert ";r=6;" in (await call(app)).headers["ratelimit"]


@pytest.mark.parametrize("name", [None, "it"])
@pytest.mark.parametrize("way", WAYS)
async def test_the_second_use_gives_its_permit_back(way: str, name: str | None) -> None:
    app = retrying(Failing(way), Rule("*", concurrency=1, name=name), limiter=limiter())
    assert [(await call(app)).status for _ in range(3)] == [200] * 3


@NAMED
async def test_observers_hear_that_the_second_use_is_refused(name: str | None) -> None:
    heard = RecordingObserver()
    app = retrying(Failing("answers 503"), Rule("*", "1/minute", name=name), limiter=limiter(heard))
    answer = await call(app)
    assert answer.status == 429
    assert heard.kinds == ["refused"]
    assert heard.events[0].details["status"] == 429
    assert ";r=0;" in answer.headers["ratelimit"]


async def settled_later(begin: Callable[[Request], Request]) -> tuple[Answer, Answer]:
    """Settle a request with 3 units instead of 40, long after its answer; return that answer and the next one."""
    shared = limiter()
    answered = asyncio.Event()
    tasks: list[asyncio.Task[Any]] = []

    async def later(request: Request) -> None:
        await answered.wait()
        assert await settle(request, 3, rule="tokens")

    async def chat(request: Request) -> PlainTextResponse:
        tasks.append(asyncio.create_task(later(begin(request))))
        return PlainTextResponse("begun")

    rule = Rule("/", "100/hour", key=everyone, cost=lambda request: 40, cost_max=40, name="tokens")
    middleware = Middleware(RateLimitMiddleware, rules=[rule], limiter=shared)
    app = Starlette(routes=[Route("/", chat)], middleware=[middleware])
    first = await call(app)
    answered.set()
    async with asyncio.timeout(BOUND_S):
        await tasks[0]
    second = await call(app)
    tasks[1].cancel()
    return first, second


@pytest.mark.parametrize(
    "begin", [lambda request: request, lambda request: Request({**request.scope})], ids=["request", "copy"]
)
async def test_a_task_that_outlives_the_answer_may_settle_what_was_reserved(begin: Any) -> None:
    first, second = await settled_later(begin)
    assert first.headers["ratelimit"].startswith('"tokens";r=60;')
    assert second.headers["ratelimit"].startswith('"tokens";r=57;')


async def test_a_copy_of_a_scope_is_a_request_of_its_own_where_the_first_has_ended() -> None:
    middleware = RateLimitMiddleware(page_of, rules=[Rule("*", "9/minute", name="it")], limiter=limiter())
    scope = scope_of()
    before = {**scope}
    assert ";r=8;" in (await send_scope(middleware, scope)).headers["ratelimit"]
    assert ";r=7;" in (await send_scope(middleware, before)).headers["ratelimit"]


page_of = Starlette(routes=[Route("/", page)])
