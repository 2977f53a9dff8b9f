"""A ban: its end, the networks that it is of, and how keys and reasons are spelled."""

from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate.core import ConfigurationError
from slidegate.core.addresses import Address, format_network, parse_address
from slidegate.core.bans.ban import Ban, ban_key, clean_reason
from slidegate.core.bans.networks import BannedNetworks

SECOND_US = 1_000_000
NEW_YEAR_US = 4_102_444_800_000_000


def ban(key: str, until_us: int | None = 100, *, since_us: int = 0, level: int = 1) -> Ban:
    return Ban(key, "why", "abuse", level, since_us, until_us)


def address(text: str) -> Address:
    parsed = parse_address(text)
    assert parsed is not None
    return parsed


@pytest.mark.parametrize("key", ["." * 65, "1" * 65, "." * 300_000 + "z", "[" * 300_000])
def test_what_is_too_long_for_an_address_is_a_key_whatever_it_looks_like(key: str) -> None:
    assert ban_key(key) == key


def test_a_reason_is_short_and_printable() -> None:
    for plain in ("scanner, see ticket 5; caf\u00e9", ""):
        assert clean_reason(plain) == plain
    assert clean_reason("a\nb\x00\x1b[31m\u202e\ud800") == "a\\nb\\x00\\x1b[31m\\u202e\\ud800"
    assert clean_reason("x" * 10_240) == "x" * 255 + "\u2026"


@given(st.text(max_size=600))
def test_no_reason_is_long_or_moves_a_terminal(reason: str) -> None:
    cleaned = clean_reason(reason)
    assert len(cleaned) <= 256
    assert cleaned.isprintable()


def test_a_ban_has_an_end_or_none() -> None:
    made = ban("ann", NEW_YEAR_US + 20 * SECOND_US, since_us=NEW_YEAR_US)
    assert (made.since, made.until) == (datetime(2100, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, 0, 0, 20, tzinfo=UTC))
    left_us = [made.left_us(NEW_YEAR_US + after_us) for after_us in (0, 20 * SECOND_US - 1, 20 * SECOND_US, 10**12)]
    assert left_us == [20 * SECOND_US, 1, 0, 0]
    permanent = ban("ann", None)
    assert (permanent.until, permanent.left_us(10**17), permanent.is_over(10**17)) == (None, None, False)


def test_what_is_one_client_or_a_clients_key_is_no_network() -> None:
    for key in ("192.0.2.7", "2001:db8::/64", "user:42", "::/63#"):
        assert ban(key, level=0).network() is None
    for key in ("192.0.2.0/31", "2001:db8::/63", "2001:db8::1/128"):
        assert ban(key, level=0).network() is not None
        assert ban(key, level=1).network() is None


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(8, 31)), max_size=8), st.integers(0, 2**32 - 1))
def test_an_address_lies_in_the_networks_that_the_standard_library_finds(
    drawn: list[tuple[int, int]], value: int
) -> None:
    keys = {format_network(4, first, prefix) for first, prefix in [*drawn, (value, 24)]}
    bans = [ban(key, level=0) for key in (*keys, "203.0.113.7", "user:ann")]  # the last two refuse themselves alone
    found = {one.key for one in BannedNetworks(bans).of((4, value))}
    assert found == {key for key in keys if IPv4Address(value) in IPv4Network(key)}


@pytest.mark.interpreted("a constant that the test replaces is a part of the compiled code")
def test_networks_whose_bans_are_over_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slidegate.core.bans.networks.MAX_NETWORKS", 2)
    networks = BannedNetworks([ban("192.0.2.0/24", 100, level=0), ban("198.51.100.0/24", None, level=0)])
    with pytest.raises(ConfigurationError, match=r"already banned, which is the maximum; put 203\.0\.113\.0/24 into"):
        networks.with_ban(ban("203.0.113.0/24", 500, level=0, since_us=99), 100)
    after = networks.with_ban(ban("203.0.113.0/24", 500, level=0, since_us=100), 100)
    assert sorted(after.bans) == ["198.51.100.0/24", "203.0.113.0/24"]
    assert after.of(address("192.0.2.7")) == []
