"""A log is followed while it is rotated: each line is counted once, whatever happens to its file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from slidegate import ConfigurationError
from slidegate.logs import AccessRecord, FollowedLog


def line(number: int) -> bytes:
    return f'192.0.2.7 - - [03/Mar/2026:10:00:00 +0000] "GET /{number} HTTP/1.1" 200 1 "-" "curl/8"\n'.encode()


def write(path: Path, first: int, count: int) -> None:
    with path.open("ab") as file:
        file.write(b"".join(line(first + place) for place in range(count)))


def numbers(records: list[AccessRecord] | None) -> list[int]:
    return [int(record.path[1:]) for record in records or ()]


def all_of(log: FollowedLog) -> list[int]:
    found: list[int] = []
    while (records := log.poll()) is not None:
        found += numbers(records)
    return found


@pytest.mark.parametrize("how", ["rename", "copytruncate", "delete"])
def test_every_line_is_counted_once_over_a_rotation(how: str, tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = FollowedLog(path, from_start=True)
    assert log.poll() is None
    write(path, 0, 70)
    found = all_of(log)
    write(path, 70, 30)
    if how == "copytruncate":
        shutil.copyfile(path, tmp_path / "access.log.1")
        os.truncate(path, 0)
    elif how == "rename":
        path.rename(tmp_path / "access.log.1")
    else:
        path.unlink()
    write(path, 100, 50)
    found += all_of(log)
    assert found == list(range(150))
    assert (log.counts.lines, log.counts.records) == (150, 150)
    log.close()


async def test_tasks_and_threads_follow_from_the_end_until_they_are_told_to_stop(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_bytes(line(0))
    looks = iter([(1, 2, False), (3, 0, True)] * 2)

    def wait() -> bool:
        first, count, ends = next(looks)
        write(path, first, count)
        return ends

    async def wait_async() -> bool:
        return wait()

    assert numbers(list(FollowedLog(path).follow(wait))) == [1, 2]
    assert numbers([record async for record in FollowedLog(path).follow_async(wait_async)]) == [1, 2]


@pytest.mark.parametrize("path", ["-", "."])
def test_what_cannot_be_followed_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match="expected the path of a file"):
        FollowedLog(path)
