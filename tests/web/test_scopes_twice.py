"""A scope that is used twice, by a retry or a fallback further out, is two requests."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule, everyone, settle
from slidegate.testing import FakeClock, RecordingObserver

from ..asgi import call, hello, scope_of, send_scope

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


class Twice:
    """Uses a scope for an application, and where nothing good comes of it, once more: the very same dict."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kept: list[Message] = []

        async def keep(message: Message) -> None:
            kept.append(message)

        task = asyncio.ensure_future(self.app(scope, receive, keep))
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(Broken, asyncio.CancelledError):
            await task
        if kept and kept[0]["status"] < 400:
            for message in kept:
                await send(message)
        else:
            await self.app(scope, receive, send)


def limiter(*observers: Any) -> Limiter:
    return Limiter(MemoryStore(clock=FakeClock()), observers=observers)


def retrying(way: str, rule: Rule, *observers: Any) -> Twice:
    """Return an application that is used a second time, with all that stands before it."""
    return Twice(RateLimitMiddleware(Failing(way), rules=[rule], limiter=limiter(*observers)))


@pytest.mark.parametrize("name", [None, "it"])
@pytest.mark.parametrize("way", ["raises", "hangs", "answers 503", "is silent"])
async def test_the_second_use_is_counted_and_gives_its_permit_back(way: str, name: str | None) -> None:
    app = retrying(way, Rule("*", "9/minute", concurrency=1, name=name))
    answers = [await call(app) for _ in range(3)]
    assert [answer.status for answer in answers] == [200] * 3
    left = [answer.headers["ratelimit"].rpartition(";r=")[2].partition(";")[0] for answer in answers]
    assert left == ["7", "6", "5"]


@pytest.mark.parametrize("name", [None, "it"])
async def test_observers_hear_that_the_second_use_is_refused(name: str | None) -> None:
    heard = RecordingObserver()
    answer = await call(retrying("answers 503", Rule("*", "1/minute", name=name), heard))
    assert (answer.status, heard.kinds) == (429, ["refused"])
    assert heard.events[0].details["status"] == 429
    assert ";r=0;" in answer.headers["ratelimit"]


@pytest.mark.parametrize("copy", [False, True])
async def test_a_task_that_outlives_the_answer_may_settle_what_was_reserved(copy: bool) -> None:
    answered = asyncio.Event()
    tasks: list[asyncio.Task[bool]] = []

    async def later(request: Request) -> bool:
        await answered.wait()
        return await settle(request, 3, rule="tokens")

    async def chat(request: Request) -> PlainTextResponse:
        tasks.append(asyncio.create_task(later(Request({**request.scope}) if copy else request)))
        return PlainTextResponse("begun")

    rule = Rule("/", "100/hour", key=everyone, cost=lambda request: 40, cost_max=40, name="tokens")
    app = RateLimitMiddleware(Starlette(routes=[Route("/", chat)]), rules=[rule], limiter=limiter())
    assert (await call(app)).headers["ratelimit"].startswith('"tokens";r=60;')
    answered.set()
    assert await asyncio.wait_for(tasks[0], BOUND_S)
    assert (await call(app)).headers["ratelimit"].startswith('"tokens";r=57;')
    await asyncio.wait_for(tasks[1], BOUND_S)


async def test_a_copy_of_a_scope_is_a_request_of_its_own_where_the_first_has_ended() -> None:
    middleware = RateLimitMiddleware(hello, rules=[Rule("*", "9/minute", name="it")], limiter=limiter())
    scope = scope_of()
    before = {**scope}
    assert ";r=8;" in (await send_scope(middleware, scope)).headers["ratelimit"]
    assert ";r=7;" in (await send_scope(middleware, before)).headers["ratelimit"]
