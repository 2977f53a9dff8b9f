"""A request waits for its turn, wherever its limit stands: in a rule, or at an endpoint in any form."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import Request, Response
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message

from slidegate import BanPolicy, Limiter, MemoryStore, RateLimit, RateLimitMiddleware
from slidegate.testing import FakeClock

from ..asgi import PEER, call, scope_of, statuses
from ..virtual_time import VirtualTime
from .limited import AT, dependency, limited, middleware_of
from .test_waiting import channel

everywhere = pytest.mark.parametrize("at", AT)


async def _status(middleware: ASGIApp) -> int:
    return (await call(middleware)).status


@everywhere
async def test_a_request_waits_for_its_turn(at: str) -> None:
    middleware = limited(at, "2/50ms", limiter=Limiter(MemoryStore(clock=VirtualTime().clock)), wait="10s")
    assert await asyncio.gather(*(_status(middleware) for _ in range(4))) == [200] * 4
    figures = middleware.limiter.stats()
    assert sum(series.seen.count("occupied_pass") for series in figures.rules.values()) == 2


@everywhere
async def test_no_more_wait_than_may_and_none_longer_than_it_may(at: str) -> None:
    middleware = limited(at, "1/hour", wait="10s")
    assert await statuses(middleware, 2) == [200, 429]
    short = limited(at, "1/100ms", limiter=Limiter(MemoryStore(clock=VirtualTime().clock)), wait="10s", wait_max=1)
    assert sorted(await asyncio.gather(*(_status(short) for _ in range(3)))) == [200, 200, 429]


class Leaving:
    """A client that sends its request, and leaves when it is told to."""

    def __init__(self, body: bytes = b"") -> None:
        self.gone = asyncio.Event()
        self.body = body
        self.asked = 0
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        self.asked += 1
        if self.asked == 1:
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)


@pytest.mark.parametrize("cancelled", [False, True])
@everywhere
async def test_a_client_that_leaves_while_it_waits_is_charged_nothing(at: str, cancelled: bool) -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    middleware = limited(at, "1/10s", limiter=limiter, wait="1h", name="slow")
    assert await statuses(middleware, 1) == [200]
    client = Leaving()
    waiting = asyncio.ensure_future(middleware(scope_of(), client.receive, client.send))
    while not limiter.engine.waits.waiting:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)
    if cancelled:
        waiting.cancel()
    else:
        client.gone.set()
    await asyncio.wait([waiting], timeout=60)
    assert waiting.done()
    assert waiting.cancelled() == cancelled
    assert cancelled or waiting.exception() is None
    assert limiter.engine.waits.waiting == 0
    assert [outcome for outcome, times in limiter.engine.waits.ever().items() if times.count] == ["left"]
    assert (await limiter.peek(PEER, "1/10s", rule="slow")).retry_after_us == 10_000_000
    assert client.sent == []
    figures = limiter.stats()
    assert sum(series.seen.count("cancelled") for series in figures.routes.values()) == 1
    assert sum(series.refused for series in figures.routes.values()) == 0


async def test_a_client_that_leaves_while_it_waits_is_not_struck() -> None:
    policy = BanPolicy("1/minute", signals={"refused": 1, "4xx": 1, "5xx": 1}, ban_private=True)
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    middleware = RateLimitMiddleware(
        dependency(RateLimit("1/10s", wait="1h", name="slow")), rules=[], limiter=limiter, bans=policy
    )
    assert await statuses(middleware, 1) == [200]
    client = Leaving()
    client.gone.set()
    await middleware(scope_of(), client.receive, client.send)
    assert client.sent == []
    assert [ban async for ban in limiter.bans()] == []


async def test_limits_that_are_checked_at_once_keep_their_own_decisions_while_one_waits() -> None:
    slow, quick = RateLimit("1/50ms", wait="10s", name="slow"), RateLimit("5/hour", name="quick")
    seen: list[list[tuple[str, bool]]] = []

    async def page(request: Any) -> Response:
        await asyncio.gather(slow.check(request), quick.check(request))
        decisions = request.scope["slidegate"].decisions
        seen.append(sorted((bucket.rule, one.allowed) for one in decisions for bucket, _, _ in one.checks))
        return PlainTextResponse("page")

    middleware = middleware_of(Starlette(routes=[Route("/", page)]), Limiter())
    assert await statuses(middleware, 2) == [200, 200]
    assert seen == [[("quick", True), ("slow", True)]] * 2


@pytest.mark.parametrize("again", [False, True])
async def test_a_body_is_there_after_two_limits_waited_at_once(again: bool) -> None:
    """Also where one of them was given a request of its own, made of the same channel."""
    one, other = RateLimit("1/50ms", wait="10s", name="one"), RateLimit("1/60ms", wait="10s", name="other")

    async def page(request: Any) -> Response:
        asked = Request(request.scope, request.receive) if again else request
        await asyncio.gather(one.check(request), other.check(asked))
        return PlainTextResponse(await request.body() if not again else await asked.body())

    middleware = middleware_of(Starlette(routes=[Route("/", page, methods=["POST"])]), Limiter())

    async def post() -> bytes:
        client = Leaving()
        await middleware(scope_of(method="POST"), channel(*_body(b"a", b"b")), client.send)
        return b"".join(message.get("body", b"") for message in client.sent)

    assert await asyncio.wait_for(asyncio.gather(post(), post()), 60) == [b"ab", b"ab"]


def _body(*pieces: bytes) -> list[Message]:
    return [{"type": "http.request", "body": piece, "more_body": piece is not pieces[-1]} for piece in pieces]
