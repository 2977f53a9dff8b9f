"""How much of everybody a set of networks covers."""

from __future__ import annotations

import ipaddress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate import Networks
from slidegate.core.addresses import parse_network
from slidegate.core.public_space import HALF, PUBLIC, is_wide, public_addresses

# Every /6 of IPv4 and every /7 of IPv6; of 2000::/3 that are 16, and none beside it.
PIECES_4 = [f"{first}.0.0.0/6" for first in range(0, 256, 4)]
PIECES_6 = [f"{first << 8:x}::/7" for first in range(0, 256, 2)]


def public_by_hand(version: int, networks: list[str]) -> int:
    """Count public addresses network by network, as somebody else says which are public."""
    found = 0
    for network in map(ipaddress.ip_network, networks):
        first, last = int(network[0]), int(network[-1])
        found += sum(max(min(last, high) - max(first, low) + 1, 0) for low, high in PUBLIC[version])
    return found


def test_what_is_public_is_what_the_standard_library_says() -> None:
    edges = sorted({edge for low, high in PUBLIC[4] for edge in (low - 1, low, high, high + 1) if edge >= 0})
    for edge in edges:
        address = ipaddress.IPv4Address(edge)
        if address in ipaddress.IPv4Network("192.0.0.0/24"):
            continue  # single addresses of it are public, and versions of Python differ in which
        ours = any(low <= edge <= high for low, high in PUBLIC[4])
        assert ours == (address.is_global and not address.is_multicast), address
    for left, right in pairwise(PUBLIC[4]):
        assert left[1] < right[0]


@pytest.mark.parametrize(("version", "pieces"), [(4, PIECES_4), (6, PIECES_6)])
@given(data=st.data())
def test_a_set_covers_most_when_its_pieces_add_up_to_more_than_half(
    version: int, pieces: list[str], data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.sampled_from(pieces), unique=True))
    covered = public_by_hand(version, chosen)
    made = Networks(chosen)
    ranges = [(first, last) for of, first, last in made.ranges() if of == version]
    starts, ends = [first for first, _ in ranges], [last for _, last in ranges]
    assert public_addresses(version, starts, ends) == covered
    assert made.covers_most_of() == (f"IPv{version}" if covered > HALF[version] else None)


@pytest.mark.parametrize(
    ("networks", "most"),
    [
        (["0.0.0.0/0"], "IPv4"),
        (["0.0.0.0/1", "128.0.0.0/1"], "IPv4"),
        (["0.0.0.0/1", "128.0.0.0/2"], "IPv4"),
        (["::/0", "10.0.0.0/8"], "IPv6"),
        (["2000::/3"], "IPv6"),
        (["2000::/4", "3000::/128"], "IPv6"),
        (["2000::/4"], None),
        (["::/3", "4000::/2", "8000::/1"], None),  # nobody has one of these
        (["128.0.0.0/1"], None),
        (["224.0.0.0/3", "10.0.0.0/8", "127.0.0.0/8"], None),
        ([], None),
    ],
)
def test_a_set_that_covers_most_of_everybody_is_noticed(networks: list[str], most: str | None) -> None:
    assert Networks(networks).covers_most_of() == most


@pytest.mark.parametrize(
    ("network", "wide"),
    [
        ("2.0.0.0/7", True),
        ("2.0.0.0/8", False),
        ("224.0.0.0/3", False),
        ("2000::/19", False),
        ("2000::/18", True),
        ("::/3", False),
        ("fc00::/7", False),
        ("192.0.0.0/6", True),
    ],
)
def test_networks_that_are_wider_than_any_registry_hands_out_are_known(network: str, wide: bool) -> None:
    assert is_wide(*parse_network(network)) is wide
