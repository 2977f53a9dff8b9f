"""What observers hear of a request: its outcome, once, when its last byte is out, and one event if it is refused."""

from __future__ import annotations

from asyncio import CancelledError
from contextlib import suppress
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from slidegate import (
    BanPolicy,
    Limiter,
    MemoryStore,
    Networks,
    RateLimit,
    RateLimitExceeded,
    RateLimitMiddleware,
    Rule,
    client_ip,
)
from slidegate.events import Event, Outcome
from slidegate.testing import FakeClock

from ..asgi import PEER, call, hello, page, scope_of, send_scope, statuses
from .middlewares import Listener

OTHER = "198.51.100.7"
TIGHT: Any = RateLimit("1/hour", name="tight")


class Site:
    def __init__(self, limiter: Limiter | None = None, **options: Any) -> None:
        self.clock = FakeClock(10**15)
        self.ear = Listener()
        self.limiter = limiter or Limiter(MemoryStore(clock=self.clock))
        self.limiter.observe(self.ear)
        self.inside = Starlette(
            routes=[
                Route("/items/{id}", self.item, methods=["GET"]),
                Route("/limited", TIGHT(page)),
                Route("/swallowing", self.swallowing),
            ]
        )
        options.setdefault("rules", [Rule("*", "3/hour", name="all")])
        self.app = RateLimitMiddleware(self.inside, limiter=self.limiter, **options)

    async def item(self, request: Request) -> PlainTextResponse:
        self.clock.advance("30ms")
        return PlainTextResponse("x", int(request.path_params["id"]))

    async def swallowing(self, request: Request) -> PlainTextResponse:
        with suppress(RateLimitExceeded):
            await TIGHT.check(request)
        return PlainTextResponse("never mind")

    @property
    def seen(self) -> list[tuple[Any, ...]]:
        heard = self.ear.outcomes
        return [(one.allowed, str(one.reason), one.rules, one.route, one.status, one.ended) for one in heard]

    @property
    def refused(self) -> list[dict[str, Any]]:
        events = [event for event in self.ear.events if event.kind == "refused"]
        assert all(event.message.isprintable() and len(event.message) < 1_000 for event in events)
        return [dict(event.details) for event in events]

    async def last(self, *args: Any, **more: Any) -> dict[str, Any]:
        """Send a request that is refused, and return the details of its one event."""
        before = len(self.refused)
        answer = await call(self.app, *args, **more)
        (details,) = self.refused[before:]
        assert details["status"] == answer.status
        return details


async def test_an_outcome_says_when_a_request_began_how_long_it_took_and_whom_it_counted() -> None:
    site = Site()
    assert await statuses(site.app, 2, "/items/200") == [200, 200]
    heard = site.ear.outcomes
    assert [(one.began_us, one.duration_us) for one in heard] == [(10**15, 30_000), (10**15 + 30_000, 30_000)]
    assert {state.key for one in heard for decision in one.decisions for state in decision.states} == {PEER}


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
    site = Site(limits="1/hour", rules=None, client=client_ip())
    await call(site.app)
    evil = "\x1b[2J\r\n<script>\u202e" * 5_000
    details = await site.last(f"/{evil}", method=f"{evil}GET", headers={"x-forwarded-for": evil})
    assert len(details["method"]) <= 64
    assert details["method"].isprintable()
    assert len(details["path"]) <= 200
    assert details["path"].isprintable()
    assert details["path"].startswith("/\\x1b[2J\\r\\n<script>")
    assert sum(len(str(value)) for value in details.values()) < 600
    assert details["route"] == "default"


async def ended(app: Any, how: str) -> None:
    """Send a request that ends in some way."""
    left = "the client has left"

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if how == left:
            raise ClientDisconnect

    with suppress(ZeroDivisionError, ClientDisconnect):
        await app(scope_of(how if how.startswith("/") else "/items/200"), receive, send)


ENDS = ["/items/200", "/items/404", "/none", "/limited", "/swallowing", "/raises", "/silent", "the client has left"]


@given(st.lists(st.sampled_from(ENDS), max_size=9))
async def test_observers_of_each_limiter_hear_of_each_request_that_comes_to_its_middleware(ends: list[str]) -> None:
    """Whatever the outer one refuses does not come to the inner one; two on one limiter are heard once."""

    async def odd(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/raises":
            raise ZeroDivisionError
        if scope["path"] != "/silent":
            await outer.inside(scope, receive, send)

    clock = FakeClock()
    outer = Site(Limiter(MemoryStore(clock=clock)), rules=[])
    inner = Site(Limiter(MemoryStore(clock=clock)), rules=[])
    app = RateLimitMiddleware(odd, limits="5/hour", limiter=inner.limiter)
    app = RateLimitMiddleware(app, limits="9/hour", limiter=inner.limiter)
    app = RateLimitMiddleware(app, limits="7/hour", limiter=outer.limiter)
    for how in ends:
        await ended(app, how)
    assert len(outer.seen) == len(ends)
    assert inner.seen == outer.seen[:7]


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "bans": st.just(BanPolicy("4/10m", "1m", name="abuse")),
        "blocklist": st.just(Networks([f"{OTHER}/32"])),
        "on_refused": st.just(lambda request, decision: PlainTextResponse("no", 420)),
    },
)
VISITS = st.tuples(
    st.sampled_from(["/items/200", "/free", "/shut", "/limited", "/swallowing", "/none"]),
    st.sampled_from([PEER, OTHER]),
    st.integers(0, 9),
)


@settings(max_examples=25, deadline=None)
@given(OPTIONS, st.booleans(), st.lists(VISITS, min_size=1, max_size=25))
async def test_every_refused_request_makes_one_event_and_every_other_none(
    options: dict[str, Any], nested: bool, visits: list[tuple[str, str, int]]
) -> None:
    """The record that the middleware leaves in the scope says which requests were refused."""
    rules = [Rule("/free", exempt=True), Rule("/shut", block=True), Rule("*", "6/minute")]
    site = Site(rules=rules, **options)
    further_in: list[Event] = []
    if nested:
        inner = Limiter()
        inner.observe(lambda event: further_in.append(event) if event.kind == "refused" else None)
        site.inside.add_middleware(RateLimitMiddleware, limits="5/minute", limiter=inner)
    count = 0
    for path, client, pause in visits:
        scope = scope_of(path, client=(client, 1))
        await send_scope(site.app, scope)
        decision = scope["slidegate"].decision
        count += not decision.allowed
        assert len(site.refused) + len(further_in) == count, (path, client, decision)
        if pause == 0:
            site.clock.advance("1m")
