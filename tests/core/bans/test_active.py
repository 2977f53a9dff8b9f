"""The bans in force: found by key and address, let go of when they are over; and how keys and reasons are spelled."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate.core import ConfigurationError
from slidegate.core.addresses import parse_address
from slidegate.core.bans.active import ActiveBans
from slidegate.core.bans.ban import Ban, BanSubject, ban_key, clean_reason

SECOND_US = 1_000_000
NEW_YEAR_US = 4_102_444_800_000_000


def ban(key: str, ends_us: int | None = 100, *, made_us: int = 0, wall_us: int = 0, prolong_us: int = 0) -> Ban:
    return Ban(key, "why", "abuse", 1, made_us, ends_us, wall_us, prolong_us)


def address(text: str) -> BanSubject:
    parsed = parse_address(text)
    assert parsed is not None
    return parsed


def listed(*bans: Ban) -> ActiveBans:
    made = ActiveBans()
    for one in bans:
        made.add(one)
    return made


@pytest.mark.parametrize(
    "key",
    [
        "010.8.8.8",
        "1.2.3",
        "0x7f000001",
        "192.0.2.256",
        "192.0.2.0/024",
        "192.0.2.7:8080",
        "2001:db8::/129",
        "192.0.2.7\n",
        "::ffff:0:0/95",
        "...",
    ],
)
def test_what_looks_like_an_address_and_is_none_is_named(key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ban_key(key)
    message = f'ban: {key!r} is no address or network; write for example "192.0.2.7", "192.0.2.0/24" or "user:42"'
    assert str(caught.value).startswith(message)
    assert f'"key:{key}" if it is a key' in str(caught.value)


@pytest.mark.parametrize("key", ["0.0.0.0/0", "::/0", "::ffff:0:0/96", "192.0.2.7/0", "2001:db8::1/0"])
def test_nobody_can_ban_everybody(key: str) -> None:
    with pytest.raises(ConfigurationError, match="is every address there is; to close the service"):
        ban_key(key)


@pytest.mark.parametrize("key", ["", None, 5, b"192.0.2.7", ["192.0.2.7"]])
def test_what_is_no_key_is_named(key: object) -> None:
    with pytest.raises(ConfigurationError, match="ban: expected an address, a network or a key, for example"):
        ban_key(key)


@pytest.mark.parametrize("key", ["." * 65, "1" * 65, "." * 300_000 + "z", "[" * 300_000])
def test_what_is_too_long_for_an_address_is_a_key_whatever_it_looks_like(key: str) -> None:
    assert ban_key(key) == key


def test_what_is_as_long_as_an_address_may_be_is_looked_at() -> None:
    with pytest.raises(ConfigurationError, match="is no address or network"):
        ban_key("1" * 64)


def test_a_reason_is_short_and_printable() -> None:
    assert clean_reason("scanner, see ticket 5; caf\u00e9") == "scanner, see ticket 5; caf\u00e9"
    assert clean_reason("") == ""
    assert clean_reason("a\nb\x00\x1b[31m\u202e") == "a\\nb\\x00\\x1b[31m\\u202e"
    long = clean_reason("\x00\n" * 5_000)
    assert (len(long), long[-1], long.isprintable()) == (256, "\u2026", True)
    assert clean_reason("x" * 10_240) == "x" * 255 + "\u2026"
    assert clean_reason("\ud800") == "\\ud800"


@given(st.text(max_size=600))
def test_no_reason_is_long_or_moves_a_terminal(reason: str) -> None:
    cleaned = clean_reason(reason)
    assert len(cleaned) <= 256
    assert cleaned.isprintable()


@pytest.mark.parametrize("reason", [None, 5, b"why"])
def test_a_reason_that_is_no_text_is_named(reason: object) -> None:
    with pytest.raises(ConfigurationError, match='reason: expected text, for example "scanner", not'):
        clean_reason(reason)


def test_a_ban_has_an_end_or_none() -> None:
    made = ban("ann", 30 * SECOND_US, made_us=10 * SECOND_US, wall_us=NEW_YEAR_US)
    assert (made.since, made.until) == (
        datetime(2100, 1, 1, tzinfo=UTC),
        datetime(2100, 1, 1, 0, 0, 20, tzinfo=UTC),
    )
    assert [made.left_us(now_us) for now_us in (10 * SECOND_US, 30 * SECOND_US - 1, 30 * SECOND_US, 10**12)] == [
        20 * SECOND_US, 1, 0, 0
    ]  # fmt: skip
    permanent = ban("ann", None)
    assert (permanent.until, permanent.left_us(10**17), permanent.is_over(10**17, 10**17)) == (None, None, False)


def test_a_ban_is_over_by_either_clock() -> None:
    made = ban("ann", 110, made_us=10, wall_us=1_000)
    assert [made.is_over(now_us, 0) for now_us in (-5, 10, 109, 110)] == [False, False, False, True]
    assert [made.is_over(10, wall_us) for wall_us in (0, 1_099, 1_100)] == [False, False, True]


def test_a_ban_is_prolonged_and_never_shortened() -> None:
    made = ban("ann", 110, made_us=10, prolong_us=100)
    assert [made.prolonged(now_us).ends_us for now_us in (-50, 10, 11)] == [110, 110, 111]
    assert ban("ann", None, prolong_us=100).prolonged(7).ends_us is None


def test_a_version_holds_nothing_of_the_other() -> None:
    bans = listed(ban("0.0.0.0/1"))
    assert not bans.keys_of(["ann", (6, 5), "0.0.0.5"])
    assert [ban.key for ban in bans.of(bans.keys_of(["ann", (4, 5)]))] == ["0.0.0.0/1"]


def test_banning_one_key_again_and_again_keeps_one_ban() -> None:
    bans = ActiveBans()
    for number in range(10_000):
        bans.add(ban("192.0.2.7", 10**6 + number))
        bans.add(ban("eve", None))
    assert len(bans) == 2
    bans.remove_expired(10**6 + 10_000, 0, 10_000)
    assert [one.key for one in bans] == ["eve"]


def test_bans_that_are_over_are_let_go_a_few_at_a_time() -> None:
    bans = listed(*(ban(f"user:{number}", 100 + number) for number in range(10)), ban("eve", None))
    bans.remove_expired(99, 0)
    assert len(bans) == 11
    bans.remove_expired(10**6, 0)
    assert len(bans) == 9


@pytest.mark.parametrize("ends_us", [-(10**15), -1, 0, 9, 10, 99, 10**15, 400 * 86_400 * 10**6])
def test_bans_are_let_go_at_their_end_whatever_number_it_is(ends_us: int) -> None:
    bans = listed(ban("9", ends_us), ban("0", ends_us + 1), ban("\0", None))
    bans.remove_expired(ends_us - 1, -(10**16), 9)
    assert len(bans) == 3
    bans.remove_expired(ends_us, -(10**16), 9)
    assert [one.key for one in bans] == ["0", "\0"]
