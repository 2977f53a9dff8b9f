"""A ban says where it holds, by the kinds of keys that workers have published."""

import re
from typing import Any, NamedTuple

import pytest

from slidegate import BanPolicy, Limiter, MemoryStore, RateLimitMiddleware, Rule, client_ip, header, mcp_tool
from slidegate.ops.explain import facts_of
from slidegate.ops.facts import Verdict
from slidegate.ops.kinds import beginnings_of
from slidegate.ops.published_rules import where_banned
from slidegate.ops.rows import key_of
from slidegate.web.keys import combine, cookie, everyone, query, user

from ..asgi import PEER, call, hello, statuses

DIGEST = "#9e8c9f05d4728d0f8b2cfa5b28b233c4"
KEYED = f"header:x-api-key{DIGEST}"
BY_KEY = header("X-API-Key")
NOBODY = "no published rule reads 'header:x-api-key'"
LONG = header("X-Internal-Service-Account-Id")
CASES: dict[str, tuple[Any, Any, str]] = {  # the key of a rule or an option, the key that is banned, and what is said
    "an address": (client_ip(), "203.0.113.7", ""),
    "a header": (BY_KEY, KEYED, "it holds where 'rule' counts by it"),
    "another header": (BY_KEY, f"header:x-other{DIGEST}", "no published rule reads 'header:x-other'"),
    "a rule in shadow": (Rule("*", "5/minute", key=BY_KEY, shadow=True), KEYED, NOBODY),
    "a part of a key": (combine(BY_KEY, user), KEYED, NOBODY),
    "a policy": (BanPolicy("5/minute", "1h", key=BY_KEY), KEYED, ""),
    "a policy in shadow": (BanPolicy("5/minute", "1h", key=BY_KEY, shadow=True), KEYED, ""),
    "another policy": (BanPolicy("5/minute", "1h", key=header("X-Other")), KEYED, NOBODY),
    "a user": (user, "user:ann", "it holds where 'rule' counts by it"),
    "a user with a sign in the name": (user, "user:ann#1", "it holds where 'rule' counts by it"),
    "a user with a long name": (user, f"user:{'x' * 70}", "it holds where 'rule' counts by it"),
    "a header with a long name": (LONG, LONG.of("k123"), "it holds where 'rule' counts by it"),
    "a cookie with a sign in its name": (cookie("a#b"), cookie("a#b").of("k"), "it holds where 'rule' counts by it"),
    "a tool": (mcp_tool("export", validated=True), "mcp_tool:export", "it holds where 'rule' counts by it"),
    "everyone": (everyone, "everyone", "it holds where 'rule' counts by it"),
    "no user": (client_ip(), "user:ann", "no published rule reads 'user'"),
    "a function": (lambda request: "x", "tenant:acme", "it holds where 'rule' counts by it"),
    "no function": (client_ip(), "tenant:acme", "no published rule reads 'tenant'"),
    "both": (combine(user, header("X-API-Key")), f"combined{DIGEST}", "it holds where 'rule' counts by it"),
}


@pytest.mark.parametrize("case", CASES)
async def test_where_the_ban_of_a_key_holds_is_said_by_what_workers_have_published(case: str) -> None:
    reads, given, holds = CASES[case]
    options: dict[str, Any] = {"limits": "5/minute", "bans": reads}
    if isinstance(reads, Rule):
        options = {"rules": [reads]}
    elif not isinstance(reads, BanPolicy):
        options = {"rules": [Rule("/mcp", "5/minute", key=reads, name="rule")]}
    limiter, holds = Limiter(MemoryStore()), holds or "it holds on every request"
    key = limiter.key_for(given)
    nobody = where_banned(await limiter.published(), f"header:x-other{DIGEST}")
    assert nobody.startswith("which rules read 'header:x-other' is not known, as no worker has published that; ")
    middleware = RateLimitMiddleware(hello, limiter=limiter, **options)
    said = where_banned(await middleware.limiter.published(), key)
    assert said.partition("; ")[0] == holds
    assert (said == holds) == (holds == "it holds on every request")
    await limiter.ban(given, "1h")
    answer = await call(middleware, "/mcp", headers={"X-API-Key": "k123"})
    assert (answer.status == 403) == (said.startswith("it holds") and key in (KEYED, "everyone"))
    if "counts by it" in holds:  # so `explain` has a row for it
        (row,) = [row for row in (await facts_of(limiter, given)).rows if row.ban is not None]
        assert (row.does, row.requests) == (Verdict.REFUSES, "where 'rule' counts by it")


class Case(NamedTuple):
    """A key as an operator types it, with its value; a request of its client; and a key of rules that reads it."""

    key: str
    value: str | None
    sent: dict[str, Any]
    reads: Any = None


ADVISED = [
    Case(PEER, None, {}),
    Case("203.0.113.0/24", None, {}),
    Case("2001:db8::7", None, {"client": ("2001:db8::7", 1)}),
    Case("2001:db8::/48", None, {"client": ("2001:db8::7", 1)}),
    Case("peer:testclient", None, {"client": ("testclient", 1)}),
    Case("header:X-API-Key", "k123", {"headers": {"x-api-key": "k123"}}, header("X-API-Key")),
    Case("cookie:device", "d7", {"headers": {"cookie": "device=d7"}}, cookie("device")),
    Case("query:token", "t1", {"query_string": b"token=t1"}, query("token")),
    Case("user:42", None, {"user": "42"}, user),
    Case("user:42", None, {}, lambda request: "user:42"),
    Case("tenant:acme", None, {}, lambda request: "tenant:acme"),
    Case("account/" * 20, None, {}, lambda request: "account/" * 20),
]
PATHS = ("/api", "/other", "/health")
EVERYWHERE = [403, 403, 403]


async def answered(case: Case, rules: list[Rule], **options: Any) -> list[int]:
    """Return the statuses of the paths for the client of a case, which is banned."""
    limiter = Limiter()
    await limiter.ban(key_of(case.key, case.value), "1h")
    rules = [*rules, Rule("/health", exempt=True), Rule("*", "100/minute", name="all")]
    app = RateLimitMiddleware(hello, limiter=limiter, rules=rules, **options)
    return [status for path in PATHS for status in await statuses(app, 1, path, **case.sent)]


@pytest.mark.parametrize("case", ADVISED, ids=lambda case: case.key[:20])
async def test_what_is_advised_makes_a_ban_hold_on_every_request(case: Case) -> None:
    limiter = Limiter()
    said = where_banned([], limiter.key_for(key_of(case.key, case.value)))
    if case.reads is None:
        assert said == "it holds on every request"
        assert await answered(case, []) == EVERYWHERE
        return
    assert await answered(case, []) == [200, 200, 200]
    assert await answered(case, [Rule("/api", "100/minute", key=case.reads, name="api")]) == [403, 200, 200]
    (line,) = re.findall(r"; ((?:BanPolicy|Rule)\(.*\))", said)
    made = eval(line, globals() | {"your_function": case.reads})
    if isinstance(made, Rule):
        assert await answered(case, [made]) == EVERYWHERE
    elif not callable(case.reads):
        assert await answered(case, [], bans=[made]) == EVERYWHERE


@pytest.mark.parametrize(("kind", "key"), [("network:country", "country:NL"), ("network:asn", "asn:64496")])
def test_the_keys_of_operators_and_countries_do_not_say_where_they_come_from(kind: str, key: str) -> None:
    assert key.startswith(beginnings_of(kind))
