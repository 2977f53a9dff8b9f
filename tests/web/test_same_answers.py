"""A request gets the same answer and leaves the same behind, whatever else its middleware is configured for."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from slidegate import (
    BanPolicy,
    Decision,
    Limiter,
    MemoryStore,
    MessageLimits,
    Networks,
    RateLimit,
    RateLimitExceeded,
    RateLimitMiddleware,
    Rule,
    client_ip,
    everyone,
    header,
    rate_limit_exceeded,
)
from slidegate.ops.statistics import Statistics
from slidegate.testing import FakeClock, RecordingObserver, limits_clock

from ..asgi import PEER, call, hello, page, scope_of, statuses

OTHERS: Final = Networks(["192.0.2.77"])
"""Networks that nobody of these tests is in."""
PEERS: Final = (PEER, "198.51.100.7", "2001:db8::7")
START: Final = "http.response.start"
BODY: Final = "http.response.body"


def beside() -> dict[str, Any]:
    """Return what a middleware may have beside its rules, and what none of these requests meets."""
    return {
        "allowlist": OTHERS,
        "blocklist": OTHERS,
        "bans": BanPolicy(signals={"/never": "ban"}),
        "client": client_ip(trusted=["10.0.0.0/8"]),
        "messages": MessageLimits("1000/second"),
    }


RULES: Final[tuple[Callable[[], list[Rule]], ...]] = (
    lambda: [Rule("*", "2/second; 4/minute", name="all")],
    lambda: [Rule("*", "100/minute @10", name="all"), Rule("*", "5/minute", key=everyone, name="service")],
    lambda: [Rule("/free", exempt=True), Rule("/limited", "2/minute", name="two"), Rule("*", "4/minute", name="all")],
    lambda: [Rule("*", "3/minute", key=header("X-API-Key"), name="all")],
    lambda: [Rule("*", "9/minute", cost=lambda request: 4, name="all"), Rule("/free", "5/minute", name="free")],
    lambda: [Rule("*", "3/minute", count_denied=True, name="all")],
    lambda: [Rule("*", "3/minute", count_if=lambda status: status < 400, name="all")],
    lambda: [Rule("*", "2/minute", shadow=True, name="all")],
    lambda: [],
)

STARTS: Final = st.builds(lambda status: {"type": START, "status": status, "headers": []}, st.sampled_from([200, 404]))
BODIES: Final = st.builds(lambda more: {"type": BODY, "body": b"hi", "more_body": more}, st.booleans())
SOCKETS: Final = st.sampled_from([{"type": "websocket.accept"}, {"type": "websocket.close", "code": 1000}])
STEPS: Final = st.one_of(STARTS, BODIES, SOCKETS, st.sampled_from(["tick", "raise", "cancel", "limited"]))
"""What an application does: it sends a message, lets time go by, raises, or meets a limit of its own."""


class Play:
    """An application that does what it is told, between a middleware and a server that may go away."""

    def __init__(self, rules: list[Rule], **options: Any) -> None:
        self.clock = FakeClock(1_000_000_000)
        self.heard = RecordingObserver()
        self.limiter = Limiter(
            MemoryStore(clock=self.clock), secret="0123456789abcdef0123456789abcdef", observers=[self.heard]
        )
        self.limit = RateLimit("3/minute", name="own")
        self.steps: list[Any] = []
        self.middleware = RateLimitMiddleware(self.act, rules=rules, limiter=self.limiter, **options)

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
            else:
                await self.limit.check(HTTPConnection(scope))

    async def prepare(self, before: str) -> None:
        if before == "ban":
            await self.limiter.ban(PEER, "20s", reason="by hand")
        elif before in ("unban", "reset"):
            await getattr(self.limiter, before)(PEER)
        elif before == "minute":
            self.clock.advance(us=61_000_000)

    async def ask(self, scope: Scope, steps: list[Any], leaves_after: int | None) -> list[Any]:
        self.steps, out = steps, []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            if leaves_after is not None and len(out) >= leaves_after:
                raise OSError("the client has left")
            out.append(dict(message))

        try:
            await self.middleware(scope, receive, send)
        except BaseException as error:
            out.append((type(error), str(error)))
        decision: Decision = scope["slidegate"].decision
        return [*out, decision.allowed, decision.reason, decision.states]

    async def state(self) -> object:
        counted = [
            (await self.limiter.peek(key, rule.limits, rule=rule.name)).states
            for key in (*PEERS, "everyone", "unknown-peer", "peer:testclient")
            for rule in (*self.middleware.rules, self.limit.rule)
            if rule.limits
        ]
        bans = [str(ban) async for ban in self.limiter.bans()]
        return counted, bans, [(event.kind, event.message) for event in self.heard.events]


REQUESTS: Final = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["http", "http", "http", "http", "websocket"]),
        "path": st.sampled_from(["/", "/free", "/limited"]),
        "method": st.sampled_from(["GET", "GET", "GET", "HEAD", "POST", "OPTIONS"]),
        "client": st.sampled_from([*((peer, 1) for peer in PEERS), (PEER, 2), None, ("testclient", 1), ("", 0)]),
        "headers": st.sampled_from(
            [{}, {"X-API-Key": "k"}, {"Origin": "https://example.org", "Access-Control-Request-Method": "PUT"}]
        ),
        "steps": st.just([{"type": START, "status": 200, "headers": []}, "tick", {"type": BODY, "body": b"hi"}])
        | st.lists(STEPS, max_size=6),
        "leaves_after": st.sampled_from([None, None, None, 0, 1]),
        "before": st.sampled_from(["", "", "", "", "ban", "unban", "minute", "reset"]),
    }
)


@settings(deadline=None)
@given(
    st.sampled_from(RULES),
    st.sampled_from(["draft", ("draft", "legacy"), None]),
    st.sampled_from([None, lambda request, decision: Response("no", 418)]),
    st.lists(REQUESTS, min_size=1, max_size=6),
)
async def test_answers_counts_and_events_do_not_depend_on_what_no_request_meets(
    rules: Callable[[], list[Rule]], style: Any, on_refused: Any, requests: list[dict[str, Any]]
) -> None:
    note(str(rules()))
    with limits_clock(FakeClock(1_700_000_000_000_000)):
        plays = [Play(rules(), headers=style, on_refused=on_refused, **more) for more in ({}, beside())]
        for asked in requests:
            answers = []
            for play in plays:
                await play.prepare(asked["before"])
                more = {name: asked[name] for name in ("type", "client", "headers")}
                scope = scope_of(asked["path"], asked["method"], server=None, **more)
                answers.append(await play.ask(scope, asked["steps"], asked["leaves_after"]))
            assert answers[0] == answers[1]
        assert await plays[0].state() == await plays[1].state()


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

    app = RateLimitMiddleware(page, limits="4/hour", **options)
    await statuses(app, 3)
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


async def test_what_an_application_sends_after_its_end_goes_to_the_server_as_it_is() -> None:
    kept: list[Send] = []

    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        kept.append(send)
        await hello(scope, receive, send)

    server = Server(scope_of("/"))
    await RateLimitMiddleware(page, limits="9/hour")(server.scope, server.receive, server.send)
    for late in ({"type": BODY, "body": b"late"}, {"type": START, "status": 200, "headers": []}):
        before = dict(late)
        await kept[0](late)
        assert late == before
    assert server.scope["sent"] == [START, BODY, BODY, START]


async def test_a_client_that_leaves_while_its_refusal_is_made_is_recorded_as_refused() -> None:
    """The refusal is that of a limit at an endpoint, and no message of it has gone out."""
    made = asyncio.Event()

    async def slow(request: HTTPConnection, decision: Decision) -> Response:
        made.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets the event")

    limiter = Limiter()
    inner = Starlette(routes=[Route("/", RateLimit("1/hour", name="own")(page))])
    inner.add_exception_handler(RateLimitExceeded, rate_limit_exceeded)
    app = RateLimitMiddleware(inner, rules=[], limiter=limiter, on_refused=slow)
    statistics = Statistics.of(limiter)
    assert await statuses(app, 1) == [200]
    task = asyncio.ensure_future(call(app))
    await made.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    total = (await statistics.read("5m")).total
    assert (total.passed, total.refused) == (1, 1)
