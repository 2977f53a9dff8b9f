"""Named lists in files: which one holds an address, and how a changed file takes over."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from slidegate import (
    ConfigurationError,
    Limiter,
    MemoryStore,
    NetworkFile,
    NetworkFiles,
    Networks,
    RateLimitMiddleware,
    client_ip,
)
from slidegate.core import parse_address
from slidegate.netlists.reading import NetworkList
from slidegate.testing import FakeClock, RecordingObserver

from ...asgi import PEER, call, hello, statuses
from ..gates import end_of_looks

WRITTEN_US = 1_800_000_000_000_000
DECISIONS = "id,source,ip,reason,action,country,as,events_count,expiration,simulated,alert_id\n"


class Desk:
    """A directory of lists, the two clocks they go by, and an ear."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = FakeClock()
        self.wall_clock = FakeClock(WRITTEN_US)
        self.heard = RecordingObserver(without=["refused", "near_limit"])
        self._written = 0

    def write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.write_text(text, "utf-8")
        # Two versions within one tick of the file system's clock are two versions all the same.
        self._written += 1
        os.utime(path, ns=(self._written, (WRITTEN_US + self._written) * 1_000))
        return path

    def lists(self, *files: NetworkFile | Path) -> NetworkFiles:
        made = NetworkFiles(files, clock=lambda: self.clock.now_us / 1_000_000, wall_clock=self.wall_clock)
        made.observe(self.heard)
        return made

    async def pause(self, lists: NetworkFiles) -> None:
        """Let a change be seen, and stand still for long enough."""
        for span in ("1s", "10s"):
            self.clock.advance(span)
            assert lists.due()
            await lists.look()
            assert not lists.due()

    async def wait_for_the_shrunk(self, lists: NetworkFiles) -> None:
        self.clock.advance("60s")
        await lists.look()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def found(lists: NetworkFiles, text: str) -> str | None:
    address = parse_address(text)
    assert address is not None
    name = lists.find(*address)
    assert lists.covers(*address) is (name is not None)
    return name


# -- everybody -------------------------------------------------------------------------------------------------------


def test_no_way_of_writing_everybody_makes_a_list_of_everybody(desk: Desk) -> None:
    """Draw a partition of all public addresses, leave a little out, and write the rest in one file or in several."""
    seed = random.randrange(1 << 32)
    sys.stdout.write(f"seed {seed}\n")
    dice = random.Random(seed)
    for _ in range(3):
        version, bits = dice.choice([(4, 8), (6, 11)])
        pieces = [f"{n}.0.0.0/8" if version == 4 else f"{n << 5:x}::/11" for n in range(1 << bits)]
        dice.shuffle(pieces)
        chosen = pieces[len(pieces) // 4 :]
        texts = {"plain": "\n".join(chosen), "csv": "network\n" + "\n".join(chosen)}
        for format, text in texts.items():
            path = desk.write(f"{format}.netset", text)
            with pytest.raises(ConfigurationError, match=rf"netset: covers more than half of all public IPv{version} "):
                desk.lists(NetworkFile(path, format=format))
            with pytest.raises(ConfigurationError, match="covers more than half"):
                Networks.from_file(path, format=format)
        for what in ("blocklist", "allowlist"):
            with pytest.raises(ConfigurationError, match=f"{what}: covers more than half"):
                RateLimitMiddleware(hello, limits="1/s", **{what: Networks(chosen)})
        with pytest.raises(ConfigurationError, match="trusted: these networks cover most addresses"):
            client_ip(chosen)
        halves = [desk.write(f"{n}.netset", "\n".join(chosen[n::2])) for n in range(2)]
        with pytest.raises(ConfigurationError, match="files: covers more than half"):
            desk.lists(*halves)
        for half in halves:
            assert desk.lists(half).counts


async def test_files_that_add_up_to_everybody_only_now_change_nothing(desk: Desk) -> None:
    first, second = desk.write("a.netset", "0.0.0.0/2\n64.0.0.0/3\n"), desk.write("b.netset", "192.0.2.0/24\n")
    lists = desk.lists(first, second)
    desk.write("b.netset", "128.0.0.0/2\n192.0.0.0/3\n")
    await desk.pause(lists)
    assert found(lists, "192.0.2.7") == "b"
    assert found(lists, "198.51.100.7") is None
    (event,) = desk.heard.events
    assert event.kind == "list_rejected"
    assert event.message.startswith(
        "the lists stay as they are: with 'b' together, files: covers more than half of all"
    )
    assert event.details == {"list": "b", "path": str(second)}


# -- which list ------------------------------------------------------------------------------------------------------


def test_the_first_list_that_holds_an_address_is_named(desk: Desk) -> None:
    lists = desk.lists(
        desk.write("first.netset", "192.0.2.0/25\n"),
        NetworkFile(desk.write("drop.json", '{"cidr":"192.0.2.0/24"}\n{"cidr":"2001:db8::/32"}\n'), name="spamhaus"),
        NetworkFile(desk.write("abuse.csv", "seen,ip\nx,198.51.100.7\n"), column="ip"),
    )
    assert found(lists, "192.0.2.7") == found(lists, "::ffff:192.0.2.7") == "first"
    assert found(lists, "192.0.2.200") == found(lists, "2001:db8::1") == "spamhaus"
    assert found(lists, "198.51.100.7") == "abuse"
    assert found(lists, "198.51.100.8") is None
    assert lists.counts == {"first": 1, "spamhaus": 2, "abuse": 1}
    assert repr(lists) == "<NetworkFiles: first (1), spamhaus (2), abuse (1)>"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NetworkFile(5), 'path: expected a file, for example "drop.netset", not 5'),
        (lambda: NetworkFile("a", name=5), 'name: expected text, for example "spamhaus", not 5'),
        (lambda: NetworkFile("a", strict="no"), "strict: expected True or False, not 'no'"),
        (lambda: NetworkFile("a", format="plian"), "did you mean 'plain'"),
        (lambda: NetworkFile("a", format="plain", column=1), "column: only csv has columns"),
        (lambda: NetworkFiles("a"), r"files: expected a list, for example \[\"drop.netset\"\], not 'a'"),
        (lambda: NetworkFiles([5]), "path: expected a file"),
        (lambda: NetworkFiles(["x/a.netset", "y/a.csv"]), "files: two lists are called 'a'; give one of them another"),
        (lambda: NetworkFiles(["no such.netset"]), "cannot read no such.netset: No such file or directory"),
        (lambda: RateLimitMiddleware(hello, limits="1/s", blocklist="a"), "blocklist: expected Networks or Netw"),
        (lambda: RateLimitMiddleware(hello, limits="1/s", allowlist=["a"]), "allowlist: expected Networks or Netwo"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_list_is_an_error_at_once(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_a_list_with_a_bad_line_is_an_error_at_once_unless_it_is_read_less_strictly(desk: Desk) -> None:
    path = desk.write("a.netset", "192.0.2.0/24\n192.0.2.1/24\n")
    with pytest.raises(ConfigurationError, match=r"a\.netset, line 2: network: '192\.0\.2\.1/24' has host bits set"):
        desk.lists(path)
    assert found(desk.lists(NetworkFile(path, strict=False)), "192.0.2.7") == "a"


# -- following -------------------------------------------------------------------------------------------------------


async def test_a_changed_file_takes_over_and_that_is_said(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    path = desk.write("a.netset", "192.0.2.0/24\n")
    lists = desk.lists(path)
    desk.write("a.netset", "198.51.100.0/24\n203.0.113.0/24\n\n")
    with caplog.at_level(logging.INFO, "slidegate"):
        await desk.pause(lists)
        await desk.pause(lists)
    assert found(lists, "192.0.2.7") is None
    assert found(lists, "203.0.113.7") == "a"
    (event,) = desk.heard.events
    assert (event.kind, event.message) == ("list_reloaded", "list 'a': 2 entries")
    assert event.details == {"list": "a", "path": str(path), "count": 2, "skipped": {}}
    assert [record.levelname for record in caplog.records] == ["INFO"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("192.0.2.0/24\n192.0.2.1/24\n", "line 2: network: '192.0.2.1/24' has host bits set"),
        ('{"cidr":"192.0.2.0/24"}\n{"type":"metadata","records":2}', "line 2: expected 2 records, but there are 1"),
        ("<html>not found</html>\n", "line 1: network: '<html>not' is not an address or network"),
        ("0.0.0.0/0\n", "line 1: network: '0.0.0.0/0' is every address; leave it out"),
        ("1" * 5_000_000, f"line 1: network: '{'1' * 78}\u2026 is not an address or network, for example"),
        ("", "is blank; for a list of nothing, write a comment: # nothing"),
        (" \n\n", "is blank"),
        (None, "No such file or directory"),
    ],
)
async def test_a_file_that_cannot_be_used_keeps_the_list_and_is_said_once(
    desk: Desk, caplog: pytest.LogCaptureFixture, text: str | None, message: str
) -> None:
    path = desk.write("a.netset", "198.51.100.0/24\n")
    lists = desk.lists(path)
    if text is None:
        path.unlink()
    else:
        desk.write("a.netset", text)
    await desk.pause(lists)
    await desk.pause(lists)
    assert found(lists, "198.51.100.7") == "a"
    assert found(lists, "192.0.2.7") is None
    (event,) = desk.heard.events
    assert event.kind == "list_rejected"
    assert event.message.startswith("list 'a' stays as it is: ")
    assert message in event.message
    assert event.details == {"list": "a", "path": str(path)}
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    desk.write("a.netset", "203.0.113.0/24\n")
    await desk.pause(lists)
    assert desk.heard.kinds == ["list_rejected", "list_reloaded"]
    assert found(lists, "203.0.113.7") == "a"


async def test_a_list_of_nothing_is_taken_where_it_is_meant_and_is_a_warning(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    lists = desk.lists(desk.write("a.netset", "192.0.2.0/24\n"))
    desk.write("a.netset", "# nothing\n")
    await desk.pause(lists)
    await desk.wait_for_the_shrunk(lists)
    assert desk.heard.kinds == ["list_shrunk", "list_reloaded"]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert found(lists, "192.0.2.7") is None
    assert lists.counts == {"a": 0}


async def test_what_no_one_foresaw_keeps_the_list_as_well(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lists = desk.lists(desk.write("a.netset", "192.0.2.0/24\n"))

    def fails(file: NetworkFile) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(NetworkFile, "read", fails)
    desk.write("a.netset", "198.51.100.0/24\n")
    await desk.pause(lists)
    assert found(lists, "192.0.2.7") == "a"
    assert desk.heard.kinds == ["list_rejected"]
    assert "Traceback" in caplog.text


async def test_no_lookup_waits_for_a_file_that_is_read(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    lists = desk.lists(desk.write("a.netset", "192.0.2.0/24\n"))
    begun, go_on = threading.Event(), threading.Event()
    reading = NetworkFile.read
    read = 0

    def slow(file: NetworkFile) -> NetworkList:
        nonlocal read
        read += 1
        begun.set()
        assert go_on.wait(60)
        return reading(file)

    monkeypatch.setattr(NetworkFile, "read", slow)
    app = RateLimitMiddleware(hello, limits="9/hour", blocklist=lists)
    desk.write("a.netset", "198.51.100.0/24\n")
    desk.clock.advance("1s")
    await lists.look()
    desk.clock.advance("10s")
    assert await statuses(app, 1) == [200], "the request that looks"
    assert await asyncio.to_thread(begun.wait, 60)
    assert not lists.due(), "others do not wait for the file"
    assert found(lists, "192.0.2.7") == "a"
    desk.clock.advance("1s")
    assert await statuses(app, 1) == [200]
    go_on.set()
    await asyncio.to_thread(end_of_looks)
    assert read == 1, "nor is it read twice at a time"
    assert desk.heard.kinds == ["list_reloaded"]
    assert found(lists, "198.51.100.7") == "a"


# -- what may be taken ---------------------------------------------------------------------------------------------


def rows(count: int) -> str:
    return "".join(f"198.51.{number >> 8}.{number & 255}\n" for number in range(count))


async def test_a_file_that_is_renamed_into_place_is_taken_at_the_next_look_however_short_it_is(desk: Desk) -> None:
    path = desk.write("a.netset", rows(1_000))
    lists = desk.lists(path)
    for count in (600, 5, 900):
        (desk.directory / "fresh").write_text(rows(count))
        (desk.directory / "fresh").replace(path)
        desk.clock.advance("1s")
        await lists.look()
        assert lists.counts == {"a": count}
    assert desk.heard.kinds == ["list_reloaded"] * 3


async def test_a_list_that_has_lost_most_of_its_entries_in_place_waits_for_a_minute_more(desk: Desk) -> None:
    other = desk.write("b.netset", rows(3))
    lists = desk.lists(desk.write("a.netset", rows(1_000)), other)
    desk.write("a.netset", rows(499))
    await desk.pause(lists)
    assert desk.heard.kinds == ["list_shrunk"]
    (event,) = desk.heard.events
    assert event.details == {"list": "a", "path": str(desk.directory / "a.netset"), "count": 499, "before": 1_000}
    desk.write("b.netset", rows(2))
    for _ in range(59):
        desk.clock.advance("1s")
        await lists.look()
    assert lists.counts == {"a": 1_000, "b": 2}, "others do not wait for it"
    desk.clock.advance("1s")
    await lists.look()
    assert lists.counts == {"a": 499, "b": 2}
    assert desk.heard.kinds == ["list_shrunk", "list_reloaded", "list_reloaded"]


def test_whatever_a_writer_does_in_place_no_half_of_its_file_is_taken(desk: Desk) -> None:
    """A writer empties the file, writes parts of it, and pauses for less than ten seconds at a time."""
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    path = desk.write("a.netset", rows(100))
    lists = desk.lists(path)
    for version in range(101, 130):
        text = rows(version)
        place = 0
        while place < len(text):
            place += dice.randrange(1, 700)
            desk.write("a.netset", text[:place])
            for _ in range(dice.randrange(1, 10)):
                desk.clock.advance("1s")
                anyio.run(lists.look)
                assert lists.counts == {"a": version - 1}, f"seed {seed}"
        anyio.run(desk.pause, lists)
        assert lists.counts == {"a": version}, f"seed {seed}"


def test_a_file_that_says_how_many_entries_it_has_is_held_to_it(desk: Desk) -> None:
    path = desk.write("a.netset", "# entries: 2\n192.0.2.1\n192.0.2.2\n")
    assert desk.lists(path).counts == {"a": 2}
    desk.write("a.netset", "# entries: 2\n192.0.2.1\n")
    with pytest.raises(ConfigurationError, match=r"a\.netset, expected 2 entries, as a comment in it says, but"):
        desk.lists(path)


def test_no_lookup_sees_half_a_list_while_lists_are_swapped_under_eight_threads(desk: Desk) -> None:
    """Each of two addresses moves from one list to the other and back, together: it is always in exactly one."""
    filler = "".join(f"10.{number >> 8}.{number & 255}.0/25\n" for number in range(300))
    low, high = (4, 0xC000_0201), (6, 0x2001_0DB8 << 96)
    here, there = f"192.0.2.1/32\n{filler}2001:db8::/128\n", filler
    lists = desk.lists(desk.write("one.netset", here), desk.write("two.netset", there))
    seen: dict[str | None, int] = {"one": 0, "two": 0, None: 0}
    wrong: list[str | None] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            for address in (low, high):
                name = lists.find(*address)
                seen[name] += 1
                if name is None:
                    wrong.append(name)
            if lists.covers(4, 0xC633_6401):
                wrong.append("never listed")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=look) for _ in range(8)]
    try:
        for thread in threads:
            thread.start()
        for number in range(8):
            texts = (there, here) if number % 2 == 0 else (here, there)
            for name, text in zip(("one.netset", "two.netset"), texts, strict=True):
                desk.write(name, text)
            anyio.run(desk.pause, lists)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert wrong == []
    assert seen["one"] > 0 < seen["two"], "it raced"
    assert desk.heard.kinds == ["list_reloaded"] * 16


# -- in a middleware -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_middleware_follows_its_lists_as_requests_come(backend: str, desk: Desk) -> None:
    block = desk.lists(desk.write("block.netset", "198.51.100.0/24\n"))
    allow = desk.lists(desk.write("allow.netset", "192.0.2.0/24\n"))
    heard = RecordingObserver(without=["refused", "near_limit"])
    limiter = Limiter(MemoryStore(clock=desk.clock), observers=[heard])
    app = RateLimitMiddleware(hello, limits="1/hour", limiter=limiter, blocklist=block, allowlist=allow)

    async def main() -> None:
        assert await statuses(app, 2, client=("198.51.100.7", 1)) == [403, 403]
        assert await statuses(app, 3, client=("192.0.2.7", 1)) == [200] * 3
        assert await statuses(app, 2) == [200, 429]
        desk.write("block.netset", "203.0.113.0/24\n")
        desk.write("allow.netset", "198.51.100.0/24\n")
        for span in ("1s", "10s"):
            desk.clock.advance(span)
            await call(app, client=("192.0.2.8", 1))
            end_of_looks()
        assert await statuses(app, 1) == [403]
        assert await statuses(app, 3, client=("198.51.100.7", 1)) == [200] * 3
        desk.write("block.netset", "bad\n")
        for span in ("1s", "10s"):
            desk.clock.advance(span)
            await call(app, client=("192.0.2.8", 1))
            end_of_looks()
        assert await statuses(app, 1) == [403]

    anyio.run(main, backend=backend)
    assert sorted(heard.kinds) == ["list_rejected", "list_reloaded", "list_reloaded"]


async def test_an_entry_that_ends_lets_its_client_in_again(desk: Desk) -> None:
    lists = desk.lists(desk.write("ends.csv", f"{DECISIONS}1,a,Ip:{PEER},b,ban,,,1,1h,false,1\n"))
    app = RateLimitMiddleware(hello, limits="9/hour", blocklist=lists)
    assert await statuses(app, 1) == [403]
    desk.wall_clock.advance("61m")
    assert await statuses(app, 1) == [200]


# -- in a configuration file -----------------------------------------------------------------------------------------


def configured(desk: Desk, text: str, **code: Any) -> RateLimitMiddleware:
    path = desk.write("slidegate.toml", 'limits = "9/hour"\n' + text)
    return RateLimitMiddleware.from_file(hello, path, clock=lambda: desk.clock.now_us / 1_000_000, **code)


@pytest.mark.parametrize(
    "text",
    [
        'blocklist = "drop.csv"',
        'blocklist = { path = "drop.csv" }',
        'blocklist = [{ path = "other.netset" }, { path = "drop.csv", name = "drop", format = "csv", column = 1 }]',
        '[[blocklist]]\npath = "drop.csv"\ncolumn = "ip"\nstrict = false',
        'blocklist = ["198.51.100.0/24"]',
    ],
)
async def test_a_configuration_names_lists_in_each_of_its_ways(desk: Desk, text: str) -> None:
    desk.write("drop.csv", "ip,score\n198.51.100.0/24,5\n")
    desk.write("other.netset", "192.0.2.0/24\n")
    app = configured(desk, text)
    assert await statuses(app, 1, client=("198.51.100.7", 1)) == [403]
    assert await statuses(app, 1) == [200]


async def test_lists_of_a_configuration_change_without_it_and_with_it(desk: Desk) -> None:
    limiter = Limiter(MemoryStore(clock=desk.clock), observers=[desk.heard])
    desk.write("a.netset", "198.51.100.0/24\n")
    app = configured(desk, 'blocklist = [{ path = "a.netset" }]\n', limiter=limiter)

    async def pause() -> None:
        for span in ("1s", "10s"):
            desk.clock.advance(span)
            await call(app, client=("192.0.2.99", 1))
            end_of_looks()

    desk.write("a.netset", "203.0.113.0/24\n")
    await pause()
    assert await statuses(app, 1) == [403]
    desk.write("b.netset", "192.0.2.0/26\n")
    desk.write("slidegate.toml", 'limits = "9/hour"\n[[blocklist]]\npath = "b.netset"\n')
    await pause()
    assert await statuses(app, 1) == [200]
    assert await statuses(app, 1, client=("192.0.2.7", 1)) == [403]
    desk.write("b.netset", "bad\n")
    await pause()
    assert await statuses(app, 1, client=("192.0.2.7", 1)) == [403]
    assert desk.heard.kinds == ["list_reloaded", "config_reloaded", "list_rejected"]


def test_a_swap_is_seen_whatever_the_order_of_changes(desk: Desk) -> None:
    seed = random.randrange(2**32)
    pick = random.Random(seed)
    lists = desk.lists(desk.write("a.netset", "# nothing\n"), desk.write("b.netset", "# nothing\n"))
    model: dict[str, str] = {"a": "", "b": ""}
    for _ in range(30):
        name = pick.choice("ab")
        text = pick.choice(["# nothing\n", "192.0.2.0/24\n", "198.51.100.0/24\n", "192.0.2.0/99\n"])
        desk.write(f"{name}.netset", text)
        anyio.run(desk.pause, lists)
        anyio.run(desk.wait_for_the_shrunk, lists)
        if "/99" not in text:
            model[name] = text
        for address in ("192.0.2.7", "198.51.100.7"):
            expected = next((held for held in "ab" if address[:7] in model[held]), None)
            assert found(lists, address) == expected, f"seed {seed}"
