"""Named lists in files: which one holds an address, and how a changed file takes over."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from slidegate import ConfigurationError, Networks, RateLimitMiddleware, client_ip
from slidegate.core import parse_address
from slidegate.web.lists import ListFile, NetworkList

from ..asgi import hello, statuses
from .middlewares import FollowedFiles, end_of_looks


class ListFiles(FollowedFiles):
    """Lists of networks in files."""

    def lists(self, *paths: Path, **options: Any) -> Networks:
        made = Networks.from_file(*paths, clock=self.seconds, **options)
        assert made.files is not None
        made.files.observe(self.heard)
        return made

    def pause(self, lists: Networks, looks: int = 2) -> None:
        """Let a change be seen at two looks."""
        assert lists.files is not None
        for _ in range(looks):
            self.clock.advance("1s")
            lists.files.look_when_due()
            end_of_looks()


@pytest.fixture
def files(tmp_path: Path) -> ListFiles:
    return ListFiles(tmp_path)


def found(lists: Networks, text: str) -> str | None:
    address = parse_address(text)
    assert address is not None
    name = lists.find(*address)
    assert lists.covers(*address) is (name is not None)
    return name


# -- everybody ---------------------------------------------------------------------------------------------------------


def test_no_way_of_writing_everybody_makes_a_list_of_everybody(files: ListFiles, rng: random.Random) -> None:
    """Draw a partition of all public addresses, leave a little out, and write the rest in one file or in several."""
    for version, bits in ((4, 8), (6, 11)):
        pieces = [f"{n}.0.0.0/8" if version == 4 else f"{n << 5:x}::/11" for n in range(1 << bits)]
        chosen = rng.sample(pieces, len(pieces) * 3 // 4)
        path = files.write("all.netset", "\n".join(chosen))
        with pytest.raises(ConfigurationError, match=rf"netset: covers half of all IPv{version} addresses or more"):
            files.lists(path)
        for what in ("blocklist", "allowlist"):
            with pytest.raises(ConfigurationError, match=f"{what}: covers half"):
                RateLimitMiddleware(hello, limits="1/s", **{what: Networks(chosen)})
        with pytest.raises(ConfigurationError, match="trusted: these networks cover most addresses"):
            client_ip(chosen)
        halves = [files.write(f"{n}.netset", "\n".join(chosen[n::2])) for n in range(2)]
        with pytest.raises(ConfigurationError, match="files: covers half"):
            files.lists(*halves)
        assert all(len(files.lists(half)) for half in halves)


def test_files_that_add_up_to_everybody_only_now_change_nothing(files: ListFiles) -> None:
    first, second = files.write("a.netset", "0.0.0.0/2\n64.0.0.0/3\n"), files.write("b.netset", "192.0.2.0/24\n")
    lists = files.lists(first, second)
    files.write("b.netset", "128.0.0.0/2\n192.0.0.0/3\n")
    files.pause(lists)
    assert found(lists, "192.0.2.7") == "b"
    assert found(lists, "198.51.100.7") is None
    (event,) = files.heard.events
    assert (event.kind, event.details) == ("list_rejected", {"list": "b", "path": str(second)})
    assert event.message.startswith("list 'b' stays as it is: files: covers half of all")


# -- which list --------------------------------------------------------------------------------------------------------


def test_the_first_list_that_holds_an_address_is_named(files: ListFiles) -> None:
    lists = files.lists(
        files.write("first.netset", "192.0.2.0/25\n"),
        files.write("spamhaus.txt", "192.0.2.0/24 ; SBL1\n2001:db8::/32\n"),
        files.write("abuse", "198.51.100.7 5\n"),
    )
    assert found(lists, "192.0.2.7") == found(lists, "::ffff:192.0.2.7") == "first"
    assert found(lists, "192.0.2.200") == found(lists, "2001:db8::1") == "spamhaus"
    assert found(lists, "198.51.100.7") == "abuse"
    assert found(lists, "198.51.100.8") is None
    assert lists.files is not None
    assert [(state.name, state.entries) for state in lists.files.states] == [
        ("first", 1),
        ("spamhaus", 2),
        ("abuse", 1),
    ]
    assert repr(lists) == "<Networks: 2 IPv4 and 1 IPv6 ranges>"


# -- following ---------------------------------------------------------------------------------------------------------


async def test_no_lookup_waits_for_a_file_that_is_read(files: ListFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    lists = files.lists(files.write("a.netset", "192.0.2.0/24\n"))
    begun, go_on = threading.Event(), threading.Event()
    reading = ListFile.read
    read = 0

    def slow(file: ListFile) -> NetworkList:
        nonlocal read
        read += 1
        begun.set()
        assert go_on.wait(60)
        return reading(file)

    monkeypatch.setattr(ListFile, "read", slow)
    app = RateLimitMiddleware(hello, limits="9/hour", blocklist=lists)
    files.write("a.netset", "198.51.100.0/24\n")
    files.pause(lists, looks=1)
    files.clock.advance("1s")
    assert await statuses(app, 1) == [200], "the request that looks"
    assert await asyncio.to_thread(begun.wait, 60)
    assert found(lists, "192.0.2.7") == "a"
    files.clock.advance("1s")
    assert await statuses(app, 1) == [200]
    go_on.set()
    await asyncio.to_thread(end_of_looks)
    assert read == 1, "nor is it read twice at a time"
    assert files.heard.kinds == ["list_reloaded"]
    assert found(lists, "198.51.100.7") == "a"


def test_no_lookup_sees_half_a_list_while_lists_are_swapped_under_eight_threads(files: ListFiles) -> None:
    """Each of two addresses moves from one list to the other and back, together: it is always in exactly one."""
    filler = "".join(f"10.{number >> 8}.{number & 255}.0/25\n" for number in range(300))
    low, high = (4, 0xC000_0201), (6, 0x2001_0DB8 << 96)
    texts = (filler, f"192.0.2.1/32\n{filler}2001:db8::/128\n")
    lists = files.lists(files.write("one.netset", texts[1]), files.write("two.netset", texts[0]))
    seen: Counter[str | None] = Counter()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            seen.update(lists.find(*address) for address in (low, high))
            seen["never listed"] += lists.covers(4, 0xC633_6401)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=look) for _ in range(8)]
    try:
        for thread in threads:
            thread.start()
        for number in range(8):
            files.write("one.netset", texts[number % 2])
            files.write("two.netset", texts[1 - number % 2])
            files.pause(lists)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert +seen == {"one": seen["one"], "two": seen["two"]}
    assert seen["one"] > 0 < seen["two"], "it raced"
    assert files.heard.kinds == ["list_reloaded"] * 16
