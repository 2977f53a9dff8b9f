"""What observers hear of a request: its outcome, once, when its last byte is out, and one event if it is refused."""

from asyncio import CancelledError
from contextlib import suppress
from typing import Any

import anyio
import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from slidegate import Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule
from slidegate.events import Outcome
from slidegate.testing import FakeClock

from ..asgi import PEER, call, hello, scope_of, statuses
from .middlewares import Listener

TIGHT: Any = RateLimit("1/hour", name="tight")


@pytest.mark.parametrize(("passed_us", "took_us"), [(30_000, 30_000), (-1, 0)], ids=["ahead", "back"])
async def test_an_outcome_says_when_a_request_began_how_long_it_took_and_whom_it_counted(
    passed_us: int, took_us: int
) -> None:
    clock, ear = FakeClock(10**15), Listener()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        clock.advance(us=passed_us)
        await hello(scope, receive, send)

    limiter = Limiter(MemoryStore(clock=clock), observers=[ear])
    assert await statuses(RateLimitMiddleware(slow, limits="3/hour", limiter=limiter), 2) == [200, 200]
    times = [(one.began_us, one.duration_us) for one in ear.outcomes]
    assert times == [(10**15, took_us), (10**15 + passed_us, took_us)]
    assert {state.key for one in ear.outcomes for decision in one.decisions for state in decision.states} == {PEER}


START: Message = {"type": "http.response.start", "status": 200, "headers": []}
EARLY: Message = {"type": "http.response.early_hint", "links": []}
LAST: Message = {"type": "http.response.body", "body": b"x"}
MORE: Message = {**LAST, "more_body": True}
FILE: Message = {"type": "http.response.pathsend", "path": "/x"}
ZERO_COPY: Message = {"type": "http.response.zerocopysend", "file": 3}
TRAILERS: Message = {"type": "http.response.trailers", "headers": []}
ACCEPT: Message = {"type": "websocket.accept"}
CLOSE: Message = {"type": "websocket.close"}
END = 9
"""Behind all messages, where the application returns or raises."""


@pytest.mark.parametrize(
    ("messages", "at", "ended"),
    [
        ([START, LAST], 2, "success"),
        ([START, FILE], 2, "success"),
        ([START, MORE, MORE, ZERO_COPY], 4, "success"),
        ([START, {**ZERO_COPY, "more_body": True}, LAST], 3, "success"),
        ([{**START, "trailers": True}, LAST, TRAILERS], 2, "success"),
        ([EARLY, EARLY, START, LAST], 4, "success"),
        ([{**START, "status": 304}, LAST], 2, "success"),
        ([START, LAST, LAST, MORE, START, FILE], 2, "success"),
        ([RuntimeError()], END, "exception"),
        ([START, RuntimeError()], END, "exception"),
        ([START, "a limit"], END, "exception"),
        ([START, LAST, RuntimeError()], 2, "success"),
        ([START, MORE, ClientDisconnect()], END, "cancelled"),
        ([CancelledError()], END, "cancelled"),
        ([], END, "cancelled"),
        ([ACCEPT, {"type": "websocket.send"}, CLOSE], 3, "success"),
        ([ACCEPT, WebSocketDisconnect(1001)], END, "success"),
        ([CLOSE], 1, "success"),
    ],
)
async def test_a_request_has_one_outcome_behind_its_last_byte_and_until_then_its_permit(
    messages: list[Any], at: int, ended: str
) -> None:
    """Whatever its messages and its end, and beside an observer that fails."""
    store, ear, order, seen = MemoryStore(), Listener(), list[str](), list[tuple[int, int]]()

    class Failing(Listener):
        def request(self, outcome: Outcome, /) -> None:
            order.append("outcome")
            raise RuntimeError("no")

    limiter = Limiter(store)
    await limiter.hit(PEER, "1/hour", rule="tight")
    for observer in (Failing(), ear):
        limiter.observe(observer)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            if message == "a limit":
                await TIGHT.check(Request(scope))
            if isinstance(message, BaseException):
                raise message
            await send(message)
            seen.append((store.permits_held(), len(ear.outcomes)))

    async def send(message: Message) -> None:
        order.append(message["type"])

    middleware = RateLimitMiddleware(app, rules=[Rule("*", "5/day", concurrency=1)], limiter=limiter)
    connection = "websocket" if messages and messages[0] in (ACCEPT, CLOSE) else "http"
    with suppress(Exception, CancelledError):
        await middleware(scope_of(type=connection), anyio.sleep_forever, send)
    sent = [message["type"] for message in messages if isinstance(message, dict)]
    assert order == [*sent[:at], "outcome", *sent[at:]]
    assert [(one.allowed, one.ended) for one in ear.outcomes] == [(True, ended)]
    assert seen == [(1, 0) if number < at else (0, 1) for number in range(1, len(sent) + 1)]
    assert store.permits_held() == 0


async def test_an_observer_that_comes_while_a_request_is_under_way_hears_of_the_next_one() -> None:
    limiter, ear = Limiter(), Listener()

    async def attaching(scope: Scope, receive: Receive, send: Send) -> None:
        limiter.observe(ear)
        await hello(scope, receive, send)

    await call(RateLimitMiddleware(attaching, limits="9/hour", limiter=limiter))
    assert ear.outcomes == []
    await call(RateLimitMiddleware(hello, limits="9/hour", limiter=limiter))
    assert [one.reason for one in ear.outcomes] == ["ok"]
