"""The short way of ordinary requests does what the long one does, message by message."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any, Final
from unittest.mock import patch

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from slidegate import (
    BanPolicy,
    Decision,
    Limiter,
    LimitExceeded,
    MemoryStore,
    Networks,
    RateLimit,
    RateLimitMiddleware,
    Rule,
    charge,
    client_ip,
    everyone,
    header,
)
from slidegate.core.memo import MEMO_SIZE
from slidegate.core.statistics.buffered import MOST_NOTED
from slidegate.testing import FakeClock, RecordingObserver
from slidegate.web.answers import header_fields
from slidegate.web.endpoints.decorator import MARKS
from slidegate.web.findings.first_requests import WATCHED
from slidegate.web.gate import RequestGate

from ..asgi import PEER, call, hello, scope_of, statuses
from .gates import nothing_decorated, skip_the_first_requests

OTHERS: Final = Networks(["192.0.2.77"])
"""An allowlist on which nobody of these tests is: a gate that has one takes every request the long way."""
PEERS: Final = (PEER, "198.51.100.7", "2001:db8::7")
START: Final = "http.response.start"
BODY: Final = "http.response.body"

RULES: Final[tuple[Callable[[], list[Rule]], ...]] = (
    lambda: [Rule("*", "3/minute", name="all")],
    lambda: [Rule("*", "2/second; 4/minute", name="all")],
    lambda: [Rule("*", "100/minute @10", name="all"), Rule("*", "5/minute", key=everyone, name="service")],
    lambda: [Rule("/free", exempt=True), Rule("/limited", "2/minute", name="two"), Rule("*", "4/minute", name="all")],
    lambda: [Rule("*", "3/minute", key=header("X-API-Key"), name="all")],
    lambda: [Rule("*", "9/minute", cost=lambda request: 4, name="all"), Rule("/free", "5/minute", name="free")],
    lambda: [Rule("*", "3/minute", cost=2, name="all")],
    lambda: [Rule("*", "3/minute", count_denied=True, name="all")],
    lambda: [Rule("*", "3/minute", count_if=lambda status: status < 400, name="all")],
    lambda: [Rule("*", "2/minute", action="shadow", name="all")],
    lambda: [],
)  # fmt: skip

FIELDS: Final = st.sampled_from([
    [], [(b"content-length", b"2"), (b"content-type", b"text/plain")],
    [(b"RateLimit", b'"mine";r=1;t=1')], [(b"ratelimit-policy", b'"mine";q=1;w=1'), (b"x-ratelimit-limit", b"7")],
])  # fmt: skip
STARTS: Final = st.builds(
    lambda status, headers: {"type": START, "status": status, "headers": headers},
    st.sampled_from([200, 204, 302, 404, 500, 599]),
    FIELDS,
)
BODIES: Final = st.builds(lambda more: {"type": BODY, "body": b"hi", "more_body": more}, st.booleans())
ODD: Final = st.sampled_from([
    {"type": START, "status": 200}, {"type": "http.response.debug", "info": {}}, {"type": BODY, "body": b"x"},
    {"type": "websocket.accept"}, {"type": "websocket.close", "code": 1000},
    {"type": "http.response.pathsend", "path": "/"}, {"type": "http.response.trailers", "headers": []},
])  # fmt: skip
STEPS: Final = st.one_of(
    STARTS, BODIES, BODIES, ODD, st.sampled_from(["tick", "raise", "cancel", "group", "limited", "swallowed", "charge"])
)
"""What an application does: it sends a message, lets time go by, raises, or meets a limit of its own."""


class Play:
    """An application that does what it is told, between a gate and a server that may go away."""

    def __init__(self, rules: list[Rule], long: bool, **options: Any) -> None:
        self.clock = FakeClock(1_000_000_000)
        self.heard = RecordingObserver()
        store = MemoryStore(clock=self.clock)
        self.limiter = Limiter(store, secret="0123456789abcdef0123456789abcdef", observers=[self.heard])
        self.limit = RateLimit("3/minute", name="own")
        self.steps: list[Any] = []
        options |= {"allowlist": OTHERS} if long else {}
        self.gate = RateLimitMiddleware(self.act, rules=rules, limiter=self.limiter, **options)
        if long:
            self.gate._watch = None
        else:
            skip_the_first_requests(self.gate)

    async def act(self, scope: Scope, receive: Receive, send: Send) -> None:
        for step in self.steps:
            if isinstance(step, dict):
                await send(dict(step))
            elif step == "tick":
                self.clock.advance(us=700_000)
            elif step == "raise":
                raise RuntimeError("no")
            elif step == "cancel":
                raise asyncio.CancelledError
            elif step == "group":
                raise ExceptionGroup("several", [LimitExceeded(scope["slidegate"].decision), ValueError("no")])
            elif step == "charge":
                await charge(HTTPConnection(scope), 1, rule="own")
            elif step == "limited":
                await self.limit.check(HTTPConnection(scope))
            else:
                try:
                    await self.limit.check(HTTPConnection(scope))
                except LimitExceeded:
                    continue

    async def ask(self, scope: Scope, steps: list[Any], leaves_after: int | None) -> list[Any]:
        """Send one request, and return what came out of it."""
        self.steps, out = steps, []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            if leaves_after is not None and len(out) >= leaves_after:
                raise OSError("the client has left")
            out.append(dict(message))

        try:
            await self.gate(scope, receive, send)
        except BaseException as error:
            out.append((type(error), str(error)))
        record = scope["slidegate"]
        decisions = [(step.decision.reason, step.decision.states, step.spared) for step in record.steps]
        return [*out, decisions, record.answered, record.refused and record.refused.reason]

    async def state(self) -> object:
        """Return everything that the gate left behind."""
        counted = [
            (await self.limiter.peek(key, rule.limits, rule=rule.name)).states
            for key in (*PEERS, "everyone", "unknown-peer", "peer:testclient")
            for rule in (*self.gate.rules, self.limit.rule)
            if rule.limits
        ]
        bans = [str(ban) async for ban in self.limiter.bans()]
        stats = self.limiter.stats("5m")
        seen = {
            (kind, name): (figures.seen.events, repr(figures.seen.rt), repr(figures.seen.first))
            for kind, listed in (("rule", stats.rules), ("route", stats.routes), ("", {"total": stats.total}))
            for name, figures in listed.items()
        }
        return counted, bans, seen, [(event.kind, event.message) for event in self.heard.events]


REQUESTS: Final = st.fixed_dictionaries({
    "type": st.sampled_from(["http", "http", "http", "http", "websocket"]),
    "path": st.sampled_from(["/", "/free", "/limited"]),
    "method": st.sampled_from(["GET", "GET", "GET", "HEAD", "POST", "OPTIONS"]),
    "client": st.sampled_from([*((peer, 1) for peer in PEERS), (PEER, 2), None, ("testclient", 1), ("", 0)]),
    "headers": st.sampled_from([
        {}, {"X-API-Key": "k"}, {"Origin": "https://example.org", "Access-Control-Request-Method": "PUT"}
    ]),
    "steps": st.one_of(
        st.just([{"type": START, "status": 200, "headers": []}, {"type": BODY, "body": b"hi"}]),
        st.just(["tick", {"type": START, "status": 200, "headers": []}, "tick", {"type": BODY, "body": b"hi"}]),
        st.lists(STEPS, max_size=6),
    ),
    "leaves_after": st.sampled_from([None, None, None, 0, 1]),
    "before": st.sampled_from(["", "", "", "", "ban", "unban", "minute", "reset"]),
})  # fmt: skip
OPTIONS: Final = st.fixed_dictionaries({
    "headers": st.sampled_from(["draft", "draft", "legacy", "both", None]),
    "statistics": st.booleans(),
    "on_refused": st.sampled_from([None, None, lambda request, decision: Response("no", 418)]),
    "preflight_limits": st.sampled_from(["2/minute", None]),
})  # fmt: skip


async def both(
    rules: Callable[[], list[Rule]], options: dict[str, Any], requests: list[dict[str, Any]], decorated: bool
) -> None:
    short, long = Play(rules(), False, **options), Play(rules(), True, **options)
    with nothing_decorated():
        if decorated:
            MARKS.append(True)
        await compared(short, long, requests)


async def compared(short: Play, long: Play, requests: list[dict[str, Any]]) -> None:
    with patch.object(header_fields, "time", lambda: 1_700_000_000.0):
        await in_turn(short, long, requests)
    assert await short.state() == await long.state()


async def in_turn(short: Play, long: Play, requests: list[dict[str, Any]]) -> None:
    for asked in requests:
        answers = []
        for play in (short, long):
            if asked["before"] == "ban":
                await play.limiter.ban(PEER, "20s", reason="by hand")
            elif asked["before"] == "unban":
                await play.limiter.unban(PEER)
            elif asked["before"] == "reset":
                await play.limiter.reset(PEER)
            elif asked["before"] == "minute":
                play.clock.advance(us=61_000_000)
            more = {name: asked[name] for name in ("type", "client", "headers")}
            scope = scope_of(asked["path"], asked["method"], server=None, **more)
            answers.append(await play.ask(scope, asked["steps"], asked["leaves_after"]))
        assert answers[0] == answers[1]


@settings(max_examples=150, deadline=None, print_blob=True)
@given(st.sampled_from(RULES), OPTIONS, st.lists(REQUESTS, min_size=1, max_size=10), st.booleans())
def test_both_ways_send_the_same_messages_and_leave_the_same_behind(
    rules: Callable[[], list[Rule]], options: dict[str, Any], requests: list[dict[str, Any]], decorated: bool
) -> None:
    note(str(rules()))
    asyncio.run(both(rules, options, requests, decorated))


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_both_ways_refuse_every_method_alike(method: str) -> None:
    steps = [{"type": START, "status": 200, "headers": []}, {"type": BODY, "body": b"hi"}]
    asked = {"type": "http", "path": "/", "method": method, "client": (PEER, 1), "headers": {}, "steps": steps}
    asyncio.run(both(RULES[0], {}, [{**asked, "leaves_after": None, "before": ""}] * 5, decorated=False))


@pytest.mark.deep
@settings(max_examples=5_000, deadline=None, print_blob=True)
@given(st.sampled_from(RULES), OPTIONS, st.lists(REQUESTS, min_size=1, max_size=25), st.booleans())
def test_both_ways_agree_over_many_long_stories(
    rules: Callable[[], list[Rule]], options: dict[str, Any], requests: list[dict[str, Any]], decorated: bool
) -> None:
    asyncio.run(both(rules, options, requests, decorated))


@pytest.fixture
def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[Scope]:
    """The requests that took the long way."""
    taken: list[Scope] = []
    serve = RequestGate.serve

    async def noted(gate: RequestGate, scope: Scope, *args: Any, **options: Any) -> None:
        taken.append(scope)
        await serve(gate, scope, *args, **options)

    monkeypatch.setattr(RequestGate, "serve", noted)
    return taken


ORDINARY: Final[dict[str, dict[str, Any]]] = {
    "one rule": {"limits": "9999/hour"},
    "several rules": {"rules": [Rule("/a", "9/hour"), Rule("*", "9999/hour; 9000/minute"), Rule("/b", exempt=True)]},
    "no rule": {"rules": []},
    "keys of rules": {"rules": [Rule("*", "9999/hour", key=header("X-API-Key")), Rule("*", "9999/hour", key=everyone)]},
    "proxies": {"limits": "9999/hour", "client": client_ip(trusted=["10.0.0.0/8"])},
    "no figures, no fields": {"limits": "9999/hour", "statistics": False, "headers": None},
    "an answer of its own": {"limits": "9999/hour", "on_refused": lambda request, decision: Response("no", 429)},
}
SPECIAL: Final[dict[str, dict[str, Any]]] = {
    "an allowlist": {"limits": "9999/hour", "allowlist": OTHERS},
    "a blocklist": {"limits": "9999/hour", "blocklist": OTHERS},
    "a ban policy": {"limits": "9999/hour", "bans": BanPolicy()},
    "a rule that waits": {"rules": [Rule("*", "9999/hour", wait="1s")]},
    "a rule that looks at the status": {"rules": [Rule("*", "9999/hour", count_if=lambda status: True)]},
    "a rule that looks on": {"rules": [Rule("*", "9999/hour", action="shadow")]},
    "a rule with a function": {"rules": [Rule("*", "9999/hour", cost=lambda request: 1)]},
}


@pytest.mark.parametrize("kind", ORDINARY)
async def test_ordinary_requests_take_the_short_way_when_the_first_ones_have_been_looked_at(
    kind: str, long_ways: list[Scope]
) -> None:
    app = RateLimitMiddleware(hello, **ORDINARY[kind])
    assert await statuses(app, WATCHED) == [200] * WATCHED
    assert len(long_ways) == WATCHED
    assert await statuses(app, 5) == [200] * 5
    assert len(long_ways) == WATCHED


@pytest.mark.parametrize("kind", SPECIAL)
async def test_a_gate_that_has_more_to_ask_takes_the_long_way_for_ever(kind: str, long_ways: list[Scope]) -> None:
    app = RateLimitMiddleware(hello, **SPECIAL[kind])
    await statuses(app, WATCHED + 5)
    assert len(long_ways) == WATCHED + 5


@pytest.mark.parametrize("more", [
    {"method": "OPTIONS"}, {"type": "websocket"}, {"client": None, "server": None}, {"client": ("testclient", 1)},
])  # fmt: skip
async def test_an_odd_request_takes_the_long_way(more: dict[str, Any], long_ways: list[Scope]) -> None:
    app = RateLimitMiddleware(hello, limits="9999/hour")
    await statuses(app, WATCHED)
    long_ways.clear()
    await call(app, **more)
    await call(app)
    assert len(long_ways) == 1


async def test_a_gate_further_in_takes_the_long_way_and_finds_the_record_of_the_outer_one(
    long_ways: list[Scope],
) -> None:
    app = RateLimitMiddleware(RateLimitMiddleware(hello, rules=[Rule("*", "1100/hour", name="in")]), limits="2000/hour")
    await statuses(app, WATCHED)
    long_ways.clear()
    assert await statuses(app, 101) == [200] * 100 + [429]
    assert len(long_ways) == 101
    left = int((await call(app)).headers["ratelimit"].split("r=")[1].split(";")[0])
    assert left == 0, "the inner limit is the tightest"


async def test_a_ban_refuses_at_once_on_the_short_way(long_ways: list[Scope]) -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    app = RateLimitMiddleware(hello, limits="9999/hour", limiter=limiter)
    await statuses(app, WATCHED)
    long_ways.clear()
    assert await statuses(app, 1) == [200]
    await limiter.ban(PEER, "1h", reason="by hand")
    assert await statuses(app, 2) == [403, 403]
    await limiter.unban(PEER)
    assert await statuses(app, 1) == [200]
    assert long_ways == []


async def test_many_clients_of_the_short_way_are_remembered_in_bounded_memory() -> None:
    app = RateLimitMiddleware(hello, limits="9999/hour")
    await statuses(app, WATCHED)
    for number in range(MEMO_SIZE + 100):
        await call(app, client=(f"2001:db8:{number:x}::7", 1))
    assert len(app._gate.judge._demands) <= MEMO_SIZE


class Server:
    """A server as uvicorn is one: what it sends a request with holds the scope of it."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    async def receive(self) -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(self, message: Message) -> None:
        self.scope.setdefault("sent", []).append(message["type"])


@pytest.mark.parametrize("options", [{}, {"allowlist": OTHERS}, {"on_refused": lambda request, decision: Response()}])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_request_is_freed_without_the_garbage_collector(options: dict[str, Any], fails: bool) -> None:
    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        await hello(scope, receive, send)
        if fails and "marker" in scope:
            raise RuntimeError("no")

    app = RateLimitMiddleware(page, limits=f"{WATCHED + 1}/hour", **options)
    await statuses(app, WATCHED)
    gc.disable()
    try:
        for _ in range(2):  # one is admitted, one refused
            server = Server({**scope_of("/"), "marker": True})
            gone = weakref.ref(server)
            try:
                await app(server.scope, server.receive, server.send)
            except RuntimeError:
                assert fails
            assert server.scope["sent"] == [START, BODY]
            del server
            assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("options", [{}, {"allowlist": OTHERS}])
async def test_what_an_application_sends_after_its_end_is_an_error_there_and_reaches_nobody(
    options: dict[str, Any],
) -> None:
    kept: list[Send] = []

    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        kept.append(send)
        await hello(scope, receive, send)

    app = RateLimitMiddleware(page, limits=f"{WATCHED + 1}/hour", **options)
    await statuses(app, WATCHED)
    server = Server(scope_of("/"))
    await app(server.scope, server.receive, server.send)
    for late in ({"type": BODY, "body": b"late"}, {"type": START, "status": 200, "headers": []}):
        with pytest.raises(RuntimeError, match=f"{late['type']} was sent after the application had ended"):
            await kept[-1](late)
    assert server.scope["sent"] == [START, BODY]


async def test_a_client_that_leaves_while_its_refusal_is_made_is_recorded_as_refused() -> None:
    """The refusal is that of a limit at an endpoint, and no message of it has gone out."""
    made = asyncio.Event()

    async def slow(request: HTTPConnection, decision: Decision) -> Response:
        made.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets the event")

    limit = RateLimit("1/hour", name="own")

    async def page(request: Request) -> Response:
        return PlainTextResponse("hi")

    app = Starlette(routes=[Route("/", limit(page))])
    app.add_middleware(RateLimitMiddleware, rules=[], limiter=(limiter := Limiter()), on_refused=slow)
    assert (await call(app)).status == 200
    task = asyncio.ensure_future(call(app))
    await made.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (limiter.stats("5m").total.passed, limiter.stats("5m").total.refused) == (1, 1)


async def test_figures_of_the_short_way_wait_in_bounded_memory(long_ways: list[Scope]) -> None:
    limiter = Limiter()
    app = RateLimitMiddleware(
        Starlette(routes=[Route("/", lambda request: PlainTextResponse("hi"))]), limits="9999/hour", limiter=limiter
    )
    skip_the_first_requests(app)
    most = 0
    with nothing_decorated():
        for _ in range(2 * MOST_NOTED + 9):
            await call(app)
            most = max(most, sum(len(series.noted) for series in limiter.internals.statistics.listed()))
    assert long_ways == []
    assert most == MOST_NOTED - 1
    assert limiter.stats("1m").total.passed == 2 * MOST_NOTED + 9
