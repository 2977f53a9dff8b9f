"""A quota at a gate: what clients are told, how a file writes it, and what it does not go with."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp

from slidegate import (
    ConfigurationError,
    Limiter,
    MemoryStore,
    MessageLimits,
    Quota,
    RateLimit,
    RateLimitMiddleware,
    Rule,
)
from slidegate.testing import FakeClock

from ...asgi import Answer, hello, page
from ...asgi import call as ask

NOON_US = 1_735_732_800_000_000  # 2025-01-01T12:00Z
DAY_S = 86_400


def call(gate: ASGIApp, path: str = "/", **more: Any) -> Answer:
    return asyncio.run(ask(gate, path, **more))


def limiter_at(wall: FakeClock) -> Limiter:
    return Limiter(MemoryStore(clock=FakeClock(), wall_clock=wall))


def test_a_client_is_told_to_the_second_when_a_quota_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = FakeClock(NOON_US + 400_000)
    monkeypatch.setattr("slidegate.web.headers.time", lambda: wall() / 1_000_000 + 0.05)
    rule = Rule("*", ["100/minute", Quota("2/day", name="plan")], name="api")
    gate = RateLimitMiddleware(hello, rules=[rule], limiter=limiter_at(wall), headers="both")
    first, _, refused = call(gate), call(gate), call(gate)
    assert (first.status, refused.status) == (200, 429)
    assert refused.headers["ratelimit-policy"] == '"api-60";q=100;w=60, "plan";q=2'
    assert refused.headers["ratelimit"] == f'"plan";r=0;t={DAY_S // 2}, "api-60";r=98;t=61'
    assert refused.headers["retry-after"] == str(DAY_S // 2)
    assert int(refused.headers["x-ratelimit-reset"]) == NOON_US // 1_000_000 + DAY_S // 2
    assert b"No more than 2 per day" in refused.body
    wall.advance("12h")
    assert call(gate).status == 200


def test_a_quota_stands_at_an_endpoint_and_comes_from_a_function() -> None:
    def plan(request: object) -> object:
        return Quota("1/day")

    weekly = RateLimit(Quota("2/week", starts="sunday"))(page)
    app = Starlette(routes=[Route("/page", weekly), Route("/plan", page)])
    gate = RateLimitMiddleware(app, rules=[Rule("/plan", plan)], limiter=limiter_at(FakeClock(NOON_US)))  # type: ignore[arg-type]
    assert [call(gate, path="/page").status for _ in range(3)] == [200, 200, 429]
    assert [call(gate, path="/plan").status for _ in range(2)] == [200, 429]


def test_what_does_not_go_with_a_quota_is_refused_at_construction() -> None:
    with pytest.raises(ConfigurationError, match="nobody waits until a quota starts anew"):
        MessageLimits(["1/second", Quota("5/day")], beyond="wait")
    with pytest.raises(ConfigurationError, match="cost: 6 is more than '5/day from 00:00 in UTC' allows"):
        Rule("*", Quota("5/day"), cost=6)
    assert MessageLimits(Quota("5/day"), key="client").limits == (Quota("5/day"),)
