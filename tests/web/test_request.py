"""What functions of the request and the application learn of it: who its client is, and what was decided."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from slidegate import (
    ConfigurationError,
    Decision,
    Limiter,
    Networks,
    RateLimit,
    RateLimitMiddleware,
    Rule,
    client_ip,
    client_key,
    decision_of,
    strike,
)
from slidegate.testing import limits_off

from ..asgi import PEER, call, scope_of

CLIENTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {}, PEER),
    ({}, {"client": ("::ffff:198.51.100.7", 1)}, "198.51.100.7"),
    ({}, {"client": ("2001:db8::1", 1)}, "2001:db8::/64"),
    ({"client": client_ip(ipv6_prefix=48)}, {"client": ("2001:db8:0:9::1", 1)}, "2001:db8::/48"),
    ({"client": client_ip(trusted=1)}, {"headers": {"X-Forwarded-For": "192.0.2.1, 198.51.100.7"}}, "198.51.100.7"),
    ({}, {"headers": {"X-Forwarded-For": "198.51.100.7"}}, PEER),
    ({}, {"client": None}, "unknown-peer"),
    ({}, {"client": ("a.sock", 1)}, "peer:a.sock"),
]
OFF: dict[str, tuple[dict[str, Any], dict[str, str], Callable[[], AbstractContextManager[None]]]] = {
    "on": ({}, {}, nullcontext),
    "exempt": ({"rules": [Rule("*", exempt=True)], "limits": None}, {}, nullcontext),
    "disabled by its option": ({"enabled": False}, {}, nullcontext),
    "disabled by the environment": ({}, {"SLIDEGATE_ENABLED": "0"}, nullcontext),
    "disabled in tests": ({}, {}, limits_off),
    "allowlisted": ({"allowlist": Networks(["198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32"])}, {}, nullcontext),
}


def both(request: HTTPConnection) -> tuple[str, Decision]:
    return client_key(request), decision_of(request)


@pytest.mark.parametrize("way", OFF)
@pytest.mark.parametrize(("options", "request_", "key"), CLIENTS)
async def test_the_application_learns_client_and_decision_whatever_is_switched_off(
    way: str, options: dict[str, Any], request_: dict[str, Any], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more, environment, switch = OFF[way]
    seen: list[tuple[str, Decision]] = []

    async def endpoint(request: Request) -> PlainTextResponse:
        seen.append(both(request))
        return PlainTextResponse("hi", background=BackgroundTask(lambda: seen.append(both(request))))

    inner = Starlette(routes=[Mount("/in", Starlette(routes=[Route("/", endpoint)]))])
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    app = RateLimitMiddleware(inner, **{"limits": "9/hour", **options, **more})
    with switch():
        assert (await call(app, "/in/", **request_)).status == 200
    addressless = key in ("unknown-peer", "peer:a.sock")
    reason = "ok" if way == "on" or (way == "allowlisted" and addressless) else way.partition(" ")[0]
    assert [(found, decision.reason) for found, decision in seen] == [(key, reason)] * 2


@pytest.mark.parametrize(("options", "request_", "key"), CLIENTS)
async def test_a_key_function_may_return_the_key_of_the_client(
    options: dict[str, Any], request_: dict[str, Any], key: str
) -> None:
    async def endpoint(request: Request) -> PlainTextResponse:
        return PlainTextResponse(" ".join(state.key for state in decision_of(request).states))

    limited = RateLimit("5/hour", key=client_key, name="at the endpoint")(endpoint)
    rules = [Rule("*", "9/hour", name="plain"), Rule("*", "9/hour", key=client_key, name="function")]
    outer = RateLimitMiddleware(Starlette(routes=[Route("/", limited)]), rules=rules, **options)
    assert (await call(outer, **request_)).body.decode() == key, "the endpoint has the least room"
    nested = RateLimitMiddleware(outer, limits="90/hour", client=client_ip(ipv6_prefix=32))
    assert (await call(nested, **request_)).body.decode() == key, "the innermost middleware decides who it is"


async def test_without_a_middleware_functions_of_the_request_say_what_is_missing() -> None:
    request = Request(scope_of())
    with pytest.raises(ConfigurationError, match="no RateLimitMiddleware around this endpoint"):
        await strike(request)
    for function in (client_key, decision_of):
        with pytest.raises(ConfigurationError, match=f"{function.__name__}: there is no RateLimitMiddleware around"):
            function(request)


@pytest.mark.parametrize("what", ["key", "cost", "when", "limits"])
async def test_in_a_function_of_a_rule_nothing_is_decided_yet(what: str, caplog: pytest.LogCaptureFixture) -> None:
    def function(request: Request) -> str:
        return str(decision_of(request))

    options: dict[str, Any] = {"limits": "9/hour", what: function}
    if what == "limits":
        options["fallback_limits"] = "9/hour"
    await call(RateLimitMiddleware(Starlette(), rules=[Rule("*", **options)], limiter=Limiter()))
    assert "nothing is decided about this request yet" in caplog.text
