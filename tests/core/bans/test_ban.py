"""Banned networks; what a ban says of itself is in values.txt."""

from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate.core import ConfigurationError
from slidegate.core.addresses import format_network
from slidegate.core.bans.ban import Ban
from slidegate.core.bans.networks import BannedNetworks


def ban(key: str, until_us: int | None = 100, since_us: int = 0) -> Ban:
    return Ban(key, "why", "abuse", 0, since_us, until_us)


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(8, 31)), max_size=8), st.integers(0, 2**32 - 1))
def test_an_address_lies_in_the_networks_that_the_standard_library_finds(
    drawn: list[tuple[int, int]], value: int
) -> None:
    keys = {format_network(4, first, prefix) for first, prefix in [*drawn, (value, 24)]}
    bans = [ban(key) for key in (*keys, "203.0.113.7", "user:ann")]  # the last two refuse themselves alone
    found = {one.key for one in BannedNetworks(bans).of((4, value))}
    assert found == {key for key in keys if IPv4Address(value) in IPv4Network(key)}


@pytest.mark.interpreted("a constant that the test replaces is a part of the compiled code")
def test_networks_whose_bans_are_over_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slidegate.core.bans.networks.MAX_NETWORKS", 2)
    networks = BannedNetworks([ban("192.0.2.0/24", 100), ban("198.51.100.0/24", None)])
    with pytest.raises(ConfigurationError, match=r"already banned, which is the maximum; put 203\.0\.113\.0/24 into"):
        networks.with_ban(ban("203.0.113.0/24", 500, since_us=99), 100)
    after = networks.with_ban(ban("203.0.113.0/24", 500, since_us=100), 100)
    assert sorted(after.bans) == ["198.51.100.0/24", "203.0.113.0/24"]
    assert after.of((4, int(IPv4Address("192.0.2.7")))) == []
