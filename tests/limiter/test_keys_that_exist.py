"""A ban by hand is of a key that requests can have: values that clients send are stored as digests only."""

from __future__ import annotations

from string import ascii_letters
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate import ConfigurationError, Limiter, combine, cookie, header, path_param, query, user
from slidegate.core import InvalidKey, Reason

SOURCES: dict[str, Any] = {"header": header, "cookie": cookie, "query": query, "path": path_param}
NAMES = st.text(ascii_letters + "-_", min_size=1, max_size=12).filter(lambda name: name[0].isalpha())
VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=24).map(lambda text: f"s3cr3t{text}")
CASES = st.sampled_from([str.lower, str.upper, str.capitalize])


@given(st.sampled_from([*SOURCES]), NAMES, VALUES)
async def test_the_key_of_a_value_is_banned_as_it_is_counted(source: str, name: str, value: str) -> None:
    limiter, key = Limiter(), SOURCES[source](name).of(value)
    digest = limiter.key_for(key)
    for spelled in (key, digest):
        assert (await limiter.ban(spelled, "1h")).key == digest
        assert (await limiter.hit(key, "5/minute")).reason is Reason.BANNED
        assert await limiter.unban(spelled)


@given(st.sampled_from([*SOURCES]), CASES, NAMES, st.sampled_from([":", "#", "=", ": ", " "]), VALUES)
async def test_a_readable_value_is_refused_and_not_repeated(
    source: str, case: Any, name: str, between: str, value: str
) -> None:
    limiter = Limiter()
    for typed in (f"{case(source)}:{name}{between}{value}", f"{case(source)}:{name}", f"{case(source)}: {name}"):
        with pytest.raises(InvalidKey) as refused:
            await limiter.ban(typed, "1h")
        assert value not in str(refused.value).replace(name, "")
        assert f"no request is counted as '{source}:{name}" in str(refused.value)
        assert f'{source.replace("path", "path_param")}("{name}' in str(refused.value)
    assert [ban async for ban in limiter.bans()] == []


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("header:X-API-Key", 'write header("X-API-Key").of(VALUE), or header:X-API-Key with the value beside it'),
        ("header:x-api-key:k-bob", 'header("x-api-key").of(VALUE)'),
        ("X-API-Key: k-bob", 'header("X-API-Key").of(VALUE)'),
        ("Authorization: Bearer k-bob", 'header("Authorization").of(VALUE)'),
        ("cookie:device", 'cookie("device").of(VALUE)'),
        ("query:", 'query("token").of(VALUE)'),
        (f"header:X-API-Key#{'a' * 32}", 'header("X-API-Key").of(VALUE)'),
    ],
)
async def test_what_operators_type_is_answered_with_what_to_write(typed: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        await Limiter().ban(typed, "1h")
    assert said in str(refused.value)
    assert "k-bob" not in str(refused.value)


async def test_keys_of_other_kinds_are_free() -> None:
    limiter = Limiter()
    keys: list[Any] = ["user:42", "ann", "tenant/7", "headers:x", "x:y:z", user.of("ann"), "Résumé: x"]
    keys.append(combine(header("a"), cookie("b")).of("1", "2"))
    for key in keys:
        await limiter.ban(key, "1h")
    assert len([ban async for ban in limiter.bans()]) == len(keys)


async def test_a_ban_that_was_written_before_can_still_be_lifted() -> None:
    limiter = Limiter()
    limiter.store.bans.ban("header:x-api-key:k-bob", None, "", "an earlier version")
    assert await limiter.unban("header:x-api-key:k-bob")
