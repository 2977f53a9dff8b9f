"""What is handed back is handed back in full, whoever cancels the request meanwhile, and in whatever way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from slidegate import BanPolicy, Limiter, RateLimitMiddleware, Rule
from slidegate.testing import FakeClock

from ..asgi import PEER, call, hello
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
