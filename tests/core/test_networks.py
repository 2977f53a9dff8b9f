"""Addresses and networks: one spelling each, and what is in what."""

import ipaddress
from collections.abc import Iterable
from itertools import pairwise
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from slidegate import Networks
from slidegate.core import parse_address
from slidegate.core.addresses import format_network, parse_network

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
