"""A plan that lets nobody pass is one, and no mistake."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from slidegate import (
    BanPolicy,
    ConfigurationError,
    Decision,
    Limiter,
    MemoryStore,
    Quota,
    RateLimit,
    RateLimitMiddleware,
    Rule,
    header,
)
from slidegate.limiter.inspect import MAX_PLANS
from slidegate.stats import Statistics
from slidegate.testing import RecordingObserver

from ..asgi import PEER, call, hello, page, scope_of, send_scope, statuses

NOBODY = [
    "nobody", " Nobody ", "NOBODY", "0/minute", "00 / 1m", "0 per 2 hours", "-0/s", "5/minute; 0/hour", "x: 0/s @9",
    ["5/minute", "0/hour"], ("nobody",), iter(["9/day", "0/minute"]),
]  # fmt: skip


@pytest.mark.parametrize("plan", NOBODY, ids=lambda plan: plan if isinstance(plan, str) else type(plan).__name__)
async def test_nobody_passes_where_the_limits_function_says_so(plan: Any, caplog: pytest.LogCaptureFixture) -> None:
    limiter = Limiter()
    plans = plan if isinstance(plan, (str, list, tuple)) else list(plan)
    rules = [
        Rule("*", "9/hour", name="all"),
        Rule("*", lambda request: iter(plans) if plan is not plans else plan, name="plan"),
    ]
    middleware = RateLimitMiddleware(hello, rules=rules, limiter=limiter)
    for _ in range(3):
        scope = scope_of()
        answer = await send_scope(middleware, scope)
        assert answer.status == 429
        assert "retry-after" not in answer.headers
        assert answer.headers["cache-control"] == "no-store"
        problem = json.loads(answer.body)
        assert (problem["violated-policies"], problem["unsatisfiable"]) == (["plan"], True)
        decision = scope["slidegate.ended"].decision
        assert (decision.allowed, decision.reason, decision.by, decision.retry_after) == (False, "nobody", "plan", None)
    assert (await limiter.peek(PEER, "9/hour", 0, rule="all")).remaining == 9, "a refusal charges nothing"
    assert caplog.records == []


async def test_a_function_that_fails_can_leave_nobody() -> None:
    rule = Rule("*", lambda request: 1 / 0, fallback_limits="nobody")  # type: ignore[arg-type, return-value]
    assert await statuses(RateLimitMiddleware(hello, rules=[rule]), 2) == [429, 429]
    for limits in ("nobody", "0/minute"):
        with pytest.raises(ConfigurationError):
            Rule("*", limits)
        with pytest.raises(ConfigurationError):
            Rule("*", "5/minute", fallback_limits=limits)


async def test_a_ban_goes_before_nobody_and_refusals_strike() -> None:
    policy = BanPolicy("3/10m", "1h", signals={"refused": 1})
    middleware = RateLimitMiddleware(hello, rules=[Rule("*", lambda request: "nobody")], bans=policy)
    assert await statuses(middleware, 5) == [429, 429, 429, 403, 403]


async def test_on_refused_can_tell_and_stats_name_the_rule() -> None:
    def refused(request: Any, decision: Decision) -> PlainTextResponse:
        return PlainTextResponse(f"{decision.reason} {decision.by}", 402)

    limiter = Limiter()
    statistics = Statistics(limiter)
    rules = [Rule("*", lambda request: "nobody", name="plan")]
    middleware = RateLimitMiddleware(hello, rules=rules, on_refused=refused, limiter=limiter)
    answer = await call(middleware)
    assert (answer.status, answer.body) == (402, b"nobody plan")
    assert statistics.stats().rules["plan"].refused == 1


async def test_at_an_endpoint_nobody_passes_and_what_was_charged_before_stays() -> None:
    limiter = Limiter()

    async def plan(request: HTTPConnection) -> str:
        return "0/minute"

    middleware = Middleware(RateLimitMiddleware, limits="9/hour", limiter=limiter)
    app = Starlette(routes=[Route("/", RateLimit(plan, name="plan")(page))], middleware=[middleware])
    answer = await call(app)
    assert (answer.status, json.loads(answer.body)["violated-policies"]) == (429, ["plan"])
    assert "retry-after" not in answer.headers
    assert answer.headers["ratelimit"] == '"default";r=8;t=3600'


async def test_a_rule_that_looks_on_says_that_nobody_would_have_passed() -> None:
    observer, told = RecordingObserver(without=["refused"]), []
    rules = [
        Rule("*", lambda request: "nobody", shadow=True, name="shadow"),
        Rule("*", lambda request: "nobody", shadow=True, on_exceeded=lambda key, seen: told.append(key), name="hot"),
    ]
    middleware = RateLimitMiddleware(hello, rules=rules, limiter=Limiter(observers=[observer]))
    assert await statuses(middleware, 3) == [200, 200, 200]
    assert [event.kind for event in observer.events] == ["shadow_refused"] * 6
    assert told == [PEER]


# -- the limits that are shown are those of the client -----------------------------------------------------------------


CUSTOMER = header("X-API-Key")
PLANS: dict[str, Any] = {
    "k-ann": "5/minute",
    "k-bob": "10/minute",
    "k-eve": ["3/minute", Quota("100/month")],
    "k-ops": "unlimited",
    "k-out": "nobody",
}
SHOWN = {
    "k-ann": ["5/1m"],
    "k-bob": ["10/1m"],
    "k-eve": ["3/1m", "100/month"],
    "k-ops": [],
    "k-out": [],
}


def plan(request: HTTPConnection) -> Any:
    return PLANS[request.headers["X-API-Key"]]


async def shown(limiter: Limiter, customer: str) -> list[tuple[str, bool]]:
    """Return the limits that are shown of a customer, and whether each is marked as the fall-back."""
    view = await limiter.inspect(CUSTOMER.of(customer))
    return [(str(window.limit).partition(" from ")[0], window.fallback) for window in view.windows]


def by_rule(limiter: Limiter) -> Any:
    rule = Rule("*", plan, key=CUSTOMER, fallback_limits="2/minute", name="plan")
    return RateLimitMiddleware(hello, rules=[rule], limiter=limiter)


def at_the_endpoint(limiter: Limiter) -> Any:
    limit = RateLimit(plan, key=CUSTOMER, fallback_limits="2/minute", name="plan")
    return RateLimitMiddleware(Starlette(routes=[Route("/", limit(page))]), limiter=limiter)


@pytest.mark.parametrize("make", [by_rule, at_the_endpoint])
def test_each_customer_is_shown_its_own_plan_and_one_that_did_not_ask_the_fall_back(make: Any) -> None:
    async def play(asked: list[str]) -> None:
        limiter = Limiter()
        app = make(limiter)
        for customer in asked:
            await call(app, headers={"X-API-Key": customer})
        for customer in PLANS:
            own = [(limit, False) for limit in SHOWN[customer]]
            assert await shown(limiter, customer) == (own if customer in asked else [("2/1m", True)]), customer

    @given(st.lists(st.sampled_from(sorted(PLANS)), min_size=1, max_size=12))
    def check(asked: list[str]) -> None:
        asyncio.run(play(asked))

    check()


async def test_a_changed_plan_is_shown_from_the_next_request_on() -> None:
    limiter, plans = Limiter(), {"k-ann": "5/minute", "k-bob": "9/hour"}
    rule = Rule("*", lambda request: plans[request.headers["X-API-Key"]], key=CUSTOMER, name="plan")
    app = RateLimitMiddleware(hello, rules=[rule], limiter=limiter)
    for customer in plans:
        await call(app, headers={"X-API-Key": customer})
    plans["k-ann"] = "7/minute"
    await call(app, headers={"X-API-Key": "k-bob"})
    assert await shown(limiter, "k-ann") == [("5/1m", False)]
    await call(app, headers={"X-API-Key": "k-ann"})
    assert await shown(limiter, "k-ann") == [("7/1m", False)]
    plans.clear()
    await call(app, headers={"X-API-Key": "k-ann"})
    assert await shown(limiter, "k-ann") == [("60/1m", True)], "the function failed, so the fall-back counts"


async def test_plans_are_remembered_of_the_keys_that_came_last() -> None:
    limiter = Limiter(MemoryStore(max_keys=10))
    rule = Rule("*", lambda request: "5/minute", key=CUSTOMER, fallback_limits="2/minute", name="plan")
    app = RateLimitMiddleware(hello, rules=[rule], limiter=limiter)
    await call(app, headers={"X-API-Key": "k-ann"})
    for expected in (("5/1m", False), ("2/1m", True)):
        for number in range(MAX_PLANS):
            await call(app, headers={"X-API-Key": f"made up {number} {expected}"})
        assert await shown(limiter, "k-ann") == [expected]
