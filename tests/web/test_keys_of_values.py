"""Operating on one customer: the key that the gate makes of a value, without a request."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slidegate import (
    ConfigurationError,
    Limiter,
    MemoryStore,
    RateLimitMiddleware,
    Rule,
    client_ip,
    combine,
    cookie,
    everyone,
    header,
    path_param,
    query,
    user,
)
from slidegate.core import InvalidKey
from slidegate.limiter.keys import KeyOf
from slidegate.testing import FakeClock

from ..asgi import hello, scope_of, send_scope

OF_HEADER = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\0"), min_size=1).filter(
    lambda text: text.strip(" \t") == text
)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
IN_COOKIE = st.text("abcXYZ019-_.~!", min_size=1)
HALVES = st.builds("{}{}{}".format, st.text(max_size=40), st.characters(categories=["Cs"]), st.text(max_size=40))
"""Texts with half of a character, which neither UTF-8 nor JSON can hold."""


async def counted_as(key: Any, limiter: Limiter, /, pattern: str = "*", **scope: Any) -> str:
    """Return the key under which a gate counts a request."""
    app = RateLimitMiddleware(hello, rules=[Rule(pattern, "1000/minute", key=key)], limiter=limiter)
    asked = {**scope_of(), **scope}
    await send_scope(app, asked)
    found: str = asked["slidegate"].decision.states[0].key
    return found


@settings(deadline=None, max_examples=30)
@given(OF_HEADER, IN_COOKIE, ANY_TEXT)
def test_a_gate_makes_the_same_key_of_a_request_that_has_the_value(wire: str, crumb: str, text: str) -> None:
    async def check() -> None:
        limiter = Limiter()
        headers = [(b"x-api-key", wire.encode("latin-1")), (b"cookie", f"a=1; session={crumb}".encode())]
        scope = {"headers": headers, "query_string": urlencode({"tenant": text}).encode()}
        both = combine(header("x-api-key"), everyone, query("tenant"))
        for key, made in (
            (header("X-API-Key"), header("X-API-Key").of(wire)),
            (header("X-API-Key"), header("X-API-Key").of(wire.encode("latin-1"))),
            (header("X-API-Key"), header("X-API-Key").of(f" {wire}\t")),
            (cookie("session"), cookie("session").of(crumb)),
            (query("tenant"), query("tenant").of(text)),
            (both, both.of(wire, text)),
        ):
            assert await counted_as(key, limiter, **scope) == limiter.key_for(made)

    asyncio.run(check())


@pytest.mark.parametrize("address", ["203.0.113.7", "::ffff:203.0.113.7", "2001:db8::1", "2001:DB8:0::1"])
async def test_addresses_users_and_parts_of_paths_have_keys_too(address: str) -> None:
    limiter = Limiter()
    for client in (client_ip(), client_ip(ipv6_prefix=48, ipv4_prefix=24)):
        app = RateLimitMiddleware(hello, limits="9/minute", limiter=limiter, client=client)
        scope = {**scope_of(), "client": (address, 1)}
        await send_scope(app, scope)
        assert scope["slidegate"].decision.states[0].key == limiter.key_for(client.of(address))
    assert await counted_as(user, limiter, user="ann") == limiter.key_for(user.of("ann")) == "user:ann"
    assert await counted_as(everyone, limiter) == limiter.key_for(everyone.of())
    tenant = path_param("tenant")
    for pattern, value in (("/t/{tenant}", "acme"), ("/t/{tenant:int}", 42)):
        found = await counted_as(tenant, limiter, pattern, path=f"/t/{value}")
        assert found == limiter.key_for(tenant.of(value))  # type: ignore[arg-type] # a number is as good


def _gate(limiter: Limiter, key: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(hello, rules=[Rule("*", "5/minute", key=key, name="api")], limiter=limiter)


async def _send(app: RateLimitMiddleware, value: str) -> Any:
    scope = {**scope_of(), "headers": [(b"x-api-key", value.encode())]}
    await send_scope(app, scope)
    return scope["slidegate"].decision


async def test_a_customer_is_looked_at_charged_and_reset() -> None:
    limiter, key = Limiter(MemoryStore(clock=FakeClock())), header("X-API-Key")
    made, app = key.of("k123"), _gate(limiter, key)
    for _ in range(3):
        await _send(app, "k123")
    (shown,) = [view for view in (await limiter.inspect(made)).windows if view.used]
    assert (shown.rule, shown.name, shown.used, shown.remaining) == ("api", "api", 3, 2)
    assert (await limiter.peek(made, "5/minute", rule="api")).remaining == 1
    assert (await limiter.hit(made, "5/minute", rule="api")).remaining == 1
    await limiter.charge(made, "5/minute", 9, rule="api")
    assert not await _send(app, "k123")
    assert await limiter.reset(made) is True
    assert (await _send(app, "k123")).remaining == 4
    assert "k123" not in repr(made) + repr(await limiter.inspect(made))


async def test_a_sync_limiter_takes_them_as_well() -> None:
    def work() -> None:
        with Limiter(MemoryStore(clock=FakeClock())).sync as limiter:
            made = header("X-API-Key").of("k123")
            assert limiter.charge(made, "5/minute", 2).remaining == 3
            assert limiter.hit(made, "5/minute").remaining == 2
            assert [view.used for view in limiter.inspect(made).windows] == [3]
            assert limiter.reset(made) is True
            limiter.charge(made, "5/minute", 3)
            assert limiter.reset_all() is True
            assert limiter.peek(made, "5/minute").remaining == 4
            assert limiter.ban(made, "1h").key.startswith("header:x-api-key#")
            assert limiter.banned(made) is not None
            assert limiter.unban(made) is True

    await asyncio.to_thread(work)


@pytest.mark.parametrize(
    "make",
    [
        lambda: header("X-API-Key").of(""),
        lambda: header("X-API-Key").of("  "),
        lambda: header("X-API-Key").of("k\r\nX: y"),
        lambda: header("X-API-Key").of("Ω"),
        lambda: header("X-API-Key").of(3),  # type: ignore[arg-type]
        lambda: cookie("session").of(b"k"),
        lambda: query("tenant").of(""),
        lambda: client_ip().of("999.1.1.1"),
        lambda: client_ip().of("0.0.0.0"),
        lambda: user.of(""),
        lambda: user.of(b"ann"),
        lambda: combine(header("A"), header("B")).of("one"),
        lambda: combine(header("A"), combine(header("B"), header("C"))).of("one", "two"),
    ],
)
def test_a_value_that_no_request_can_have_is_refused_with_what_was_expected(make: Callable[[], KeyOf]) -> None:
    with pytest.raises(InvalidKey) as caught:
        make()
    assert caught.value.expected
    assert caught.value.expected in str(caught.value)
    assert isinstance(caught.value, ConfigurationError)


@pytest.mark.parametrize("key", ["", "999.1.1.1", "1.2.3.4/33", "0.0.0.0/0", "10.0.0.0/4", 42, None])
async def test_text_that_cannot_be_banned_says_what_was_expected(key: Any) -> None:
    limiter = Limiter()
    with pytest.raises(InvalidKey) as caught:
        await limiter.ban(key, "1h")
    assert "for example" in caught.value.expected
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.expected) == (str(caught.value), caught.value.expected)


@pytest.mark.parametrize("key", ["", None, 42])
async def test_a_key_is_text_that_is_not_empty(key: Any) -> None:
    limiter = Limiter()
    for command in (limiter.reset(key), limiter.inspect(key), limiter.peek(key, "5/minute")):
        with pytest.raises(InvalidKey, match="user:42"):
            await command


@settings(deadline=None, max_examples=60)
@given(HALVES)
def test_half_of_a_character_is_refused_in_what_an_operator_writes(text: str) -> None:
    async def check() -> None:
        limiter = Limiter()
        for command in (limiter.ban(text, "1h"), limiter.unban(text), limiter.banned(text), limiter.strikes(text)):
            with pytest.raises(InvalidKey, match="expected an address, a network or a key"):
                await command
        row = {"ban": text, "reason": "", "by": "", "rung": 0, "made_us": 1, "ends_us": None, "since_us": 1}
        head = {"slidegate": "bans", "version": 2, "written_us": 1}
        with pytest.raises(ConfigurationError, match="row 2"):
            await limiter.import_bans([json.dumps(head), json.dumps({**row, "prolong_us": 0})])
        with pytest.raises(ConfigurationError, match="rule"):
            await limiter.hit("ann", "5/minute", rule=text)

    asyncio.run(check())
    for make in (query, path_param, cookie, header, lambda name: Rule("*", "5/minute", name=name)):
        with pytest.raises(ConfigurationError, match=r"expected|not allowed"):
            make(text)


@settings(deadline=None, max_examples=60)
@given(HALVES)
def test_whatever_a_user_is_called_the_key_is_short_and_json_can_hold_it(name: str) -> None:
    async def check() -> None:
        limiter = Limiter()
        key = await counted_as(user, limiter, state={"user": name})
        assert len(json.dumps(key, ensure_ascii=False).encode()) <= 66
        assert key == limiter.key_for(user.of(name)) == limiter.key_for(f"user:{name}")
        assert key != limiter.key_for(f"user:{name}x")
        assert (await limiter.ban(user.of(name), "1h")).key == key
        assert (await limiter.hit(f"user:{name}", "5/minute")).ban is not None
        assert await limiter.unban(key)

    asyncio.run(check())


def test_an_error_does_not_repeat_a_value_that_may_be_secret() -> None:
    with pytest.raises(InvalidKey) as caught:
        header("X-API-Key").of("sk_live_Ω")
    assert "sk_live" not in str(caught.value)
