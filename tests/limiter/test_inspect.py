"""Looking at one customer: which rules are asked, how many at a time, and in whose words."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from slidegate import (
    Limiter,
    MemoryStore,
    MessageLimits,
    Quota,
    RateLimit,
    RateLimitMiddleware,
    Rule,
)
from slidegate.core import Concurrency
from slidegate.limiter.inspect import TOGETHER
from slidegate.testing import FakeClock

from ..asgi import PEER, call, hello, page
from ..remote_stores import RemoteStore


def labels(view: Any) -> list[tuple[str, int]]:
    """Return the name and the units used of every window that holds anything."""
    return [(shown.name, shown.used) for shown in view.windows if shown.used]


async def test_the_rules_of_all_gates_endpoints_and_routes_are_asked(clock: FakeClock) -> None:
    limiter = Limiter(MemoryStore(clock=clock))
    limited = RateLimit("7/minute", name="at_the_endpoint")(page)
    routes = Starlette(routes=[Route("/limited", limited)])
    inner = RateLimitMiddleware(routes, default_limits="40/minute", limiter=limiter)
    rules = [
        Rule("/limited", "5/minute; 50/hour", name="short"),
        Rule("*", Quota("1000/day"), name="plan"),
        Rule("*", "30/minute", concurrency=3, name="both"),
        Rule("/never", "9/minute", name="elsewhere"),
    ]
    outer = RateLimitMiddleware(inner, rules=rules, limiter=limiter, messages=MessageLimits("9/minute"))
    for _ in range(2):
        assert (await call(outer, "/limited")).status == 200
    view = await limiter.inspect(PEER)
    asked = ("at_the_endpoint", "both", "per_route_GET__limited", "plan", "short_3600", "short_60")
    assert sorted(labels(view)) == [(name, 2) for name in asked]
    assert "elsewhere" in {shown.label for shown in view.windows if not shown.used}
    assert [shown.label for shown in view.windows if isinstance(shown.limit, Concurrency)] == ["both"]
    assert (view.key, view.now_us) == (PEER, clock.now_us)


async def test_given_rules_are_asked_in_the_place_of_those_of_middlewares(clock: FakeClock) -> None:
    limiter = Limiter(MemoryStore(clock=clock))
    await limiter.hit("ann", "5/minute", cost=2, rule="api")
    assert labels(await Limiter(limiter.store).inspect("ann")) == [], "another limiter has not heard of the rule"
    shown = await Limiter(limiter.store).inspect("ann", {"api": "5/minute", "other": ["9/hour", Quota("7/day")]})
    assert [(window.rule, window.used) for window in shown.windows] == [("api", 2), ("other", 0), ("other", 0)]


async def test_callers_are_asked_in_their_order_as_long_as_they_live() -> None:
    limiter = Limiter()
    first = RateLimitMiddleware(hello, limits="1/s", limiter=limiter)
    second = RateLimitMiddleware(first, rules=[Rule("/a", "1/s", name="a")], limiter=limiter)
    RateLimitMiddleware(hello, limits="1/s")  # on a limiter of its own
    limited = limiter.limited("2/s", key="b", rule="function")(hello)
    assert limiter.engine.callers.listed()[:2] == [first, second] == [*limiter.middlewares]
    assert [bound.rule.label for bound in second.bound()] == ["a"]
    buckets = [bucket for caller in limiter.engine.callers.listed() for bucket in caller.buckets()]
    assert buckets[-1].name == "function"
    assert [window.rule for window in (await limiter.inspect(PEER)).windows] == [bucket.name for bucket in buckets]
    del first, second, limited, buckets
    gc.collect()
    assert (limiter.engine.callers.listed(), limiter.middlewares) == ([], ())
    assert (await limiter.inspect(PEER)).windows == ()


async def test_a_changed_amount_is_shown_once_with_the_newest(clock: FakeClock) -> None:
    limiter = Limiter(MemoryStore(clock=clock))
    for amount in (5, 9):
        app = RateLimitMiddleware(hello, rules=[Rule("*", f"{amount}/minute", name="api")], limiter=limiter)
        await call(app)
    assert [(window.used, window.limit.amount) for window in (await limiter.inspect(PEER)).windows] == [(2, 9)]


@pytest.mark.interpreted("a compiled class cannot be derived from")
async def test_a_thousand_rules_are_asked_a_part_at_a_time_and_the_rest_is_counted(clock: FakeClock) -> None:
    sizes: list[int] = []

    class Watched(RemoteStore):
        def answer(self, question: Callable[..., Any], *arguments: Any) -> Any:
            if question == self.inner.inspect:
                sizes.append(len(arguments[1]))
            return question(*arguments)

    limiter = Limiter(Watched(clock))
    await limiter.hit("ann", "5/minute", rule="rule-0")
    rules = {f"rule-{number}": "5/minute" for number in range(5 * TOGETHER + 5)}
    view = await limiter.inspect("ann", rules)
    assert (len(view.windows), max(sizes)) == (5 * TOGETHER + 5, TOGETHER)
    assert labels(view) == [("rule_0", 1)]
