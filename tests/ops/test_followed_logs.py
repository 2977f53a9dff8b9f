"""A log is followed while it is rotated: each line is counted once, whatever happens to its file."""

from __future__ import annotations

import gzip
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slidegate import ConfigurationError
from slidegate.ops.access_logs import AccessRecord, FollowedLog, Skip, tails

ROTATIONS = ("rename", "copytruncate", "delete", "gzip", "copytruncate and gzip")


def line(number: int) -> bytes:
    return f'192.0.2.7 - - [03/Mar/2026:10:00:00 +0000] "GET /{number} HTTP/1.1" 200 1 "-" "curl/8"\n'.encode()


class Server:
    """Writes numbered lines to a log, and rotates it as `logrotate` does.

    Args:
        folder: The folder of the log.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "access.log"
        self.number = 0
        self.owed = b""
        self.rotations = 0
        self._file = self.path.open("ab", buffering=0)

    def write(self, count: int) -> None:
        self._file.write(self.owed)
        self.owed = b""
        self._file.write(b"".join(line(self.number + place) for place in range(count)))
        self.number += count

    def write_a_part(self, share: float) -> None:
        """Write the beginning of a line, or more of one that is begun."""
        if not self.owed:
            self.owed = line(self.number)
            self.number += 1
        # Its line break is left for later.
        size = int(share * (len(self.owed) - 1))
        self._file.write(self.owed[:size])
        self.owed = self.owed[size:]

    def rotate(self, how: str) -> None:
        """Rotate; what was begun is ended before, as servers write a line at once."""
        self.write(0)
        self.rotations += 1
        old = self.path.with_name(f"access.log.{self.rotations}")
        if how.startswith("copytruncate"):
            shutil.copyfile(self.path, old)
            os.truncate(self.path, 0)
        elif how == "delete":
            self.path.unlink()
        else:
            self.path.rename(old)
        if how.endswith("gzip"):
            old.with_name(f"{old.name}.gz").write_bytes(gzip.compress(old.read_bytes()))
            old.unlink()
        if not how.startswith("copytruncate"):
            self.reopen()

    def rename_and_go_on(self) -> None:
        """Rotate, and go on writing to the old file, as a server does until it gets its signal."""
        self.rotations += 1
        self.path.rename(self.path.with_name(f"access.log.{self.rotations}"))

    def reopen(self) -> None:
        self._file.close()
        self._file = self.path.open("ab", buffering=0)

    def close(self) -> None:
        self._file.close()


def numbers(records: list[AccessRecord] | None) -> list[int]:
    return [int(record.path[1:]) for record in records or ()]


def all_of(log: FollowedLog) -> list[int]:
    found: list[int] = []
    while (records := log.poll()) is not None:
        found += numbers(records)
    return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.close()


@pytest.mark.parametrize("how", ROTATIONS)
@pytest.mark.parametrize("read_before", [True, False])
def test_ten_thousand_lines_over_five_rotations_are_counted_once_each(
    server: Server, how: str, read_before: bool
) -> None:
    log = FollowedLog(server.path, from_start=True)
    found = numbers(log.poll())
    for place in range(6):
        server.write(700)
        found += numbers(log.poll())
        server.write(900)
        if read_before:
            found += all_of(log)
        if place < 5:
            server.rotate(how)
            server.write(66 + (place < 4))
            found += all_of(log)
    server.write(10_000 - server.number)
    found += all_of(log)
    assert sorted(found) == list(range(10_000))
    assert found == sorted(found)
    assert (log.counts.lines, log.counts.records) == (10_000, 10_000)
    log.close()


def test_a_line_without_its_end_is_counted_when_it_has_one(server: Server) -> None:
    log = FollowedLog(server.path, from_start=True)
    server.write_a_part(0.5)
    assert log.poll() is None
    for _ in range(100):
        assert log.poll() is None
    server.write_a_part(0.9)
    assert log.poll() is None
    server.write(1)
    assert numbers(log.poll()) == [0, 1]
    assert log.counts.lines == 2
    log.close()


def test_a_line_that_will_never_have_an_end_is_counted_once(server: Server) -> None:
    log = FollowedLog(server.path, from_start=True)
    server.write(1)
    server.write_a_part(1.0)
    found = all_of(log)
    server.owed = b""
    server.rename_and_go_on()
    server.reopen()
    server.write(1)
    for _ in range(100):
        found += all_of(log)
    assert sorted(found) == [0, 1, 2]
    log.close()


def test_who_begins_at_the_end_sees_the_lines_that_come_and_no_half_of_one(server: Server) -> None:
    server.write(3)
    server.write_a_part(0.5)
    log = FollowedLog(server.path)
    assert log.poll() is None
    server.write(1)
    assert numbers(log.poll()) == [3, 4]
    assert log.counts.broken == 0
    log.close()


def test_a_file_that_is_not_there_yet_is_read_from_its_start(tmp_path: Path) -> None:
    log = FollowedLog(tmp_path / "access.log")
    assert log.poll() is None
    server = Server(tmp_path)
    server.write(2)
    assert all_of(log) == [0, 1]
    log.close()
    server.close()


def test_a_server_that_goes_on_writing_to_the_old_file_is_read_on(server: Server) -> None:
    log = FollowedLog(server.path, from_start=True)
    server.write(2)
    found = all_of(log)
    server.rename_and_go_on()
    for _ in range(5):
        server.write(2)
        found += all_of(log)
    old = server._file
    server._file = server.path.open("ab", buffering=0)
    server.write(1)
    found += all_of(log)
    old.write(line(99))
    found += all_of(log)
    old.close()
    assert found == [*range(13), 99]
    log.close()


def test_old_files_are_closed_in_the_end(server: Server) -> None:
    log = FollowedLog(server.path, from_start=True)
    for _ in range(20):
        server.write(1)
        all_of(log)
        server.rotate("rename")
        assert len(log._tail._opened) <= 5
    for _ in range(70):
        log.poll()
    assert len(log._tail._opened) == 1
    log.close()


def test_a_cut_that_nobody_has_seen_is_seen_when_the_file_has_grown_again(server: Server) -> None:
    log = FollowedLog(server.path, from_start=True)
    server.write(5)
    found = all_of(log)
    server.write(3)
    server.rotate("copytruncate")
    server.write(50)
    found += all_of(log)
    assert found == list(range(58))
    log.close()


def test_a_cut_without_a_copy_begins_again_at_the_start(server: Server) -> None:
    log = FollowedLog(server.path, from_start=True)
    server.write(5)
    assert all_of(log) == [0, 1, 2, 3, 4]
    os.truncate(server.path, 0)
    server.path.with_name("access.log.1").write_bytes(b"of another time\n" * 1_000)
    server.path.with_name("access.log.2.gz").write_bytes(gzip.compress(b"of another time\n" * 1_000)[:-20])
    server.write(2)
    assert all_of(log) == [5, 6]
    log.close()


def test_much_at_once_comes_in_parts(server: Server) -> None:
    log = FollowedLog(server.path, from_start=True)
    server.write(20_000)
    parts = []
    while (records := log.poll()) is not None:
        parts.append(numbers(records))
    assert len(parts) > 5
    assert [number for part in parts for number in part] == list(range(20_000))
    log.close()


def test_lines_of_w3c_keep_their_header(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_text(
        "#Fields: date time c-ip cs-method cs-uri-stem sc-status\n2026-03-03 10:00:00 192.0.2.7 GET /0 200\n"
    )
    log = FollowedLog(path)
    assert log.poll() is None
    for number in (1, 2):
        with path.open("a") as file:
            file.write(f"2026-03-03 10:00:00 192.0.2.7 GET /{number} 200\n")
        assert all_of(log) == [number]
    log.close()


def test_a_file_that_may_not_be_read_is_told_once_and_read_later(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = FollowedLog(server.path, from_start=True)
    server.write(1)

    def refuse(*arguments: Any, **options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(tails, "open", refuse, raising=False)
        assert [log.poll() for _ in range(5)] == [None] * 5
    assert [record.getMessage() for record in caplog.records] == [f"cannot follow {server.path}: Permission denied"]
    assert all_of(log) == [0]
    log.close()


@pytest.mark.parametrize("path", ["-", "."])
def test_what_cannot_be_followed_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match="expected the path of a file"):
        FollowedLog(path)


# -- iterators -------------------------------------------------------------------------------------------------------


def test_whoever_follows_waits_only_where_there_is_nothing_new(server: Server) -> None:
    looks = iter([(3, False), (0, False), (2, False), (0, True)])

    def wait() -> bool:
        count, ends = next(looks)
        server.write(count)
        return ends

    log = FollowedLog(server.path, from_start=True)
    assert numbers(list(log.follow(wait))) == [0, 1, 2, 3, 4]
    assert next(looks, None) is None
    assert log._tail._opened == []


def test_an_event_ends_the_following(server: Server) -> None:
    ended = threading.Event()
    ended.set()
    assert list(FollowedLog(server.path).follow(lambda: ended.wait(60))) == []


async def test_tasks_follow_as_well(server: Server) -> None:
    looks = iter([(2, False), (1, True)])

    async def wait() -> bool:
        count, ends = next(looks)
        server.write(count)
        return ends

    log = FollowedLog(server.path, from_start=True)
    found = [record async for record in log.follow_async(wait)]
    assert numbers(found) == [0, 1]
    assert log._tail._opened == []


def test_broken_lines_are_counted_and_are_no_reason_to_wait(server: Server) -> None:
    server._file.write(b"odd\n")
    log = FollowedLog(server.path, from_start=True)
    assert log.poll() == []
    assert log.poll() is None
    assert log.counts.skipped == {Skip.FORMAT: 1}
    log.close()


# -- any order -------------------------------------------------------------------------------------------------------


class Rotating(RuleBasedStateMachine):
    """A server that writes, stops in the middle of lines, and rotates in every way, and somebody who looks at times."""

    @initialize(folder=st.just(None))
    def begin(self, folder: None) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.server = Server(Path(self.folder.name))
        self.log = FollowedLog(self.server.path, from_start=True)
        self.found: list[int] = numbers(self.log.poll())
        self.rotated = False

    @rule(count=st.integers(0, 30))
    def writes(self, count: int) -> None:
        self.server.write(count)

    @rule(share=st.floats(0, 1))
    def writes_a_part(self, share: float) -> None:
        self.server.write_a_part(share)

    @rule()
    def looks(self) -> None:
        self.found += numbers(self.log.poll())
        self.rotated = False

    @precondition(lambda self: not self.rotated)
    @rule(how=st.sampled_from(ROTATIONS))
    def rotates(self, how: str) -> None:
        # If a file is cut off before anybody has read a line of it, nothing tells it from the one that follows.
        if how.startswith("copytruncate") and b"\n" not in self.log._tail._opened[-1]._before:
            return
        self.server.rotate(how)
        self.rotated = True

    @invariant()
    def no_line_comes_twice(self) -> None:
        assert len(self.found) == len(set(self.found))

    def teardown(self) -> None:
        if not hasattr(self, "server"):
            return
        self.server.write(1)
        for _ in range(3):
            self.found += all_of(self.log)
        self.log.close()
        self.server.close()
        self.folder.cleanup()
        assert sorted(self.found) == list(range(self.server.number))


TestRotating = Rotating.TestCase
TestRotating.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
