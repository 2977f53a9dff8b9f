"""Several files in the order of time: what is read, what is counted, on one core and on several."""

from __future__ import annotations

import gzip
import io
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from slidegate import ConfigurationError
from slidegate.logs import AccessLogs, AccessRecord, Skip, merging
from slidegate.logs.merging import Part, in_order, merged
from slidegate.logs.raw_lines import BLOCK_BYTES, LineCutter

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "examples" / "demo" / "sample.log"
SEED = 20_261_120
S_US = 1_000_000
START_US = 1_772_532_000 * S_US


def record(second: float, path: str = "/") -> AccessRecord:
    return AccessRecord(START_US + round(second * S_US), "192.0.2.7", "GET", path, 200, None)


def line(second: int, path: str = "/", client: str = "192.0.2.7") -> str:
    """Write a line `second` seconds after ten o'clock; up to thirteen hours."""
    hours, rest = divmod(10 * 3_600 + second, 3_600)
    time = f"{hours:02}:{rest // 60:02}:{rest % 60:02}"
    return f'{client} - - [03/Mar/2026:{time} +0000] "GET {path} HTTP/1.1" 200 1 "-" "curl/8"\n'


def paths(records: Iterator[AccessRecord] | AccessLogs) -> list[str]:
    return [found.path for found in records]


# -- order -------------------------------------------------------------------------------------------------------------


@given(seconds=st.lists(st.integers(0, 50), max_size=80), hold=st.integers(1, 30))
def test_nothing_is_lost_and_what_is_late_by_less_than_the_hold_comes_in_order(seconds: list[int], hold: int) -> None:
    records = [record(second, str(place)) for place, second in enumerate(seconds)]
    found = list(in_order(records, hold))
    assert sorted(found) == sorted(records)
    expected = sorted(records, key=lambda one: one.time_us)
    places = {one: place for place, one in enumerate(records)}
    if all(abs(places[one] - place) <= hold // 2 for place, one in enumerate(expected)):
        assert found == expected


@given(
    parts=st.lists(st.lists(st.integers(0, 30_000), max_size=20), max_size=6),
    unknown=st.sets(st.integers(0, 5)),
)
def test_sorted_parts_are_merged_into_order(parts: list[list[int]], unknown: set[int]) -> None:
    sequences = [
        [record(second, f"{part}-{place}") for place, second in enumerate(sorted(seconds))]
        for part, seconds in enumerate(parts)
    ]
    made = [
        Part(None if place in unknown or not sequence else sequence[0].time_us, sequence.__iter__)
        for place, sequence in enumerate(sequences)
    ]
    found = list(merged(made))
    assert found == sorted((one for sequence in sequences for one in sequence), key=lambda one: one.time_us)


def test_a_file_is_not_opened_before_its_time_comes() -> None:
    opened: list[int] = []

    def part(place: int) -> Part:
        def records() -> Iterator[AccessRecord]:
            opened.append(place)
            yield from (record(86_400 * place + second) for second in (0, 40_000, 80_000))

        return Part(START_US + 86_400 * place * S_US, records)

    reading = merged([part(place) for place in (3, 1, 0, 2)])
    seen = []
    for found in reading:
        seen.append(found.time_us)
        assert len(opened) <= 1 + (found.time_us - START_US + merging.AHEAD_US) // (86_400 * S_US) + 1
    assert opened == [0, 1, 2, 3]
    assert seen == sorted(seen)
    assert len(seen) == 12


def test_files_are_merged_by_time_and_each_in_its_own_order(tmp_path: Path) -> None:
    (tmp_path / "b.log").write_text(line(1, "/b1") + line(5, "/b5") + line(5, "/b5b"))
    (tmp_path / "a.log").write_text(line(4, "/a4") + line(0, "/a0") + "odd\n" + line(5, "/a5"))
    with gzip.open(tmp_path / "c.log.gz", "wt") as file:
        file.write(line(3, "/c3") + line(9, "/c9"))
    logs = AccessLogs([tmp_path / name for name in ("a.log", "b.log", "c.log.gz")])
    assert paths(logs) == ["/a0", "/b1", "/c3", "/a4", "/a5", "/b5", "/b5b", "/c9"]
    assert (logs.counts.lines, logs.counts.records, logs.counts.skipped) == (9, 8, {Skip.FORMAT: 1})
    assert logs.counts.late == 0
    (broken,) = logs.counts.examples
    assert (broken.file, broken.number, broken.text) == (str(tmp_path / "a.log"), 3, "odd")


def test_what_comes_too_late_is_counted_and_handed_on_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "late.log").write_text("".join(line(second) for second in range(100, 200)) + line(0, "/late"))
    logs = AccessLogs([tmp_path / "late.log"], hold=10)
    assert 80 <= paths(logs).index("/late") <= 90
    assert (logs.counts.late, logs.counts.records) == (1, 101)
    logs = AccessLogs([tmp_path / "late.log"])
    assert paths(logs)[0] == "/late"
    assert logs.counts.late == 0


# -- counts ------------------------------------------------------------------------------------------------------------

SOME_LINES = st.lists(
    st.one_of(
        st.binary(max_size=60),
        st.sampled_from([
            line(0).encode(), b"\xef\xbb\xbf" + line(1).encode(), b"#Fields: date c-ip\n", b'{"a":', b"\0" * 9, b"\r",
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
    if content[:6].startswith(
        (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"PK\x03\x04", b"\x04\x22\x4d\x18", b"\xfd7zXZ", b"7z")
    ):
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


@given(content=st.binary(max_size=400), cuts=st.lists(st.integers(0, 400), max_size=8))
def test_lines_come_whole_however_they_are_cut(content: bytes, cuts: list[int]) -> None:
    cutter, found, start = LineCutter(), b"", 0
    for end in [*sorted(cuts), len(content)]:
        whole = cutter.whole(content[start:end]) if end > start else b""
        assert whole == b"" or whole.endswith(b"\n")
        found += whole
        start = max(start, end)
    assert found + cutter.rest() == content


def test_of_a_line_without_an_end_no_more_is_kept_than_its_reader_needs() -> None:
    cutter = LineCutter()
    for _ in range(50):
        assert cutter.whole(b"a" * 10_000) == b""
    assert cutter.whole(b"a\nb") == b"a" * 65_537 + b"\n"
    assert cutter.rest() == b"b"


def test_a_broken_line_is_shown_without_what_a_terminal_would_obey(tmp_path: Path) -> None:
    (tmp_path / "odd.log").write_bytes(b"\x1b]0;owned\x07\xe2\x80\xae\n" + b"x" * 10_000 + b"\n" * 3 + b"1\n2\n3\n")
    logs = AccessLogs([tmp_path / "odd.log"])
    assert list(logs) == []
    texts = [example.text for example in logs.counts.examples]
    assert texts == ["\\x1b]0;owned\\x07\\u202e", "x" * 159 + "…", "1"]
    assert [example.number for example in logs.counts.examples] == [1, 2, 5]


# -- files -------------------------------------------------------------------------------------------------------------


def test_standard_input_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BufferedReader(io.BytesIO((line(1, "/one") + line(0, "/zero")).encode()))  # type: ignore[arg-type]
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=raw))
    logs = AccessLogs(["-"])
    assert logs.size_bytes is None
    assert paths(logs) == ["/zero", "/one"]
    assert paths(logs) == []


def test_how_far_a_reading_is_can_be_seen(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(line(0) * 10_000)
    (tmp_path / "b.log.gz").write_bytes(gzip.compress((line(1) * 10_000).encode()))
    logs = AccessLogs([tmp_path / "a.log", tmp_path / "b.log.gz"], hold=1)
    assert logs.size_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert logs.taken_bytes == 0
    seen = [logs.taken_bytes for _ in logs]
    assert seen == sorted(seen)
    assert 0 < seen[0] < seen[-1] <= logs.size_bytes
    assert logs.taken_bytes == logs.size_bytes


PACKERS: dict[str, tuple[Callable[[bytes], bytes], Skip]] = {
    "gzip": (gzip.compress, Skip.GZIP),
    "zstd": (zstandard.compress, Skip.ZSTD),
}


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("parts", [1, 3])
def test_packed_files_read_like_plain_text_whatever_they_are_called(tmp_path: Path, packer: str, parts: int) -> None:
    lines = SAMPLE.read_bytes().splitlines(keepends=True)
    texts = [b"".join(lines[place::parts]) for place in range(parts)]
    (tmp_path / "packed.log").write_bytes(b"".join(PACKERS[packer][0](text) for text in texts))
    (tmp_path / "plain.log").write_bytes(b"".join(texts))
    one, two = AccessLogs([tmp_path / "packed.log"]), AccessLogs([tmp_path / "plain.log"])
    assert list(one) == list(two)
    assert one.counts.skipped == two.counts.skipped


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("damage", ["cut", "flipped", "tail"])
def test_damaged_data_is_read_up_to_the_damage(tmp_path: Path, packer: str, damage: str) -> None:
    pack, reason = PACKERS[packer]
    draw = random.Random(SEED)
    text = "".join(line(second, f"/{draw.random()}") for second in range(10_000)).encode()
    data = b"".join(pack(text[start : start + 100_000]) for start in range(0, len(text), 100_000))
    half = len(data) // 2
    flipped = data[:half] + bytes(byte ^ 0xFF for byte in data[half : half + 64]) + data[half + 64 :]
    (tmp_path / "some.log").write_bytes({"cut": data[:half], "flipped": flipped, "tail": data + b"tail" * 9}[damage])
    logs = AccessLogs([tmp_path / "some.log"])
    assert sum(1 for _ in logs) == logs.counts.records > 1_000
    assert logs.counts.skipped[reason] == 1
    assert logs.counts.lines == logs.counts.records + logs.counts.skipped.total()


def test_a_zstd_bomb_stays_small(tmp_path: Path) -> None:
    packer = zstandard.ZstdCompressor(level=19).compressobj()
    with open(tmp_path / "bomb.zst", "wb") as file:
        for _ in range(512):
            file.write(packer.compress(b"\n" * 1_048_576))
        file.write(packer.flush())
    logs = AccessLogs([tmp_path / "bomb.zst"])
    tracemalloc.start()
    try:
        assert list(logs) == []
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert logs.counts.skipped[Skip.BOMB] == 1
    assert peak_bytes < 400_000_000


def test_without_a_program_for_zstd_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.log").write_bytes(zstandard.compress(b"x"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    with pytest.raises(ConfigurationError, match=r"a\.log.*slidegate\[cli\]"):
        list(AccessLogs([tmp_path / "a.log"]))


def packed_by(magic: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(magic + b"\0" * 99) and None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "No such file"),
        (Path.mkdir, "it is a directory; expected an access log, such as"),
        (packed_by(b"BZh9"), "packed with bzip2; expected plain text, gzip or zstd"),
        (packed_by(b"\xfd7zXZ\0"), "packed with xz"),
        (packed_by(b"PK\x03\x04"), "packed with zip"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, make: Callable[[Path], None], words: str) -> None:
    make(tmp_path / "some.log")
    with pytest.raises(ConfigurationError) as refused:
        list(AccessLogs([tmp_path / "some.log"]))
    assert str(tmp_path / "some.log") in str(refused.value)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["a\0b", "\x1b[31m" + "x" * 5_000])
def test_no_name_of_a_file_reaches_a_terminal_as_it_is(name: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        AccessLogs([name])
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([],), "expected at least one file"),
        (("access.log",), "expected a list of files"),
        ((["-", "-"],), "expected standard input once"),
    ],
)
def test_files_that_cannot_be_meant_are_refused(arguments: tuple[object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        AccessLogs(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"hold": 0}, {"hold": True}, {"processes": 0}, {"processes": 1.5}])
def test_numbers_that_cannot_work_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="such as"):
        AccessLogs([SAMPLE], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (b"\n\n", {}, "the log is empty"),
        (b'{"ts": 1, "ip": "x"}', {}, "JSON lines with the fields ts, ip, of no known server"),
        (line(0).encode().replace(b" - - ", b" "), {}, "the Combined format, but is not quite that"),
        (b"x\n", {"format": "%h %t %r %s %b x"}, "line 1 does not fit the format that was given"),
        (b"2026/03/03 10:00:00 [error] 1#1: *1 open() failed", {}, "the error log of nginx, which holds no requests"),
    ],
    ids=str,
)
def test_of_a_log_without_records_the_nearest_format_is_named(
    tmp_path: Path, content: bytes, options: dict[str, str], words: str
) -> None:
    (tmp_path / "odd.log").write_bytes(content)
    logs = AccessLogs([tmp_path / "odd.log"], **options)  # type: ignore[arg-type]
    assert list(logs) == []
    assert words in logs.complaint()
    assert "odd.log" in logs.complaint()
    assert logs.complaint().isprintable()


# -- cores -------------------------------------------------------------------------------------------------------------


def test_several_processes_give_the_records_of_one_in_the_same_order(tmp_path: Path) -> None:
    text = "".join(line(second // 9, f"/{second}") if second % 997 else "odd\n" for second in range(30_000))
    assert len(text) > 5 * BLOCK_BYTES
    (tmp_path / "a.log").write_text(text)
    one, two = (AccessLogs([tmp_path / "a.log"], processes=number) for number in (1, 2))
    assert list(two) == list(one)
    assert two.counts == one.counts


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    peaks = []
    for count in (8_000, 24_000):
        path = tmp_path / f"{count}.log"
        path.write_text("".join(line(second % 40_000, f"/{second}") for second in range(count)))
        tracemalloc.start()
        try:
            assert sum(1 for _ in AccessLogs([path], hold=1_000)) == count
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0] < 20_000_000
