"""What is handed back is handed back in full, whoever cancels the request meanwhile, and in whatever way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from slidegate import BanPolicy, Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule
from slidegate.testing import FakeClock

from ..asgi import PEER, call, hello, scope_of, send_scope
from ..remote_stores import RemoteStore

BOUND_S = 20


class Distant(RemoteStore):
    """A store that answers some calls only when it is let: as one does to which the way is long."""

    def __init__(self) -> None:
        super().__init__(FakeClock())
        self.held = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()

    async def when_let(self, question: Callable[..., Any], *arguments: Any) -> Any:
        self.held.set()
        await self.open.wait()
        return question(*arguments)

    def answer(self, question: Callable[..., Any], *arguments: Any) -> Any:
        slow = question in (self.inner.refund, self.inner.bans.strike)
        return self.when_let(question, *arguments) if slow else question(*arguments)


async def page(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hi", 500 if request.url.query else 200)


def at_an_endpoint(limiter: Limiter) -> Any:
    middleware = Middleware(RateLimitMiddleware, rules=[Rule("*", "9/hour", name="outer")], limiter=limiter)
    return Starlette(routes=[Route("/", RateLimit("1/hour")(page))], middleware=[middleware])


def in_an_inner_middleware(limiter: Limiter) -> Any:
    inner = RateLimitMiddleware(hello, rules=[Rule("*", "1/hour", name="inner")], limiter=limiter)
    return RateLimitMiddleware(inner, rules=[Rule("*", "9/hour", name="outer")], limiter=limiter)


def in_several_rules(limiter: Limiter) -> Any:
    inner = RateLimitMiddleware(hello, rules=[Rule("*", "1/hour", name="inner")], limiter=limiter)
    rules = [Rule("*", "9/hour", name="outer"), Rule("*", "90/hour", name="second"), Rule("*", "90/day", name="third")]
    return RateLimitMiddleware(inner, rules=rules, limiter=limiter)


WAYS = [at_an_endpoint, in_an_inner_middleware, in_several_rules]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("how", ["task", "twice", "anyio", "timeout"])
async def test_what_a_refusal_hands_back_comes_back_also_when_it_is_cancelled(way: Any, how: str) -> None:
    store = Distant()
    limiter = Limiter(store, deadline="20s")
    app = way(limiter)
    assert (await call(app)).status == 200
    store.open.clear()

    async def cancelled() -> None:
        if how == "anyio":
            with anyio.CancelScope() as scope:
                ours.append(scope)
                await call(app)
        elif how == "timeout":
            with suppress(TimeoutError):
                async with asyncio.timeout(None) as timeout:
                    limits.append(timeout)
                    await call(app)
        else:
            await call(app)

    ours: list[anyio.CancelScope] = []
    limits: list[asyncio.Timeout] = []
    async with asyncio.timeout(BOUND_S):
        waiting = asyncio.create_task(cancelled())
        await store.held.wait()
        assert await left(store) == 7, "charged, and not yet handed back"
        if how == "anyio":
            ours[0].cancel()
        elif how == "timeout":
            limits[0].reschedule(asyncio.get_running_loop().time())
        else:
            waiting.cancel()
            if how == "twice":
                await asyncio.sleep(0)
                waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting  # the request does not wait for the store
        store.open.set()
        await until_left(store, 8)


async def until_left(store: Distant, units: int) -> None:
    while await left(store) != units:  # noqa: ASYNC110 - what is waited for tells nobody
        await asyncio.sleep(0)


async def left(store: Distant) -> int:
    """Return what is left of the outer limit; nothing where the client is banned."""
    decision = await Limiter(store.inner).peek(PEER, "9/hour", 0, rule="outer")
    return decision.remaining or 0


NOT_COUNTED: dict[str, Any] = {"rules": [Rule("*", "9/hour", name="outer", count_if=lambda status: status == 401)]}
STRUCK: dict[str, Any] = {"rules": [], "bans": BanPolicy("1/10m", "1h", signals={200: 1})}


@pytest.mark.parametrize("options", [NOT_COUNTED, STRUCK], ids=["a hand-back by status", "a strike"])
async def test_what_follows_from_a_status_is_done_also_when_the_request_is_cancelled(options: dict[str, Any]) -> None:
    store = Distant()
    store.open.clear()
    app = RateLimitMiddleware(hello, limiter=Limiter(store, deadline="20s"), **options)
    async with asyncio.timeout(BOUND_S):
        waiting = asyncio.create_task(call(app))
        await store.held.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        store.open.set()
        await until_left(store, 0 if options is STRUCK else 9)


def test_under_trio_all_of_it_is_done_too() -> None:
    async def main() -> tuple[int, int]:
        limiter = Limiter(MemoryStore(clock=FakeClock()))
        app = at_an_endpoint(limiter)
        statuses = [(await send_scope(app, scope_of())).status for _ in range(2)]
        assert statuses == [200, 429]
        decision = await limiter.peek(PEER, "9/hour", 0, rule="outer")
        return statuses[1], decision.remaining or 0

    assert anyio.run(main, backend="trio") == (429, 8)
