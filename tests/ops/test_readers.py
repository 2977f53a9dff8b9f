"""A ban by hand of a key that no worker reads would refuse nothing, so it is refused, with the line to add."""

from typing import Any

import pytest

from slidegate import (
    BanPolicy,
    ConfigurationError,
    Limiter,
    MemoryStore,
    RateLimitMiddleware,
    Rule,
    cookie,
    everyone,
    header,
    mcp_tool,
    user,
)
from slidegate.ops.kinds import beginnings_of
from slidegate.ops.readers import Reading, check_read, readers_of
from slidegate.web.keys import combine

from ..asgi import call, hello

DIGEST = "#9e8c9f05d4728d0f8b2cfa5b28b233c4"
BY_HEADER = Rule("/a", "5/minute", key=header("X-API-Key"), name="keyed")
CASES: dict[str, tuple[dict[str, Any], Any, Reading, str]] = {
    "an address": ({"limits": "5/minute"}, "203.0.113.7", Reading.READ, "on every request"),
    "a rule": ({"rules": [BY_HEADER]}, f"header:x-api-key{DIGEST}", Reading.READ, "where rule 'keyed' reads it"),
    "another header": ({"rules": [BY_HEADER]}, f"header:x-other{DIGEST}", Reading.UNREAD, ""),
    "a policy": (
        {"limits": "5/minute", "bans": BanPolicy("5/minute", "1h", key=header("X-API-Key"))},
        f"header:x-api-key{DIGEST}",
        Reading.READ,
        "on every request",
    ),
    "a user": ({"limits": "5/minute", "key": user}, "user:ann", Reading.READ, "where rule 'default' reads it"),
    "a user with a sign in the name": (
        {"limits": "5/minute", "key": user},
        "user:ann#1",
        Reading.READ,
        "where rule 'default' reads it",
    ),
    "a user with a long name": (
        {"limits": "5/minute", "key": user},
        f"user:{'x' * 70}",
        Reading.READ,
        "where rule 'default' reads it",
    ),
    "a header with a long name": (
        {"rules": [Rule("/a", "5/minute", key=header("X-Internal-Service-Account-Id"), name="keyed")]},
        header("X-Internal-Service-Account-Id").of("k123"),
        Reading.READ,
        "where rule 'keyed' reads it",
    ),
    "a cookie with a sign in its name": (
        {"rules": [Rule("/a", "5/minute", key=cookie("a#b"), name="keyed")]},
        cookie("a#b").of("k123"),
        Reading.READ,
        "where rule 'keyed' reads it",
    ),
    "a tool": (
        {"rules": [Rule("/mcp", "5/minute", key=mcp_tool("export", "run", validated=True), name="tools")]},
        "mcp_tool:export",
        Reading.READ,
        "where rule 'tools' reads it",
    ),
    "everyone": (
        {"rules": [Rule("*", "5/minute", key=everyone, name="all")]},
        "everyone",
        Reading.READ,
        "where rule 'all' reads it",
    ),
    "no user": ({"limits": "5/minute"}, "user:ann", Reading.UNREAD, ""),
    "a function": (
        {"limits": "5/minute", "key": lambda request: "x"},
        "tenant:acme",
        Reading.READ,
        "where rule 'default'",
    ),
    "no function": ({"limits": "5/minute"}, "tenant:acme", Reading.UNREAD, ""),
    "both": (
        {"rules": [Rule("*", "5/minute", key=combine(user, header("X-API-Key")), name="both")]},
        f"combined{DIGEST}",
        Reading.READ,
        "where rule 'both' reads it",
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_who_reads_a_kind_of_key_is_what_workers_have_published(case: str) -> None:
    options, given, reading, holds = CASES[case]
    limiter = Limiter(MemoryStore())
    key = limiter.key_for(given)
    assert (await readers_of(limiter, f"header:x-other{DIGEST}")).reading is Reading.UNKNOWN, "there is no worker"
    middleware = RateLimitMiddleware(hello, limiter=limiter, **options)
    found = await readers_of(limiter, key)
    assert (found.reading, middleware.limiter) == (reading, limiter)
    if reading is Reading.READ:
        assert found.scope.holds.startswith(holds)
        check_read(found, key, "write --anyway")
        return
    with pytest.raises(ConfigurationError, match=r"refuse nothing; write .* in the application, or write --anyway"):
        check_read(found, key, "write --anyway")


BY_KEY = header("X-API-Key")


@pytest.mark.parametrize(
    "options",
    [
        {"rules": [Rule("*", "5/minute", key=BY_KEY)]},
        {"rules": [Rule("*", "5/minute", key=BY_KEY, shadow=True)]},
        {"rules": [Rule("*", "5/minute", key=BY_KEY, shadow=True), Rule("*", "9/minute")]},
        {"rules": [Rule("*", "5/minute", key=combine(BY_KEY, user))]},
        {"limits": "5/minute", "bans": BanPolicy("5/minute", "1h", key=BY_KEY)},
        {"limits": "5/minute", "bans": BanPolicy("5/minute", "1h", key=BY_KEY, shadow=True)},
        {"limits": "5/minute", "bans": BanPolicy("5/minute", "1h", key=header("X-Other"))},
    ],
    ids=["rule", "shadow", "beside", "combined", "policy", "shadow policy", "other"],
)
async def test_a_ban_refuses_where_somebody_is_said_to_read_its_key(options: dict[str, Any]) -> None:
    limiter = Limiter(MemoryStore())
    app = RateLimitMiddleware(hello, limiter=limiter, **options)
    await limiter.ban(BY_KEY.of("k123"), "1h")
    answer = await call(app, "/", headers={"X-API-Key": "k123"})
    found = await readers_of(limiter, limiter.key_for(BY_KEY.of("k123")))
    assert (answer.status == 403) == (found.reading is Reading.READ)


@pytest.mark.parametrize(("kind", "key"), [("network:country", "country:NL"), ("network:asn", "asn:64496")])
def test_the_keys_of_operators_and_countries_do_not_say_where_they_come_from(kind: str, key: str) -> None:
    assert key.startswith(beginnings_of(kind))
