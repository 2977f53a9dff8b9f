"""Networks that are read from a file: lines, and long lists."""

from __future__ import annotations

import gc
import ipaddress
import random
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate import ConfigurationError, Networks
from slidegate.web.lists import read_entries

from ..core.test_networks import Network, ranges


def written(directory: Path, content: str | bytes) -> Path:
    path = directory / "blocked.netset"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


PLAIN = """\
# netset
192.0.2.0/24
198.51.100.7\t5
203.0.113.0/24 ; SBL1
203.0.113.7 - 203.0.113.99
2001:db8::/32 # office

"""


def entries(text: str) -> list[tuple[int, str]]:
    return list(read_entries(text.splitlines(keepends=True)))


@pytest.mark.parametrize("text", ["1.0.0.0-1.0.0.255", "1.0.0.0 - 1.0.0.255 # a comment", "1.0.0.0 - 1.0.0.255 7"])
def test_a_range_is_read_as_the_range_that_it_is(text: str, tmp_path: Path) -> None:
    found = Networks.from_file(written(tmp_path, f"# ranges\n{text}\n"))
    assert found == Networks.of_ranges([(4, 0x0100_0000, 0x0100_00FF)])


# Whoever writes one of these means more than one address, in a form that is not read.
MEANT = """
1.0.0.0,1.0.0.255,AU
"1.0.0.0","1.0.0.255","AU"
1.0.0.0 255.255.255.0
1.0.0.0 1.0.2.255
1.0.0.0 to 1.0.2.255
1.0.0.0/255.255.255.0
1.0.0.0|1.0.0.255|AU
1.0.0.255 - 1.0.0.0
1.0.0.0 - 2001:db8::
1.0.0.0 /24
1.0.0.*
16777216,16777471,AU
deny 1.0.0.0/24;
{"cidr": "1.0.0.0/24"}
010.8.8.8
\u0661.\u0662.\u0663.\u0664
10/8
192.0.2.1/24
""".strip().splitlines()


@pytest.mark.parametrize("text", MEANT)
@pytest.mark.parametrize("before", ["", "192.0.2.0/24\n"])
def test_what_means_more_than_an_address_never_becomes_one(text: str, before: str, tmp_path: Path) -> None:
    line = 1 + before.count("\n")
    with pytest.raises(ConfigurationError, match=rf"blocked\.netset, line {line}: "):
        Networks.from_file(written(tmp_path, f"{before}{text}\n"))


@given(st.integers(0, len(PLAIN)))
def test_a_file_that_was_cut_off_is_never_read_as_something_else(length: int) -> None:
    found = entries(PLAIN[:length])
    # Nobody can tell that 192.0.2.1 was to be 192.0.2.17, but all before it is what it was.
    assert found[:-1] == entries(PLAIN)[: max(len(found) - 1, 0)]


def test_a_line_of_other_bytes_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="line 2: network: "):
        Networks.from_file(written(tmp_path, b"192.0.2.1\n\xff\xfe\x00\n"))


def long_list(count: int, pick: random.Random) -> list[Network]:
    """Make networks of both versions, many of which repeat, overlap or touch others."""
    made: list[Network] = []
    while len(made) < count:
        if pick.random() < 0.1 and made:
            made.append(pick.choice(made))
        elif pick.random() < 0.7:
            made.append(ipaddress.IPv4Network((pick.getrandbits(32), pick.choice([20, 24, 28, 32])), strict=False))
        else:
            address = 0x2001_0DB8 << 96 | pick.getrandbits(32) << 64 | pick.getrandbits(64)
            made.append(ipaddress.IPv6Network((address, pick.choice([48, 56, 64, 128])), strict=False))
    return made


def lines_of(networks: list[Network], pick: random.Random) -> str:
    """Write networks as real files do: CRLF, comments, scores, upper case, IPv4 in IPv6."""
    lines = ["\ufeff# a list; of many", ""]
    for network in networks:
        text = str(network)
        if pick.random() < 0.05:
            text = text.upper() if network.version == 6 else f"::ffff:{network[0]}/{network.prefixlen + 96}"
        lines.append(text + pick.choice(["", "", "", "\t5", " ; SBL1", " # bad"]))
    return "\r\n".join(lines)


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.deep)])
def test_long_lists_are_read_right_and_held_in_300_bytes_for_each_network(
    count: int, tmp_path: Path, rng: random.Random
) -> None:
    networks = long_list(count, rng)
    path = written(tmp_path, lines_of(networks, rng))
    gc.collect()
    tracemalloc.start()
    try:
        found = Networks.from_file(path)
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The peak is that of reading, beside whatever list is at work meanwhile.
    assert held <= peak <= 300 * count, f"held {held:,} bytes, while reading {peak:,}"
    collapsed = [
        network
        for version in (ipaddress.IPv4Network, ipaddress.IPv6Network)
        for network in ipaddress.collapse_addresses(each for each in networks if isinstance(each, version))
    ]
    assert found == Networks.of_ranges(ranges(collapsed))
    assert all(found.covers(version, last) for version, _, last in ranges(rng.sample(networks, 1_000)))
