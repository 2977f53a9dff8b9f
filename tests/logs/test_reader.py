"""Reading several files in chronological order, and counting their lines."""

from __future__ import annotations

import gzip
import io
import itertools
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slidegate import ConfigurationError
from slidegate.logs import AccessLogs, AccessRecord, Skip, reader

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "examples" / "demo" / "sample.log"
S_US = 1_000_000
START_US = 1_772_532_000 * S_US


def line(second: int, path: str = "/", client: str = "192.0.2.7") -> str:
    """Write a line `second` seconds after ten o'clock; up to thirteen hours."""
    hours, rest = divmod(10 * 3_600 + second, 3_600)
    time = f"{hours:02}:{rest // 60:02}:{rest % 60:02}"
    return f'{client} - - [03/Mar/2026:{time} +0000] "GET {path} HTTP/1.1" 200 1 "-" "curl/8"\n'


def paths(records: Iterator[AccessRecord] | AccessLogs) -> list[str]:
    return [found.path for found in records]


@settings(deadline=None)
@given(seconds=st.lists(st.integers(0, 50), max_size=80), hold=st.integers(1, 30), files=st.integers(1, 3))
def test_nothing_is_lost_and_what_is_late_by_less_than_the_hold_comes_in_order(
    seconds: list[int], hold: int, files: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    at = tmp_path_factory.mktemp("order")
    for part in range(files):
        (at / f"{part}.log").write_text("".join(line(second, f"/{part}") for second in seconds[part::files]))
    with patch.multiple(reader, HOLD=hold * files, MIN_HOLD=1):
        logs = AccessLogs(sorted(at.iterdir()))
    found = [(record.time_us - START_US) // S_US for record in logs]
    assert sorted(found) == sorted(seconds)
    assert (logs.counts.records, logs.counts.late) == (len(seconds), sum(map(int.__gt__, accumulated(found), found)))
    if all(moved(seconds[part::files]) <= hold // 2 for part in range(files)):
        assert found == sorted(seconds)


def accumulated(seconds: list[int]) -> list[int]:
    """Return the running maximum of the seconds."""
    return list(itertools.accumulate(seconds, max))


def moved(seconds: list[int]) -> int:
    """Return the largest distance of a second from its position in sorted order."""
    order = sorted(range(len(seconds)), key=lambda place: seconds[place])
    return max((abs(place - before) for place, before in enumerate(order)), default=0)


SOME_LINES = st.lists(
    st.one_of(
        st.binary(max_size=60),
        st.sampled_from([
            line(0).encode(), b"\xef\xbb\xbf" + line(1).encode(), b'{"a":', b"\0" * 9, b"\r",
            b"a" * 70_000, b"\n", b" ", b"\xff\xfe", line(2).encode()[:40],
        ]),
    ),
    max_size=12,
)  # fmt: skip


@settings(deadline=None)
@given(lines=SOME_LINES, joint=st.sampled_from([b"\n", b"\r\n", b""]))
def test_records_and_skipped_lines_are_all_lines(
    lines: list[bytes], joint: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = joint.join(lines)
    path = tmp_path_factory.mktemp("some") / "some.log"
    path.write_bytes(content)
    if content[:6].startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"PK\x03\x04", b"\xfd7zXZ")):
        return
    counts = (logs := AccessLogs([path])).counts
    found = list(logs)
    counts = logs.counts
    expected = content.count(b"\n") + (not content.endswith(b"\n") and content != b"")
    assert counts.lines == expected == counts.records + counts.skipped.total()
    assert len(found) == counts.records
    assert len(counts.examples) == min(3, counts.broken)
    for example in counts.examples:
        assert len(example.text) <= 160
        assert example.text.isprintable()
        assert 1 <= example.number <= expected


def test_a_broken_line_is_shown_without_what_a_terminal_would_obey(tmp_path: Path) -> None:
    (tmp_path / "odd.log").write_bytes(b"\x1b]0;owned\x07\xe2\x80\xae\n" + b"x" * 10_000 + b"\n" * 3 + b"1\n2\n3\n")
    logs = AccessLogs([tmp_path / "odd.log"])
    assert list(logs) == []
    texts = [example.text for example in logs.counts.examples]
    assert texts == ["\\x1b]0;owned\\x07\\u202e", "x" * 159 + "…", "1"]
    assert [example.number for example in logs.counts.examples] == [1, 2, 5]


def test_standard_input_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BufferedReader(io.BytesIO((line(1, "/one") + line(0, "/zero")).encode()))  # type: ignore[arg-type]
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=raw))
    logs = AccessLogs(["-"])
    assert logs.size_bytes is None
    assert paths(logs) == ["/zero", "/one"]
    assert paths(logs) == []
    monkeypatch.setattr("sys.stdin", None)  # as in a process without standard input
    with pytest.raises(ConfigurationError, match="standard input is closed"):
        paths(logs)


def test_how_far_a_reading_is_can_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "HOLD", 2)
    monkeypatch.setattr(reader, "MIN_HOLD", 1)
    (tmp_path / "a.log").write_text(line(0) * 10_000)
    (tmp_path / "b.log.gz").write_bytes(gzip.compress((line(1) * 10_000).encode()))
    logs = AccessLogs([tmp_path / "a.log", tmp_path / "b.log.gz"])
    assert logs.size_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert logs.taken_bytes == 0
    seen = [logs.taken_bytes for _ in logs]
    assert seen == sorted(seen)
    assert 0 < seen[0] < seen[-1] <= logs.size_bytes
    assert logs.taken_bytes == logs.size_bytes


@pytest.mark.parametrize("parts", [1, 3])
def test_packed_files_read_like_plain_text_whatever_they_are_called(tmp_path: Path, parts: int) -> None:
    lines = SAMPLE.read_bytes().splitlines(keepends=True)
    texts = [b"".join(lines[place::parts]) for place in range(parts)]
    (tmp_path / "packed.log").write_bytes(b"".join(map(gzip.compress, texts)))
    (tmp_path / "plain.log").write_bytes(b"".join(texts))
    one, two = AccessLogs([tmp_path / "packed.log"]), AccessLogs([tmp_path / "plain.log"])
    assert list(one) == list(two)
    assert one.counts.skipped == two.counts.skipped


@pytest.mark.parametrize("damage", ["cut", "flipped", "tail"])
def test_damaged_data_is_read_up_to_the_damage(tmp_path: Path, damage: str, rng: random.Random) -> None:
    text = "".join(line(second, f"/{rng.random()}") for second in range(10_000)).encode()
    data = b"".join(gzip.compress(text[start : start + 100_000]) for start in range(0, len(text), 100_000))
    half = len(data) // 2
    flipped = data[:half] + bytes(byte ^ 0xFF for byte in data[half : half + 64]) + data[half + 64 :]
    (tmp_path / "some.log").write_bytes({"cut": data[:half], "flipped": flipped, "tail": data + b"tail" * 9}[damage])
    logs = AccessLogs([tmp_path / "some.log"])
    assert sum(1 for _ in logs) == logs.counts.records > 1_000
    assert logs.counts.skipped[Skip.GZIP] == 1
    assert logs.counts.lines == logs.counts.records + logs.counts.skipped.total()


def test_a_bomb_of_one_line_stays_small(tmp_path: Path) -> None:
    with open(tmp_path / "bomb.log", "wb") as file:
        for _ in range(16):  # a gzip file may have several members
            file.write(gzip.compress(b"a" * 4_194_304))
        file.write(gzip.compress(f"\n{line(0)}".encode()))
    logs = AccessLogs([tmp_path / "bomb.log"])
    tracemalloc.start()
    try:
        assert paths(logs) == ["/"]
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert logs.counts.skipped == {Skip.TOO_LONG: 1}
    assert peak_bytes < 20_000_000


@pytest.mark.parametrize(
    ("magic", "packer"),
    [(b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh9", "bzip2"), (b"\xfd7zXZ\0", "xz"), (b"PK\x03\x04", "zip")],
)
def test_a_file_that_is_packed_otherwise_is_named(tmp_path: Path, magic: bytes, packer: str) -> None:
    (tmp_path / "some.log").write_bytes(magic + b"\0" * 99)
    message = f"some.log': it is compressed with {packer}; expected plain text or gzip"
    with pytest.raises(ConfigurationError, match=message):
        list(AccessLogs([tmp_path / "some.log"]))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "expected at least one file"),
        ("access.log", "expected a list of files"),
        (["-", "-"], "expected standard input once"),
    ],
)
def test_arguments_that_cannot_work_are_refused(files: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        AccessLogs(files)
