"""A plan that lets nobody pass is one, and no mistake."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Route

from slidegate import (
    BanPolicy,
    ConfigurationError,
    Limiter,
    MemoryStore,
    Quota,
    RateLimit,
    RateLimitMiddleware,
    Rule,
    header,
)
from slidegate.limiter.inspect import MAX_PLANS

from ..asgi import PEER, call, hello, page, scope_of, send_scope, statuses

NOBODY = [
    "nobody", " Nobody ", "NOBODY", "0/minute", "00 / 1m", "0 per 2 hours", "-0/s", "5/minute; 0/hour", "x: 0/s @9",
    ["5/minute", "0/hour"], ("nobody",), iter(["9/day", "0/minute"]),
]  # fmt: skip


@pytest.mark.parametrize("plan", NOBODY, ids=str)
async def test_nobody_passes_where_the_limits_function_says_so(plan: Any, caplog: pytest.LogCaptureFixture) -> None:
    limiter = Limiter()
    rules = [Rule("*", "9/hour", name="all"), Rule("*", lambda request: plan, name="plan")]
    scope = scope_of()
    answer = await send_scope(RateLimitMiddleware(hello, rules=rules, limiter=limiter), scope)
    assert (answer.status, answer.headers["cache-control"]) == (429, "no-store")
    assert "retry-after" not in answer.headers
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


# -- the limits that are shown are those of the client -----------------------------------------------------------------


CUSTOMER = header("X-API-Key")
PLANS: dict[str, Any] = {
    "k-ann": "5/minute",
    "k-bob": "10/minute",
    "k-eve": ["3/minute", Quota("100/month")],
    "k-ops": "unlimited",
    "k-out": "nobody",
}
SHOWN = {"k-ann": ["5/1m"], "k-bob": ["10/1m"], "k-eve": ["3/1m", "100/month"], "k-ops": [], "k-out": []}


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


async def test_plans_are_remembered_of_the_keys_that_came_last() -> None:
    limiter = Limiter(MemoryStore(max_keys=10))
    rule = Rule("*", lambda request: "5/minute", key=CUSTOMER, fallback_limits="2/minute", name="plan")
    app = RateLimitMiddleware(hello, rules=[rule], limiter=limiter)
    await call(app, headers={"X-API-Key": "k-ann"})
    for expected in (("5/1m", False), ("2/1m", True)):
        for number in range(MAX_PLANS):
            await call(app, headers={"X-API-Key": f"made up {number} {expected}"})
        assert await shown(limiter, "k-ann") == [expected]
