"""Networks in files: which one holds an address, how lines are read, and how a changed file takes over."""

import asyncio
import gc
import ipaddress
import random
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slidegate import ConfigurationError, Limiter, MemoryStore, Networks, RateLimitMiddleware
from slidegate.core import parse_address
from slidegate.web.lists import ListFile, read_entries

from ..asgi import PEER, hello, statuses
from ..core.test_networks import Network, neighbours
from ..hurry import hurried
from .middlewares import FollowedFiles, end_of_looks


@pytest.fixture
def files(tmp_path: Path) -> FollowedFiles:
    return FollowedFiles(tmp_path)


def following(files: FollowedFiles, networks: Networks) -> RateLimitMiddleware:
    limiter = Limiter(MemoryStore(), observers=[files.observer])
    return RateLimitMiddleware(hello, limits="900/hour", blocklist=networks, limiter=limiter)


def test_a_list_is_named_by_its_file(files: FollowedFiles) -> None:
    text = "192.0.2.0/24 ; SBL1\n2001:db8::/32\n198.51.100.7 # 5\n"
    listed = Networks.from_file(files.write("spamhaus.txt", text))
    for address in ("192.0.2.7", "::ffff:192.0.2.7", "2001:db8::1", "198.51.100.7", "198.51.100.8"):
        parsed = parse_address(address)
        assert parsed is not None
        assert listed.find(*parsed) == (None if address == "198.51.100.8" else "spamhaus")
        assert listed.covers(*parsed) is (address != "198.51.100.8")
    assert repr(listed) == "<Networks: 2 IPv4 and 1 IPv6 ranges>"


async def test_no_lookup_waits_for_a_file_that_is_read(files: FollowedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    networks = Networks.from_file(files.write("a.netset", "192.0.2.0/24\n"))
    begun, go_on = threading.Event(), threading.Event()
    reading = ListFile.read
    read = 0

    def slow(file: ListFile) -> Networks:
        nonlocal read
        read += 1
        begun.set()
        assert go_on.wait(60)
        return reading(file)

    monkeypatch.setattr(ListFile, "read", slow)
    app = following(files, networks)
    files.write("a.netset", "198.51.100.0/24\n")
    files.clock.advance("1s")
    assert await statuses(app, 1) == [200]
    await asyncio.to_thread(end_of_looks)
    files.clock.advance("1s")
    assert await statuses(app, 1) == [200], "the request that looks"
    assert await asyncio.to_thread(begun.wait, 60)
    assert networks == Networks(["192.0.2.0/24"])
    files.clock.advance("1s")
    assert await statuses(app, 1) == [200]
    go_on.set()
    await asyncio.to_thread(end_of_looks)
    assert read == 1, "nor is it read twice at a time"
    assert files.observer.kinds == ["list_reloaded"]
    assert networks == Networks(["198.51.100.0/24"])
    assert app.lists["blocklist"] is networks, "it has its file for who looks at the configuration"


async def test_a_request_that_cannot_start_a_thread_is_answered_all_the_same(
    files: FollowedFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    networks = Networks.from_file(files.write("a.netset", f"{PEER}\n"))
    app = following(files, networks)

    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    files.clock.advance("1s")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuses)
        assert await statuses(app, 1) == [403]
    assert "no thread to check" in caplog.text


async def test_no_lookup_sees_half_a_list_while_lists_are_swapped_under_eight_threads(files: FollowedFiles) -> None:
    """Two addresses at the ends of a long list come and go together."""
    filler = "".join(f"10.{number >> 8}.{number & 255}.0/25\n" for number in range(300))
    low, high = (4, 0xC000_0201), (6, 0x2001_0DB8 << 96)
    texts = (filler, f"192.0.2.1/32\n{filler}2001:db8::/128\n")
    listed = Networks.from_file(files.write("one.netset", texts[1]))
    app = following(files, listed)
    seen: Counter[tuple[bool, ...]] = Counter()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            listed.covers(*low)
            ranges = [*listed.ranges()]
            seen[(4, 0xC000_0201, 0xC000_0201) in ranges, ranges[-1][:2] == high, len(ranges) > 2] += 1

    with hurried(collecting=False), ThreadPoolExecutor(8) as pool:
        looking = [pool.submit(look) for _ in range(8)]
        try:
            for number in range(16):
                files.write("one.netset", texts[number % 2])
                await files.visit(app)
        finally:
            stop.set()
    assert [one.result() for one in looking] == [None] * 8
    assert set(seen) == {(True, True, True), (False, False, True)}, "it raced, and never saw a half"
    assert files.observer.kinds == ["list_reloaded"] * 16


PLAIN = """\
# netset
192.0.2.0/24
198.51.100.7
203.0.113.0/24 ; SBL1
203.0.113.7/32
2001:db8::/32 # office

"""


def entries(text: str) -> list[tuple[int, str]]:
    return list(read_entries(text.splitlines(keepends=True)))


def test_what_means_more_than_an_address_never_becomes_one(files: FollowedFiles, texts: Callable[..., None]) -> None:
    def message(line: str) -> str:
        said = []
        for number, before in ((1, ""), (2, "192.0.2.0/24\n")):
            with pytest.raises(ConfigurationError) as caught:
                Networks.from_file(files.write("blocked.netset", f"{before}{line}\n"))
            said.append(str(caught.value).removeprefix(f"{files.directory}/blocked.netset, line {number}: "))
        assert said[0] == said[1]
        return said[0]

    texts(Path(__file__).with_name("list_messages.txt"), "> ", message)


@given(st.integers(0, len(PLAIN)))
def test_a_file_that_was_cut_off_is_never_read_as_something_else(length: int) -> None:
    found = entries(PLAIN[:length])
    # Nobody can tell that 192.0.2.1 was to be 192.0.2.17, but all before it is what it was.
    assert found[:-1] == entries(PLAIN)[: max(len(found) - 1, 0)]


def test_a_line_of_other_bytes_is_named(files: FollowedFiles) -> None:
    with pytest.raises(ConfigurationError, match="line 2: network: "):
        Networks.from_file(files.write("a.netset", b"192.0.2.1\n\xff\xfe\x00\n"))


def lines_of(networks: list[Network], pick: random.Random) -> str:
    """Write networks as real files do: CRLF, comments, upper case, IPv4 in IPv6."""
    lines = ["\ufeff# a list; of many", ""]
    for network in networks:
        text = str(network)
        if pick.random() < 0.3:
            text = text.upper() if network.version == 6 else f"::ffff:{network[0]}/{network.prefixlen + 96}"
        lines.append(text + pick.choice(["", "\t# 5", " ; SBL1", " # bad"]))
    return "\r\n".join(lines)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(neighbours(), neighbours(), st.randoms(use_true_random=False))
def test_lists_are_read_however_real_files_write_them(
    files: FollowedFiles, some: list[Network], more: list[Network], pick: random.Random
) -> None:
    path = files.write("real.netset", lines_of([*some, *more, *some], pick))
    assert Networks.from_file(path) == Networks([*some, *more])


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.deep)])
def test_a_long_list_is_read_and_held_in_300_bytes_for_each_network(count: int, files: FollowedFiles) -> None:
    addresses = (ipaddress.IPv6Address(0x2001_0DB8 << 96 | number << 65) for number in range(count))
    path = files.write("long.netset", "\n".join(f"{address}/64" for address in addresses))
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
    assert len([*found.ranges()]) == count
