"""RateLimit and RateLimit-Policy name each limit once, and never tell of more units than a limit has."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from slidegate import (
    Limit,
    Limiter,
    MemoryStore,
    RateLimit,
    RateLimitExceeded,
    RateLimitMiddleware,
    Rule,
    charge,
    everyone,
    header,
    settle,
)
from slidegate.testing import FakeClock, limits_clock

from ..asgi import PEER, Answer, call, hello, page
from .middlewares import fields


def faults(answer: Answer) -> list[str]:
    policy, shown = (fields(answer.headers.get(name, "")) for name in ("ratelimit-policy", "ratelimit"))
    found = []
    for what, names in (("policy", [name for name, _ in policy]), ("limit", [name for name, _ in shown])):
        found += [f"{name!r} is {count} items of {what}" for name, count in Counter(names).items() if count > 1]
    amounts = {name: parameters["q"] for name, parameters in policy}
    for name, parameters in shown:
        if not 0 <= parameters["r"] <= amounts.get(name, -1):
            found.append(f"{name!r} has {parameters['r']} of {amounts.get(name)} left")
    return found


def limiter() -> Limiter:
    return Limiter(MemoryStore(clock=FakeClock()))


def site(*limits: RateLimit) -> Any:
    endpoint: Any = page
    for limit in limits:
        endpoint = limit(endpoint)
    return Starlette(routes=[Route("/", endpoint)])


def names_that_differ_far_behind(shared: Limiter | None) -> Any:
    limits = "5/minute; 50/hour"
    rules = [Rule("*", limits, name=f"{'long' * 15}-{number}", key=key) for number, key in ((5, None), (6, everyone))]
    return RateLimitMiddleware(hello, rules=rules, limiter=shared)


def rules_of_one_middleware(shared: Limiter | None) -> Any:
    rules = [
        Rule("*", "5/minute; 50/hour", name="it"),
        Rule("*", "6/minute", name="it-60"),
        Rule("*", Limit(7, "1m", name="it-60"), name="other"),
        Rule("*", concurrency=3, name="it-3600"),
        Rule("*", "8/minute", key=everyone),
        Rule("*", "9/minute", key=header("X-Key"), name="key"),
    ]
    return RateLimitMiddleware(hello, rules=rules, limiter=shared)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("made", "count"),
    [
        (rules_of_one_middleware, 7),
        (names_that_differ_far_behind, 4),
    ],
)
async def test_all_limits_of_a_request_have_names_of_their_own(
    made: Callable[..., Any], count: int, shared: bool
) -> None:
    found, app = [], made(limiter() if shared else None)
    for _ in range(12):
        answer = await call(app)
        assert faults(answer) == []
        found.append([name for name, _ in fields(answer.headers["ratelimit-policy"])])
        if answer.status == 429:
            assert {*json.loads(answer.body)["violated-policies"]} <= {*found[-1]}
    assert len(found[0]) == count
    # A refusal further out tells of no limit further in, and calls the others as before.
    assert all(names == found[0][: len(names)] for names in found)


@pytest.mark.parametrize("name", ["a", 'a"b', "a\\b", "x" * 64, "a b", "a,b=c", "100%", "%d%b"])
async def test_every_rule_name_that_is_accepted_parses_as_a_structured_field(name: str) -> None:
    answer = await call(RateLimitMiddleware(hello, rules=[Rule("*", "5/minute", name=name)], limiter=limiter()))
    written = re.sub("[^A-Za-z0-9_.]", "_", name)  # what every parser of these fields accepts
    assert fields(answer.headers["ratelimit"]) == [(written, {"r": 4, "t": 60})]
    assert fields(answer.headers["ratelimit-policy"]) == [(written, {"q": 5, "w": 60})]


async def test_legacy_headers_speak_unix_seconds() -> None:
    with limits_clock(FakeClock(1_000_000_000_000)):
        answer = await call(RateLimitMiddleware(hello, limits="9/10s", limiter=limiter(), headers="legacy"))
    assert {name: value for name, value in answer.headers.items() if "ratelimit" in name} == {
        "x-ratelimit-limit": "9",
        "x-ratelimit-remaining": "8",
        "x-ratelimit-reset": "1000010",
    }


COUNTS = [None, lambda status: status != 429, lambda status: status < 400, lambda status: False]


async def work(request: Request) -> PlainTextResponse:
    """Use as much, and answer, as the request says."""
    used = int(request.headers.get("x-used", "1"))
    with_estimate = request.headers.get("x-settles") == "yes"
    await (settle(request, used, rule="r0") if with_estimate else charge(request, used, rule="r0"))
    return PlainTextResponse("done", int(request.headers.get("x-status", "200")))


def program(random: Random, shared: Limiter) -> Any:
    endpoint: Any = work
    if random.random() < 0.7:
        endpoint = RateLimit("2/hour", name="inner", key=everyone, count_if=random.choice(COUNTS))(endpoint)

    async def soft(request: Request, error: Exception) -> PlainTextResponse:
        return PlainTextResponse("soft", int(request.headers.get("x-status", "200")))

    handlers = {RateLimitExceeded: soft} if random.random() < 0.5 else {}
    app: Any = Starlette(routes=[Route("/", endpoint)], exception_handlers=handlers)
    for depth in range(random.randint(1, 2)):
        rules = [Rule("*", "5/hour", name=f"r{depth}", cost=random.choice([0, 1, 2]))]
        for number in range(random.randint(0, 2)):
            amount = random.choice(["3/hour", "6/hour", "4/hour; 9/day"])
            rules.append(Rule("*", amount, name=f"c{depth}-{number}", count_if=random.choice(COUNTS)))
        app = RateLimitMiddleware(app, rules=rules, limiter=shared)
    return app


WORK = st.fixed_dictionaries(
    {
        "X-Status": st.sampled_from(["200", "404", "429", "500"]),
        "X-Used": st.sampled_from(["0", "1", "7"]),
        "X-Settles": st.sampled_from(["yes", "no"]),
    }
)


@settings(max_examples=150)
@given(
    st.randoms(use_true_random=False), st.lists(st.tuples(WORK, st.sampled_from([PEER, "203.0.113.10"])), max_size=12)
)
async def test_no_answer_says_that_more_is_left_than_a_limit_has(random: Random, works: list[Any]) -> None:
    app = program(random, limiter())
    for work, client in works:
        assert faults(await call(app, headers=work, client=(client, 1234))) == []


STYLES = ("draft", "legacy", ("draft", "legacy"), None)


@pytest.mark.parametrize("admitted", [True, False])
@pytest.mark.parametrize(("outer", "inner"), list(product(STYLES, STYLES)))
async def test_each_middleware_shows_its_limits_in_its_own_style(outer: Any, inner: Any, admitted: bool) -> None:
    amount = 2 if admitted else 1
    app = RateLimitMiddleware(
        hello, rules=[Rule("*", f"{amount}/minute", name="within")], headers=inner, limiter=limiter()
    )
    app = RateLimitMiddleware(app, rules=[Rule("*", "9/minute", name="around")], headers=outer, limiter=limiter())
    for _ in range(2):
        answer = await call(app)
    assert answer.status == (200 if admitted else 429)
    drafted = [name for name, style in (("around", outer), ("within", inner)) if "draft" in (style or ())]
    assert sorted(name for name, _ in fields(answer.headers.get("ratelimit-policy", ""))) == drafted
    assert sorted(name for name, _ in fields(answer.headers.get("ratelimit", ""))) == drafted
    # The older fields have one value each: those of the innermost middleware that writes them.
    remaining = "0" if "legacy" in (inner or ()) else "7" if "legacy" in (outer or ()) else None
    assert answer.headers.get("x-ratelimit-remaining") == remaining


LIMIT = RateLimit("1/hour")

OWN = ["RateLimit", "RateLimit-Policy", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"]


def spelt(name: str) -> list[Any]:
    written = name.encode()
    return [kind(text) for text in (written, written.upper()) for kind in (bytes, bytearray, memoryview)]


@pytest.mark.parametrize("refused", [False, True])
async def test_fields_of_our_names_that_the_application_writes_stay(refused: bool) -> None:
    headers = [(spelling, b"theirs") for name in OWN for spelling in spelt(name)]

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
    assert added - {"retry-after", "cache-control"} == {"ratelimit", "ratelimit-policy"}, "of the older ones, one value"
