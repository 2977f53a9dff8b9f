"""Whom a rule counts."""

from __future__ import annotations

import logging
import tracemalloc
from typing import Any

import pytest

from slidegate import (
    ConfigurationError,
    Limiter,
    MemoryStore,
    RateLimitMiddleware,
    Rule,
    client_ip,
    everyone,
    header,
)
from slidegate.testing import FakeClock

from ...asgi import PEER, call, hello, scope_of, send_scope, statuses


async def keys(rule: Rule, *scopes: Any, **options: Any) -> list[str]:
    app = RateLimitMiddleware(hello, rules=[rule], **options)
    found = []
    for scope in scopes:
        await send_scope(app, scope)
        found.append(scope["slidegate"].decision.states[0].key)
    return found


@pytest.mark.parametrize(
    ("peers", "key"),
    [
        (["1.2.3.4", "::ffff:1.2.3.4", "::ffff:102:304", "0:0:0:0:0:ffff:1.2.3.4", "::FFFF:1.2.3.4"], "1.2.3.4"),
        (["::ffff:5.6.7.8"], "5.6.7.8"),
        (["2001:DB8:0:0:0:0:0:1", "2001:db8::1", "2001:0db8::0001", "2001:db8::ffff:1"], "2001:db8::/64"),
        (["fe80::1%eth0", "fe80::2%25x"], "fe80::/64"),
        (["testclient"], "peer:testclient"),
        (["010.8.8.8"], "peer:010.8.8.8"),
        (["1.2.3"], "peer:1.2.3"),
        (["2130706433"], "peer:2130706433"),
    ],
)
async def test_one_client_has_one_key_however_it_is_spelled(peers: list[str], key: str) -> None:
    assert set(await keys(Rule("*", "99/hour"), *(scope_of(client=(peer, 1)) for peer in peers))) == {key}


async def test_a_peer_name_of_any_length_and_script_is_a_short_key_of_its_own() -> None:
    peers = ["x" * 70 + "a", "x" * 70 + "b", "\u00fc" * 60, "\udcff" * 40]
    found = await keys(Rule("*", "9/hour"), *(scope_of(client=(peer, 1)) for peer in peers))
    assert len(set(found)) == len(peers)
    assert max(len(key.encode()) for key in found) <= 64


async def test_prefixes_make_larger_clients() -> None:
    options = {"client": client_ip(ipv4_prefix=24, ipv6_prefix=48)}
    scopes = [scope_of(client=(peer, 1)) for peer in ("203.0.113.9", "2001:db8:1:2::3")]
    assert await keys(Rule("*", "9/hour"), *scopes, **options) == ["203.0.113.0/24", "2001:db8:1::/48"]


async def test_all_addresses_of_one_64_are_one_client() -> None:
    store = MemoryStore(clock=FakeClock())
    app = RateLimitMiddleware(hello, limits="10/hour", limiter=Limiter(store))
    passed = 0
    for number in range(20_000):
        passed += (await call(app, client=(f"2001:db8::{number // 65_536:x}:{number % 65_536:x}", 1))).status == 200
    assert (passed, store.stats().keys) == (10, 1)


@pytest.mark.parametrize("prefix", [0, 31, 129, -1, "64", 64.0, True, None])
def test_a_prefix_outside_its_range_is_refused(prefix: Any) -> None:
    with pytest.raises(ConfigurationError, match="ipv6_prefix"):
        client_ip(ipv6_prefix=prefix)


@pytest.mark.parametrize(("prefix", "warned"), [(32, False), (56, False), (64, False), (65, True), (128, True)])
def test_a_prefix_above_64_is_warned_about(prefix: int, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        RateLimitMiddleware(hello, limits="1/hour", client=client_ip(ipv6_prefix=prefix))
    assert ("/64" in caplog.text) is warned


async def test_a_header_is_digested_and_short_and_the_same_for_the_same_value() -> None:
    rule = Rule("*", "9/hour", key=header("X-API-Key"))
    first, again, other, huge = await keys(
        rule, *(scope_of(headers={"x-api-key": value}) for value in ("secret", "secret", "other", "k" * 65_536))
    )
    assert first == again != other
    assert "secret" not in first
    assert first.startswith("header:X-API-Key#")
    assert max(map(len, (first, other, huge))) <= 64


async def test_two_limiters_digest_differently() -> None:
    rule = Rule("*", "9/hour", key=header("X-API-Key"))
    digests = {(await keys(rule, scope_of(headers={"x-api-key": "k"})))[0] for _ in range(2)}
    assert len(digests) == 2


async def test_two_limiters_with_one_secret_digest_alike() -> None:
    rule = Rule("*", "9/hour", key=header("X-API-Key"))
    scopes = [scope_of(headers={"x-api-key": "k"}) for _ in range(3)]
    for secret, scope in zip(("s" * 32, b"s" * 32, "t" * 32), scopes, strict=True):
        await send_scope(RateLimitMiddleware(hello, rules=[rule], limiter=Limiter(secret=secret)), scope)
    first, same, other = (scope["slidegate"].decision.states[0].key for scope in scopes)
    assert first == same != other


async def test_a_missing_or_empty_header_is_no_way_past_the_gate() -> None:
    scopes = [scope_of(headers=headers) for headers in ({}, {"X-API-Key": ""}, {"X-Api-Key-2": "x"})]
    assert await keys(Rule("*", "9/hour", key=header("x-api-key")), *scopes) == [PEER] * 3
    fallback = header("X-API-Key", fallback=header("X-Other", fallback=client_ip(ipv4_prefix=24)))
    assert await keys(Rule("*", "9/hour", key=fallback), scope_of()) == ["203.0.113.0/24"]


async def test_of_many_lines_of_a_header_the_first_counts_as_for_the_application() -> None:
    lines = [(b"x-api-key", b"first"), *[(b"x-api-key", b"%d" % n) for n in range(99)], *[(b"x", b"y")] * 10_000]
    many, one = await keys(
        Rule("*", "9/hour", key=header("X-API-Key")), scope_of(headers=lines), scope_of(headers=lines[:1])
    )
    assert many == one


async def test_huge_header_values_are_not_kept() -> None:
    app = RateLimitMiddleware(hello, rules=[Rule("*", "9/hour", key=header("X-API-Key"))])
    tracemalloc.start()
    try:
        for number in range(500):
            await call(app, headers=[(b"x-api-key", b"%d" % number + b"k" * 65_536)])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 5 * 2**20, "500 values of 64 KiB are 32 MiB"


async def test_everyone_is_one_key() -> None:
    app = RateLimitMiddleware(hello, rules=[Rule("*", "3/hour", key=everyone)])
    assert [(await call(app, client=(f"192.0.2.{n}", 1))).status for n in range(5)] == [200, 200, 200, 429, 429]


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_function_names_the_client_or_leaves_the_request_uncounted(kind: str) -> None:
    def tenant(request: Any) -> str | None:
        name: str | None = request.headers.get("x-tenant")
        return name

    async def tenant_later(request: Any) -> str | None:
        return tenant(request)

    app = RateLimitMiddleware(hello, rules=[Rule("*", "2/hour", key=tenant if kind == "sync" else tenant_later)])
    assert await statuses(app, 3, headers={"x-tenant": "a"}) == [200, 200, 429]
    assert await statuses(app, 1, headers={"x-tenant": "b"}) == [200]
    assert await statuses(app, 9) == [200] * 9, "None: not counted"
    assert await statuses(app, 3, headers={"x-tenant": ""}) == [200, 200, 429], "empty: the client's address"


async def test_functions_get_a_request_without_a_body_and_are_told_the_way() -> None:
    seen: list[str] = []

    async def key(request: Any) -> str:
        seen.append(f"{request.method} {request.url.path} {request.query_params['q']}")
        try:
            await request.body()
        except RuntimeError as error:
            seen.append(str(error))
        return "k"

    await call(RateLimitMiddleware(hello, rules=[Rule("*", "9/hour", key=key)]), "/p", "POST", query_string=b"q=1")
    assert seen[0] == "POST /p 1"
    assert "no body here" in seen[1]
    assert "RateLimit(key=" in seen[1]


async def test_keys_of_different_rules_never_meet() -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    rules = [Rule("/a", "2/hour", key=lambda r: "same"), Rule("/b", "2/hour", key=lambda r: "same", methods=["GET"])]
    app = RateLimitMiddleware(hello, rules=rules, limiter=limiter)
    assert await statuses(app, 3, "/a") == [200, 200, 429]
    assert await statuses(app, 3, "/b") == [200, 200, 429]


@pytest.mark.parametrize("name", ["", "X API", "X:Key", "X-Kéy", "a\r\n", None, 5, "(x)"])
def test_a_header_name_that_no_request_can_have_is_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="header"):
        header(name)


def test_a_fallback_must_be_a_key() -> None:
    with pytest.raises(ConfigurationError, match="fallback"):
        header("X", fallback=lambda request: "k")  # type: ignore[arg-type]


async def test_more_clients_than_the_memos_hold_are_still_told_apart() -> None:
    app = RateLimitMiddleware(hello, rules=[Rule("*", "1/hour", key=header("X-K"))])
    for number in range(5_000):
        answer = await call(app, client=(f"198.51.100.{number % 250}", 1), headers={"X-K": str(number)})
        assert answer.status == 200
    assert (await call(app, headers={"X-K": "0"})).status == 429
    peers = RateLimitMiddleware(hello, limits="1/hour")
    for number in range(5_000):
        assert (await call(peers, client=(f"10.0.{number // 250}.{number % 250}", 1))).status == 200
    assert (await call(peers, client=("10.0.0.0", 1))).status == 429
