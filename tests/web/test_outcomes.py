"""What observers hear of a request: its outcome, once, when its last byte is out, and one event if it is refused."""

from asyncio import CancelledError
from contextlib import suppress
from typing import Any

import anyio
import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from slidegate import Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule, client_ip
from slidegate.core import Reason, StoreUnavailable
from slidegate.events import Outcome
from slidegate.testing import FakeClock

from ..asgi import PEER, call, hello, scope_of, send_scope, statuses
from ..remote_stores import SickStore
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


@pytest.mark.parametrize("raises", [False, True])
async def test_an_outcome_comes_behind_the_last_byte_and_an_observer_that_fails_hurts_no_request(raises: bool) -> None:
    order: list[str] = []
    ear = Listener()

    class Failing(Listener):
        def request(self, outcome: Outcome, /) -> None:
            order.append(f"outcome {outcome.status}")
            if raises:
                raise RuntimeError("no")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for more in (True, False):
            await send({"type": "http.response.body", "body": b"x", "more_body": more})
        order.append("background")

    async def send(message: Message) -> None:
        order.append(message["type"].rpartition(".")[2])

    middleware: Any = RateLimitMiddleware(app, limits="9/hour", limiter=Limiter(observers=[Failing(), ear]))
    await middleware(scope_of(), anyio.sleep_forever, send)
    assert order == ["start", "body", "body", "outcome 200", "background"]
    assert len(ear.outcomes) == 1


START: Message = {"type": "http.response.start", "status": 200, "headers": []}
EARLY: Message = {"type": "http.response.early_hint", "links": []}
LAST: Message = {"type": "http.response.body", "body": b"x"}
MORE: Message = {**LAST, "more_body": True}
FILE: Message = {"type": "http.response.pathsend", "path": "/x"}
ZERO_COPY: Message = {"type": "http.response.zerocopysend", "file": 3}
TRAILERS: Message = {"type": "http.response.trailers", "headers": []}
ACCEPT: Message = {"type": "websocket.accept"}
CLOSE: Message = {"type": "websocket.close"}


@pytest.mark.parametrize(
    ("messages", "ended"),
    [
        ([START, LAST], "success"),
        ([START, FILE], "success"),
        ([START, MORE, ZERO_COPY], "success"),
        ([START, {**ZERO_COPY, "more_body": True}, LAST], "success"),
        ([{**START, "trailers": True}, LAST, TRAILERS], "success"),
        ([EARLY, EARLY, START, LAST], "success"),
        ([{**START, "status": 304}, LAST], "success"),
        ([START, LAST, LAST, MORE, START, FILE], "success"),
        ([RuntimeError()], "exception"),
        ([START, RuntimeError()], "exception"),
        ([START, "a limit"], "exception"),
        ([START, LAST, RuntimeError()], "success"),
        ([START, MORE, ClientDisconnect()], "cancelled"),
        ([CancelledError()], "cancelled"),
        ([], "cancelled"),
        ([ACCEPT, CLOSE], "success"),
        ([ACCEPT, WebSocketDisconnect(1001)], "success"),
        ([CLOSE], "success"),
    ],
)
async def test_a_request_has_one_outcome_whatever_its_messages_and_its_end(messages: list[Any], ended: str) -> None:
    limiter = Limiter()
    await limiter.hit(PEER, "1/hour", rule="tight")
    limiter.observe(ear := Listener())

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            if message == "a limit":
                await TIGHT.check(Request(scope))
            if isinstance(message, BaseException):
                raise message
            await send(message)

    middleware = RateLimitMiddleware(app, limits="5/day", limiter=limiter)
    connection = "websocket" if messages and messages[0] in (ACCEPT, CLOSE) else "http"
    with suppress(Exception, CancelledError):
        await send_scope(middleware, scope_of(type=connection))
    assert [(one.allowed, one.ended) for one in ear.outcomes] == [(True, ended)]


@pytest.mark.parametrize("options", [{}, {"wait": "2h"}], ids=["asks the store", "asks it before it waits"])
async def test_a_request_that_is_cancelled_before_it_is_decided_is_not_exempt(options: dict[str, Any]) -> None:
    store = SickStore(FakeClock())
    store.hangs = True
    limiter = Limiter(store, deadline="60s", observers=[ear := Listener()])
    with anyio.move_on_after(0.05):
        await call(RateLimitMiddleware(hello, rules=[Rule("*", "1/hour", **options)], limiter=limiter))
    (outcome,) = ear.outcomes
    assert (outcome.ended, outcome.reason, outcome.allowed) == ("cancelled", Reason.UNAVAILABLE, False)
    assert (outcome.decisions, outcome.rules) == ([], ())


async def test_an_observer_that_comes_while_a_request_is_under_way_hears_of_the_next_one() -> None:
    limiter, ear = Limiter(), Listener()

    async def attaching(scope: Scope, receive: Receive, send: Send) -> None:
        limiter.observe(ear)
        await hello(scope, receive, send)

    await call(RateLimitMiddleware(attaching, limits="9/hour", limiter=limiter))
    assert ear.outcomes == []
    await call(RateLimitMiddleware(hello, limits="9/hour", limiter=limiter))
    assert [one.reason for one in ear.outcomes] == ["ok"]


async def test_a_client_chooses_no_more_than_bounded_printable_text_and_its_key() -> None:
    ear = Listener()
    app = RateLimitMiddleware(hello, limits="1/hour", client=client_ip(), limiter=Limiter(observers=[ear]))
    evil = "\x1b[2J\r\n<script>\u202e" * 5_000
    await call(app)
    assert (await call(app, f"/{evil}", method=f"{evil}GET", headers={"x-forwarded-for": evil})).status == 429
    (event,) = [event for event in ear.events if event.kind == "refused"]
    details = event.details
    assert event.message.isprintable()
    assert len(event.message) < 1_000
    assert len(details["method"]) <= 64
    assert details["method"].isprintable()
    assert len(details["path"]) <= 200
    assert details["path"].isprintable()
    assert details["path"].startswith("/\\x1b[2J\\r\\n<script>")
    assert sum(len(str(value)) for value in details.values()) < 600
    assert details["route"] == "default"


@pytest.mark.parametrize("shadow", [False, True])
@pytest.mark.parametrize("own", ["local", "deny"])
async def test_who_exceeds_a_limit_is_told_of_once_for_each_window_whichever_store_decides(
    own: Any, shadow: bool
) -> None:
    clock = FakeClock(1_800_000_000_000_000)
    store = SickStore(clock)
    limiter = Limiter(store, deadline="60s", observers=[ear := Listener()])
    limiter.engine.now_us = limiter.engine.failover._clock = clock  # type: ignore[union-attr]
    limiter.engine.failover.local = MemoryStore(clock=lambda: clock() % 86_400_000_000)  # type: ignore[union-attr]
    rules = [Rule("*", "2/minute", on_error=own, shadow=shadow)]
    app = RateLimitMiddleware(hello, rules=rules, limiter=limiter)
    expected = 0
    for error in (None, StoreUnavailable("gone"), None, StoreUnavailable("gone")):
        store.error = error
        clock.advance("1h")
        for pause, is_news in (("1s", True), ("30s", False), ("2m", False), ("1s", True)):
            for _ in range(5):
                await call(app)
            expected += is_news and (error is None or own == "local")
            assert ear.kinds.count("exceeded") == expected, (error, pause)
            clock.advance(pause)
