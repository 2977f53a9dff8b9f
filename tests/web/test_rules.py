"""Which requests a rule is about, and which limits: plans, quotas, and limits that nobody passes."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Route

from slidegate import (
    ConfigurationError,
    Limiter,
    MemoryStore,
    Quota,
    RateLimit,
    RateLimitMiddleware,
    Rule,
    everyone,
    header,
)
from slidegate.testing import FakeClock

from ..asgi import call, hello, page


def test_a_rule_without_a_name_counts_by_its_methods_and_paths() -> None:
    assert Rule("*", "5/minute").identity == "default"
    assert Rule("/a", "5/minute").identity == Rule("/a", "9/minute", key=everyone).identity == "/a"
    assert Rule("/a", "5/minute", methods=["POST"]).identity == "POST /a"
    assert Rule("/a", "5/minute", name="a").identity == "a"


@given(
    st.lists(
        st.tuples(st.sampled_from(["*", "/a"]), st.sampled_from([None, ("GET",)]), st.sampled_from([None, "/a", "b"])),
        max_size=4,
    )
)
def test_two_limits_of_one_middleware_never_share_a_bucket(written: list[tuple[str, Any, str | None]]) -> None:
    rules = [
        Rule(path, f"{amount}/minute", methods=methods, name=name)
        for amount, (path, methods, name) in enumerate(written, start=1)
    ]
    is_apart = len({rule.identity for rule in rules}) == len(rules)
    try:
        RateLimitMiddleware(hello, rules=[*rules, Rule("/a", exempt=True), Rule("/a", block=True)])
    except ConfigurationError as error:
        assert "would share one bucket" in str(error)  # noqa: PT017 - whether it raises depends on the rules
        assert not is_apart
    else:
        assert is_apart


PATHS = ["/login", "/api/login", "/v2/{rest:path}"]


def test_the_identity_is_that_of_the_paths_in_any_order() -> None:
    assert len({Rule(order, "1/minute").identity for order in permutations(PATHS)}) == 1
    others = [PATHS[:2], PATHS[:1], PATHS[0], " ".join(PATHS[:2])]
    identities = {Rule(paths, "1/minute").identity for paths in others}
    assert len(identities) == 3, "a list of one path is that path"
    assert Rule(PATHS, "1/minute").identity not in identities


NOON_US = 1_735_732_800_000_000  # 2025-01-01T12:00Z
DAY_S = 86_400


def limiter_at(wall: FakeClock) -> Limiter:
    return Limiter(MemoryStore(clock=FakeClock(), wall_clock=wall))


async def test_a_client_is_told_to_the_second_when_a_quota_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = FakeClock(NOON_US + 400_000)
    monkeypatch.setattr("slidegate.stores.system_clock.SYSTEM.time_ns", lambda: wall() * 1_000 + 50_000_000)
    rule = Rule("*", ["100/minute", Quota("2/day", name="plan")], name="api")
    middleware = RateLimitMiddleware(hello, rules=[rule], limiter=limiter_at(wall), headers=("draft", "legacy"))
    first, _, refused = await call(middleware), await call(middleware), await call(middleware)
    assert (first.status, refused.status) == (200, 429)
    assert refused.headers["ratelimit-policy"] == '"api_60";q=100;w=60, "plan";q=2'
    assert refused.headers["ratelimit"] == f'"api_60";r=98;t=61, "plan";r=0;t={DAY_S // 2}'
    assert refused.headers["retry-after"] == str(DAY_S // 2)
    assert int(refused.headers["x-ratelimit-reset"]) == NOON_US // 1_000_000 + DAY_S // 2
    assert b"No more than 2 per day" in refused.body
    wall.advance("12h")
    assert (await call(middleware)).status == 200


async def test_a_quota_stands_at_an_endpoint_and_comes_from_a_function() -> None:
    def plan(request: object) -> object:
        return Quota("1/day")

    weekly = RateLimit(Quota("2/week", starts="sunday"))(page)
    app = Starlette(routes=[Route("/page", weekly), Route("/plan", page)])
    middleware = RateLimitMiddleware(app, rules=[Rule("/plan", plan)], limiter=limiter_at(FakeClock(NOON_US)))  # type: ignore[arg-type]
    assert [(await call(middleware, "/page")).status for _ in range(3)] == [200, 200, 429]
    assert [(await call(middleware, "/plan")).status for _ in range(2)] == [200, 429]


CUSTOMER = header("X-API-Key")
PLANS: dict[str, Any] = {
    "k-ann": "5/minute",
    "k-bob": "10/minute",
    "k-eve": ["3/minute", Quota("100/month")],
    "k-ops": "unlimited",
}
SHOWN = {"k-ann": ["5/1m"], "k-bob": ["10/1m"], "k-eve": ["3/1m", "100/month"], "k-ops": []}


def plan(request: HTTPConnection) -> Any:
    return PLANS[request.headers["X-API-Key"]]


async def shown(limiter: Limiter, customer: str) -> list[str]:
    """Return the limits that are shown of a customer."""
    view = await limiter.inspect(CUSTOMER.of(customer))
    return [str(window.limit).partition(" from ")[0] for window in view.windows]


def by_rule(limiter: Limiter) -> Any:
    rule = Rule("*", plan, key=CUSTOMER, fallback_limits="2/minute", name="plan")
    return RateLimitMiddleware(hello, rules=[rule], limiter=limiter)


def at_the_endpoint(limiter: Limiter) -> Any:
    limit = RateLimit(limits=plan, key=CUSTOMER, fallback_limits="2/minute", name="plan")
    return RateLimitMiddleware(Starlette(routes=[Route("/", limit(page))]), limiter=limiter)


@pytest.mark.parametrize("make", [by_rule, at_the_endpoint])
async def test_a_customer_is_shown_the_fall_back_of_its_plan_and_the_plan_that_is_passed(make: Any) -> None:
    limiter = Limiter()
    app = make(limiter)
    for customer in ("k-ann", "k-eve"):
        await call(app, headers={"X-API-Key": customer})
        assert await shown(limiter, customer) == ["2/1m"]
        view = await limiter.inspect(CUSTOMER.of(customer), {"plan": PLANS[customer]})
        assert [window.used for window in view.windows] == [1] * len(SHOWN[customer])
        assert [str(window.limit).partition(" from ")[0] for window in view.windows] == SHOWN[customer]
