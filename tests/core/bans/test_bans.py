"""Bans in core: policies, strikes in a ring, the ladder, forgiving; banned networks; rows of exports; all networks."""

import ipaddress
import json
from collections.abc import Iterable
from ipaddress import IPv4Address
from itertools import pairwise
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate import BanPolicy, ConfigurationError, Networks
from slidegate.core import Ban, parse_address
from slidegate.core.addresses import format_network, parse_network
from slidegate.core.bans.networks import BannedNetworks
from slidegate.core.bans.rows import HEADER, from_rows
from slidegate.core.bans.strikes import next_ban

from ...contract.programs import HOUR_US


@pytest.mark.parametrize("factor", [1, 1.0, 1.1, 1.5, 4, 1_000])
@pytest.mark.parametrize(("duration", "longest"), [("1s", "400d"), ("1h", "1h"), ("400d", "400d"), ("1s", "1s")])
def test_every_ladder_ends_and_never_goes_down(factor: float, duration: str, longest: str) -> None:
    policy = BanPolicy(duration=duration, factor=factor, longest=longest)
    ladder_us = [policy.length_us(level) for level in range(1, 201)]
    assert ladder_us == sorted(ladder_us)
    assert ladder_us[-1] == (policy.duration_us if factor == 1 else policy.longest_us)


@given(st.sampled_from([1, 3, 64, 65, 100]), st.sampled_from(["1s", "7s", "1m"]), st.lists(st.integers(0, 10**7)))
def test_a_window_of_strikes_is_empty_when_it_says_so_and_not_earlier(amount: int, span: str, waits: list[int]) -> None:
    (limit,) = BanPolicy(f"{amount}/{span}").strikes.limits
    counter, now_us, window = limit.counter_by(lambda: 0), NOW_US, b""
    for wait_us in (0, *waits):
        now_us += wait_us
        window, _ = counter.charge(window, now_us, 1)
    ends_us = limit.expires_us(window)
    assert ends_us > now_us
    assert [counter.spend(window, us, 0)[1][0] > 0 for us in (ends_us - 1, ends_us)] == [True, False]


def ban(key: str, until_us: int | None = 100, since_us: int = 0) -> Ban:
    return Ban(key, "why", "abuse", 0, since_us, until_us)


@pytest.mark.interpreted("a constant that the test replaces is a part of the compiled code")
@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_level_is_over_when_all_of_it_is_forgiven_and_not_before(level: int) -> None:
    policy, before, now_us = BanPolicy(duration="1h", forgive="1d"), None, 0
    for _ in range(level):
        ban, before = next_ban(policy, "203.0.113.7", "", before, now_us)
        now_us = ban.since_us + 1
    assert before is not None
    assert next_ban(policy, "203.0.113.7", "", before, before.over_us - 1)[0].level == 2
    assert next_ban(policy, "203.0.113.7", "", before, before.over_us)[0].level == 1


def test_networks_whose_bans_are_over_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slidegate.core.bans.networks.MAX_NETWORKS", 2)
    networks = BannedNetworks([ban("192.0.2.0/24", 100), ban("198.51.100.0/24", None), ban("user:ann", None)])
    with pytest.raises(ConfigurationError, match=r"already banned, which is the maximum; put 203\.0\.113\.0/24 into"):
        networks.with_ban(ban("203.0.113.0/24", 500, since_us=99), 100)
    after = networks.with_ban(ban("203.0.113.0/24", 500, since_us=100), 100)
    assert sorted(after.bans) == ["198.51.100.0/24", "203.0.113.0/24"]
    assert after.of((4, int(IPv4Address("192.0.2.7")))) == []


NOW_US = 1_800_000_000_000_000
EVE = Ban("user:eve", "why", "abuse", 2, NOW_US - 7, NOW_US + HOUR_US)
NET = Ban("192.0.2.0/24", "", "ann", 0, NOW_US - HOUR_US, None)

moments_us = st.integers(-(2**53), 2**53)
bans = st.builds(
    Ban,
    st.sampled_from(["192.0.2.7", "2001:db8::/64", "198.51.100.0/24", "user:ann", "header:x-api-key#" + 32 * "f"]),
    st.text(max_size=20).map(str.strip).filter(str.isprintable),
    st.sampled_from(["abuse", "ann"]),
    st.integers(0, 2**31),
    moments_us,
    st.none() | moments_us,
)


def exported(given_bans: list[Ban]) -> list[Any]:
    return [HEADER, *(ban._asdict() for ban in given_bans)]


def rows() -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = json.loads(json.dumps(exported([EVE, NET])))
    return read


@given(st.lists(bans))
def test_what_is_exported_is_read_as_it_was(given_bans: list[Ban]) -> None:
    read = json.loads(json.dumps(exported(given_bans)))
    assert [list(row.values()) for row in read[1:]] == [list(ban) for ban in given_bans]
    assert [*from_rows(read)] == given_bans


@given(st.integers(0, 2), st.none() | st.integers() | st.sampled_from([[], {}, "ban", ["ban"]]), st.data())
def test_a_row_that_is_none_or_lacks_a_field_is_named(index: int, row: Any, data: st.DataObject) -> None:
    assert [*from_rows(rows()[:1])] == []
    spoiled: list[Any] = rows()
    if data.draw(st.booleans()):
        spoiled[index] = row
    else:
        del spoiled[index][data.draw(st.sampled_from([*spoiled[index]]))]
    with pytest.raises(ConfigurationError, match=f"^bans, row {index + 1}: cannot be read: "):
        [*from_rows(spoiled)]


# -- addresses and networks --------------------------------------------------------------------------------------------


Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

ADDRESSES = st.ip_addresses()
MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")


def plain(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the IPv4 address inside a mapped or translated one, anything else as it is."""
    if address in MAPPED:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


@st.composite
def neighbours(draw: st.DrawFn, most: int = 12) -> list[Network]:
    """Draw networks so close together that many of them overlap or touch."""
    version, bits = draw(st.sampled_from([(4, 32), (6, 128)]))
    base = int(ipaddress.ip_address("192.0.2.0" if version == 4 else "2001:db8::"))
    drawn = draw(st.lists(st.tuples(st.integers(0, 63), st.integers(bits - 6, bits)), max_size=most))
    made = ipaddress.IPv4Network if version == 4 else ipaddress.IPv6Network
    return [made((base + offset, prefix), strict=False) for offset, prefix in drawn]


def ranges(networks: Iterable[Network]) -> list[tuple[int, int, int]]:
    return [(network.version, int(network[0]), int(network[-1])) for network in networks]


@given(ADDRESSES)
def test_an_address_reads_as_the_standard_library_reads_it(address: ipaddress.IPv4Address) -> None:
    assert parse_address(str(address)) == (plain(address).version, int(plain(address)))


@given(ADDRESSES, st.data())
def test_a_written_network_reads_back_as_the_same(address: ipaddress.IPv4Address, data: st.DataObject) -> None:
    whole = plain(address)
    prefix = data.draw(st.integers(0, whole.max_prefixlen))
    text = format_network(whole.version, int(whole), prefix)
    network = ipaddress.ip_network((int(whole), prefix) if whole.version == 4 else (whole, prefix), strict=False)
    assert text == (str(whole) if prefix == 32 == whole.max_prefixlen else str(network))
    # A wide IPv6 network may start where the mapped addresses do, and would be read as one of those.
    if whole.version == 4 or network.network_address not in MAPPED:
        assert parse_network(text) == (whole.version, int(network[0]), int(network[-1]))


@given(st.lists(st.tuples(ADDRESSES, st.integers(0, 32)), max_size=12), st.lists(ADDRESSES, max_size=8))
def test_membership_is_that_of_the_standard_library(
    drawn: list[tuple[ipaddress.IPv4Address, int]], probes: list[ipaddress.IPv4Address]
) -> None:
    # Prefixes are short at the end of the address, so that neighbours meet.
    networks = [
        ipaddress.ip_network(f"{address}/{address.max_prefixlen - bits}", strict=False)
        for address, bits in ((plain(address), bits) for address, bits in drawn)
    ]
    networks = [network for network in networks if network.version == 4 or network.network_address not in MAPPED]
    found = Networks(networks)
    edges = [edge for network in networks for edge in (network[0], network[-1])]
    beyond = [edge + step for edge in edges for step in (-1, 1) if 0 <= int(edge) + step < 2**edge.max_prefixlen]
    for probe in (*probes, *edges, *beyond):
        expected = any(plain(probe) in network for network in networks)
        assert (str(probe) in found) is expected
        assert (probe in found) is expected


@given(neighbours(), neighbours(4))
def test_an_overlap_is_found_as_a_scan_of_all_networks_finds_it(held: list[Network], queried: list[Network]) -> None:
    found = Networks(held)
    for one, other in (*zip(queried, queried, strict=True), *pairwise(queried)):
        first, last = sorted((int(one[0]), int(other[-1])))
        expected = any(int(each[0]) <= last and first <= int(each[-1]) for each in held if each.version == one.version)
        assert found.overlaps(one.version, first, last) is expected


@given(neighbours(), neighbours())
def test_networks_that_overlap_or_touch_are_one_in_any_order(one: list[Network], other: list[Network]) -> None:
    found = Networks([*one, *other])
    assert found == Networks([*other, *one])
    collapsed = [
        network
        for version in (ipaddress.IPv4Network, ipaddress.IPv6Network)
        for network in ipaddress.collapse_addresses(each for each in (*one, *other) if isinstance(each, version))
    ]
    assert found == Networks.of_ranges(ranges(collapsed))
