"""Whose limits are shown: those of the client that is looked at, whoever else asked last."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Route

from slidegate import Limiter, MemoryStore, Quota, RateLimit, RateLimitMiddleware, Rule, header
from slidegate.limiter.inspect import MAX_PLANS

from ..asgi import call, hello, page

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
