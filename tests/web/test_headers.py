"""RateLimit and RateLimit-Policy name each limit once, and tell of no more units and time than a limit has."""

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from hypothesis import given, note, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from slidegate import (
    BanPolicy,
    Limiter,
    MemoryStore,
    Quota,
    RateLimit,
    RateLimitExceeded,
    RateLimitMiddleware,
    Rule,
    charge,
    everyone,
    header,
    settle,
)
from slidegate.testing import FakeClock, RecordingObserver

from ..asgi import PEER, Answer, call, hello, page, scope_of, send_scope
from .middlewares import fields
from .sockets import greet


def check_fields(answer: Answer) -> None:
    """Check that both fields name the same limits, each once, and tell of no more units and time than it has."""
    policy, shown = (fields(answer.headers.get(name, "")) for name in ("ratelimit-policy", "ratelimit"))
    names = [name for name, _ in policy]
    assert names == [name for name, _ in shown]
    assert len({*names}) == len(names)
    for (_, limit), (_, left) in zip(policy, shown, strict=True):
        assert 0 <= left["r"] <= limit["q"]
        assert 0 <= left["t"] <= limit["w"]


COUNTS = [None, lambda status: status != 429, lambda status: status < 400, lambda status: False]


async def work(request: Request) -> PlainTextResponse:
    """Use as much, and answer, as the request says."""
    request.app.state.clock.advance(request.headers.get("x-works"))
    used = int(request.headers.get("x-used", "1"))
    with_estimate = request.headers.get("x-settles") == "yes"
    await (settle(request, used, rule="r0") if with_estimate else charge(request, used, rule="r0"))
    return PlainTextResponse("done", int(request.headers.get("x-status", "200")))


def program(random: Random, shared: Limiter, clock: FakeClock) -> Any:
    endpoint: Any = work
    if random.random() < 0.7:
        endpoint = RateLimit("2/hour", name="inner", key=everyone, count_if=random.choice(COUNTS))(endpoint)

    async def prepared(request: Request) -> Any:
        clock.advance(request.headers.get("x-prepares"))
        return await endpoint(request)

    async def soft(request: Request, error: Exception) -> PlainTextResponse:
        return PlainTextResponse("soft", int(request.headers.get("x-status", "200")))

    handlers = {RateLimitExceeded: soft} if random.random() < 0.5 else {}
    app: Any = Starlette(routes=[Route("/", prepared)], exception_handlers=handlers)
    app.state.clock = clock
    for depth in range(random.randint(1, 2)):
        rules = [Rule("*", "5/hour", name=f"r{depth}", cost=random.choice([0, 1, 2]))]
        for number in range(random.randint(0, 2)):
            amount = random.choice(["3/hour", "6/minute", "4/hour; 9/day"])
            rules.append(Rule("*", amount, name=f"c{depth}-{number}", count_if=random.choice(COUNTS)))
        app = RateLimitMiddleware(app, rules=rules, limiter=shared)
    return app


WORK = st.fixed_dictionaries(
    {
        "X-Status": st.sampled_from(["200", "404", "429", "500"]),
        "X-Used": st.sampled_from(["0", "1", "7"]),
        "X-Settles": st.sampled_from(["yes", "no"]),
        "X-Prepares": st.sampled_from(["1ms", "50s", "2h"]),
        "X-Works": st.sampled_from(["1ms", "50s", "2h"]),
    }
)


@settings(max_examples=150)
@given(
    st.randoms(use_true_random=False), st.lists(st.tuples(WORK, st.sampled_from([PEER, "203.0.113.10"])), max_size=12)
)
async def test_no_answer_tells_of_more_units_or_time_than_a_limit_has(random: Random, works: list[Any]) -> None:
    clock = FakeClock()
    app = program(random, Limiter(MemoryStore(clock=clock)), clock)
    for work, client in works:
        check_fields(await call(app, headers=work, client=(client, 1234)))


@given(
    st.sampled_from(["5/2s", "5/1500ms", "7/2s @2", Quota("5/day")]),
    st.lists(st.integers(1, 900_000), min_size=1, max_size=5),
)
async def test_at_the_reset_of_the_older_fields_everything_spent_has_left(limits: Any, pauses_us: list[int]) -> None:
    clock = FakeClock(1_800_000_000_000_000)
    app = RateLimitMiddleware(hello, limits=limits, limiter=Limiter(MemoryStore(clock=clock)), headers="legacy")
    for pause_us in pauses_us:
        clock.advance(us=pause_us)
        answer = await call(app)
    reset_us = int(answer.headers["x-ratelimit-reset"]) * 1_000_000
    assert clock.now_us < reset_us
    clock.set(reset_us)
    answer = await call(app)
    assert int(answer.headers["x-ratelimit-remaining"]) == int(answer.headers["x-ratelimit-limit"]) - 1


LIMIT = RateLimit("1/hour")

OWN = [b"RateLimit", b"RateLimit-Policy", b"X-RateLimit-Limit", b"X-RateLimit-Remaining", b"X-RateLimit-Reset"]
OF_REFUSALS = [b"Retry-After", b"Cache-Control"]


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("case", [bytes.lower, bytes.upper])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_fields_of_our_names_that_the_application_writes_stay(kind: Any, case: Any, refused: bool) -> None:
    headers = [(kind(case(name)), b"theirs") for name in (*OWN, *OF_REFUSALS)]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if refused:
            with suppress(RateLimitExceeded):
                await LIMIT.check(Request(scope, receive))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    middleware = RateLimitMiddleware(app, limits="9/hour", headers=("draft", "legacy"))
    await call(middleware)
    answer = await call(middleware)
    assert answer.status == 200
    assert answer.start["headers"][: len(headers)] == headers
    added = {bytes(name).decode() for name, _ in answer.start["headers"][len(headers) :]}
    assert added == {"ratelimit", "ratelimit-policy"}, "of the others, one value"


# -- whoever is refused is told when it is let in again ----------------------------------------------------------------


DENIAL = {"websocket.http.response": {}}


def site(limits: str, policy: BanPolicy, at: str, limiter: Limiter) -> ASGIApp:
    """Return an application with a page and a websocket, and a limit somewhere."""
    limit = RateLimit(limits)
    dependencies = [Depends(limit)] if at == "dependency" else []
    decorate: Callable[[Any], Any] = limit if at == "decorator" else lambda endpoint: endpoint
    app = FastAPI()
    app.get("/", dependencies=dependencies)(decorate(page))
    app.websocket("/", dependencies=dependencies)(decorate(greet))
    rules = [Rule("*", limits)] if at in ("rule", "inner") else []
    if at == "inner":
        inner = RateLimitMiddleware(app, limiter=limiter, rules=rules)
        return RateLimitMiddleware(inner, limiter=limiter, rules=[], bans=policy)
    return RateLimitMiddleware(app, limiter=limiter, rules=rules, bans=policy)


POSITIONS = st.sampled_from(["rule", "inner", "dependency", "decorator"])
KINDS = st.sampled_from(["http", "websocket"])
LIMITS = st.builds("{}/{}s".format, st.integers(1, 4), st.sampled_from([2, 5, 60]))
BANS = st.builds(
    lambda strikes, length, by_key: BanPolicy(
        f"{strikes}/10m", f"{length}s", factor=1, key=header("X-API-Key") if by_key else None
    ),
    st.integers(1, 4),
    st.sampled_from([1, 3, 30, 3600]),
    st.booleans(),
)


@given(LIMITS, BANS, POSITIONS, KINDS, st.lists(st.integers(0, 3), max_size=12))
async def test_a_limits_refusal_says_when_the_client_is_let_in_again_also_if_its_strike_bans(
    limits: str, policy: BanPolicy, at: str, kind: str, waits: list[int]
) -> None:
    note(f"{limits} {policy} {policy.key} {at} {kind} {waits}")

    async def played(*then_s: int) -> Any:
        """Return the last answer and its events, or, so much later, whether another request passes."""
        clock, observer = FakeClock(), RecordingObserver()
        app = site(limits, policy, at, Limiter(MemoryStore(clock=clock), observers=[observer]))
        for wait_s in (0, *waits, *then_s):
            clock.advance(us=wait_s * 1_000_000)
            observer.events.clear()
            answer = await send_scope(app, scope_of(type=kind, headers={"X-API-Key": "k1"}, extensions=DENIAL))
        first = answer.messages[0]
        passes = first["type"] == "websocket.accept" or first.get("status") == 200
        return passes if then_s else (passes, answer, observer.events)

    passes, answer, events = await played()
    if passes:
        return
    retry_s = int(answer.headers["retry-after"])
    (refused,) = [event for event in events if event.kind == "refused"]
    assert refused.details["retry_after_s"] == retry_s
    assert not await played(retry_s - 1)
    if refused.details["reason"] == "limited":  # a banned client is told of the ban alone
        assert await played(retry_s)
