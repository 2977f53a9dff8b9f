"""Costs that are known only afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from slidegate import (
    ConfigurationError,
    Limiter,
    MemoryStore,
    Networks,
    RateLimit,
    RateLimitMiddleware,
    Reason,
    Rule,
    charge,
)
from slidegate.testing import FakeClock

from ..asgi import PEER, call, hello, scope_of, statuses


def model(tokens: int, rule: str | None = None) -> Any:
    """Return an application that charges for its answer after it was sent."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await hello(scope, receive, send)
        await charge(Request(scope), tokens, rule=rule)

    return app


async def test_a_debt_goes_beyond_the_limit_and_holds_the_next_requests_for_a_window() -> None:
    clock = FakeClock()
    limiter = Limiter(MemoryStore(clock=clock))
    app = RateLimitMiddleware(model(250), limiter=limiter, rules=[Rule("*", "100/m", cost=0, name="tokens")])
    assert await statuses(app, 2) == [200, 429]
    refused = await call(app)
    assert refused.headers["retry-after"] == "61", "a window and a slice"
    clock.advance("61s")
    assert await statuses(app, 1) == [200]


async def test_the_rule_is_named_where_several_apply() -> None:
    rules = [Rule("*", "9/hour", name="requests"), Rule("*", "100/hour", cost=0, name="tokens")]
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    await call(RateLimitMiddleware(model(30, "tokens"), limiter=limiter, rules=rules))
    assert (await limiter.peek(PEER, "100/hour", 0, rule="tokens")).remaining == 70
    assert (await limiter.peek(PEER, "9/hour", 0, rule="requests")).remaining == 8
    with pytest.raises(ConfigurationError, match=r"'requests', 'tokens'; name one"):
        await call(RateLimitMiddleware(model(30), rules=rules))
    with pytest.raises(ConfigurationError, match=r"did you mean 'tokens'"):
        await call(RateLimitMiddleware(model(30, "token"), rules=rules))


async def test_each_gate_charges_where_it_counts() -> None:
    inner, outer = Limiter(), Limiter()
    app = RateLimitMiddleware(
        RateLimitMiddleware(model(5, "tokens"), limiter=inner, rules=[Rule("*", "9/hour", name="requests")]),
        limiter=outer,
        rules=[Rule("*", "100/hour", cost=0, name="tokens")],
    )
    await call(app)
    assert (await outer.peek(PEER, "100/hour", 0, rule="tokens")).remaining == 95


async def test_without_a_gate_there_is_nothing_to_charge() -> None:
    with pytest.raises(ConfigurationError, match="no RateLimitMiddleware stands above"):
        await charge(Request(scope_of()), 5)


TOKENS = Rule("*", "100/hour", cost=0, name="tokens")


@pytest.mark.parametrize(
    "options",
    [
        {"rules": [TOKENS], "enabled": False},
        {"rules": [TOKENS], "allowlist": Networks([PEER])},
        {"rules": [Rule("*", exempt=True, name="free"), TOKENS]},
        {"rules": [Rule("*", lambda request: "unlimited", name="tokens")]},
        {"rules": [Rule("*", "9/hour", key=lambda request: None, name="tokens")]},
        {"rules": [Rule("*", "9/hour", shadow=True, name="tokens")]},
    ],
)
@pytest.mark.parametrize("rule", ["tokens", None])
async def test_where_the_rule_does_not_count_the_request_nothing_is_charged_and_nothing_breaks(
    options: dict[str, Any], rule: str | None
) -> None:
    assert (await call(RateLimitMiddleware(model(5, rule), **options))).status == 200


async def test_a_limit_at_an_endpoint_that_does_not_count_is_a_known_name_too() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await RateLimit("9/hour", key=lambda request: None, name="tokens").check(Request(scope))
        decision = await charge(Request(scope), 5, rule="tokens")
        assert decision.reason is Reason.EXEMPT
        await hello(scope, receive, send)

    assert (await call(RateLimitMiddleware(app, rules=[Rule("*", "9/hour")]))).status == 200


@pytest.mark.parametrize("units", [-1, 1.5, "5", None, True])
async def test_units_that_cannot_be_counted_are_an_error(units: Any) -> None:
    with pytest.raises(ConfigurationError, match="units"):
        await call(RateLimitMiddleware(model(units), limits="9/hour"))
