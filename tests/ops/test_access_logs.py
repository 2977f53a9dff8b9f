"""Several files in the order of time: what is read, what is counted, on one core and on several."""

from __future__ import annotations

import gzip
import io
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from slidegate import ConfigurationError, SlidegateError
from slidegate.ops.access_logs import AccessLog, AccessLogs, AccessRecord, Skip, merging
from slidegate.ops.access_logs import cores as on_cores
from slidegate.ops.access_logs.line_parser import LineParser
from slidegate.ops.access_logs.merging import Part, in_order, merged
from slidegate.ops.access_logs.parsed_lines import packed, parse_block, unpacked
from slidegate.ops.access_logs.raw_lines import BLOCK_BYTES, Block, LineCutter

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


def test_an_hour_of_lines_in_any_order_is_put_in_order(tmp_path: Path) -> None:
    lines = [line(second % 3_600, str(second)) for second in range(10_000)]
    random.Random(SEED).shuffle(lines)
    (tmp_path / "shuffled.log").write_text("".join(lines))
    times_us = [found.time_us for found in AccessLogs([tmp_path / "shuffled.log"])]
    assert times_us == sorted(times_us)
    assert len(times_us) == 10_000


def test_clocks_that_go_back_and_zones_that_change_put_no_line_out_of_order(tmp_path: Path) -> None:
    stamps = ["27/Oct/2024:02:30:00 +0200", "27/Oct/2024:02:59:59 +0200", "27/Oct/2024:02:00:00 +0100"]
    stamps += ["31/Dec/2024:23:59:59 +0100", "01/Jan/2025:00:00:00 +0100", "01/Jan/2025:13:00:01 +1400"]
    text = "".join(line(0, str(place)).replace("03/Mar/2026:10:00:00 +0000", at) for place, at in enumerate(stamps))
    (tmp_path / "clocks.log").write_text(text)
    assert paths(AccessLogs([tmp_path / "clocks.log"])) == ["0", "1", "2", "3", "4", "5"]


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


@settings(max_examples=200, deadline=None)
@given(lines=SOME_LINES, joint=st.sampled_from([b"\n", b"\r\n", b""]))
def test_records_and_skipped_lines_are_all_lines(
    lines: list[bytes], joint: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = joint.join(lines)
    path = tmp_path_factory.mktemp("some") / "some.log"
    path.write_bytes(content)
    if content[:6].startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"PK\x03\x04")):
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


def test_a_header_line_holds_over_blocks(tmp_path: Path) -> None:
    text = "#Fields: date time c-ip cs-method cs-uri-stem sc-status\n"
    text += "2026-03-03 10:00:00 192.0.2.7 GET /a 200\n" * 20_000
    assert len(text) > 2 * BLOCK_BYTES
    (tmp_path / "w3c.log").write_text(text)
    logs = AccessLogs([tmp_path / "w3c.log"])
    assert sum(1 for _ in logs) == 20_000
    assert logs.counts.skipped == {Skip.HEADER: 1}


# -- files -------------------------------------------------------------------------------------------------------------


def test_standard_input_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BufferedReader(io.BytesIO((line(1, "/one") + line(0, "/zero")).encode()))  # type: ignore[arg-type]
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=raw))
    logs = AccessLogs(["-"])
    assert logs.size_bytes is None
    assert paths(logs) == ["/zero", "/one"]
    assert paths(logs) == []


def test_a_log_may_come_through_a_pipe() -> None:
    script = "from slidegate.ops.access_logs import AccessLogs; print(sum(1 for _ in AccessLogs(['-'])))"
    done = subprocess.run(
        [sys.executable, "-c", script], input=gzip.compress(SAMPLE.read_bytes()), capture_output=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, check=True,
    )  # fmt: skip
    assert int(done.stdout) == AccessLogCount.of(SAMPLE)


class AccessLogCount:
    @staticmethod
    def of(path: Path) -> int:
        return sum(1 for _ in AccessLog(path))


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


@pytest.mark.parametrize("frames", [1, 3])
def test_zstd_reads_like_plain_text(tmp_path: Path, frames: int) -> None:
    lines = SAMPLE.read_bytes().splitlines(keepends=True)
    parts = [b"".join(lines[place::frames]) for place in range(frames)]
    (tmp_path / "packed.log").write_bytes(b"".join(zstandard.compress(part) for part in parts))
    (tmp_path / "plain.log").write_bytes(b"".join(parts))
    one, two = AccessLogs([tmp_path / "packed.log"]), AccessLogs([tmp_path / "plain.log"])
    assert list(one) == list(two)
    assert one.counts.skipped == two.counts.skipped


@pytest.mark.parametrize("damage", ["cut", "flipped", "tail"])
def test_damaged_zstd_data_is_read_up_to_the_damage(tmp_path: Path, damage: str) -> None:
    draw = random.Random(SEED)
    text = "".join(line(second, f"/{draw.random()}") for second in range(10_000)).encode()
    data = b"".join(zstandard.compress(text[start : start + 100_000]) for start in range(0, len(text), 100_000))
    half = len(data) // 2
    flipped = data[:half] + bytes(byte ^ 0xFF for byte in data[half : half + 64]) + data[half + 64 :]
    (tmp_path / "a.zst").write_bytes({"cut": data[:half], "flipped": flipped, "tail": data + b"tail" * 9}[damage])
    logs = AccessLogs([tmp_path / "a.zst"])
    assert sum(1 for _ in logs) == logs.counts.records > 1_000
    assert logs.counts.skipped[Skip.ZSTD] == 1
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
        (b"", {}, "the log is empty"),
        (b"\n\n", {}, "the log is empty"),
        (b"hello\nworld\n", {}, "none of 2 lines is a record of an access log; line 1 looks like no known format"),
        (b"\n{}\n", {}, "line 2 looks like JSON lines, of no known server; say which fields hold time"),
        (b'{"ts": 1, "ip": "x"}', {}, "JSON lines with the fields ts, ip, of no known server"),
        (b'{"ts": 1, "ip": "x"', {}, "looks like JSON lines, but has broken JSON"),
        (line(0).encode().replace(b"+0000", b""), {}, "looks like the Combined format, but has a time that cannot"),
        (line(0).encode().replace(b" - - ", b" "), {}, "the Combined format, but is not quite that"),
        (line(0).encode(), {"format": "%h %t %r %s %b x"}, "and does not fit the format that was given"),
        (b"x\n", {"format": "%h %t %r %s %b x"}, "line 1 does not fit the format that was given"),
        (b"2026-03-03 10:00:00 192.0.2.7", {}, "the W3C format, such as CloudFront's, whose header line"),
        (b"2026-03-03\t10:00:00\tFRA\t1\t192.0.2.7", {}, "CloudFront's, whose header line, #Fields:, is missing"),
        (b"h2 2026-03-03T10:00:00.1Z x", {}, "looks like the log of a load balancer"),
        (b"2026/03/03 10:00:00 [error] 1#1: *1 open() failed", {}, "the error log of nginx, which holds no requests"),
        (b"[Tue Mar 03 10:00:00 2026] [error] x", {}, "the error log of Apache"),
        (b"\x7fELF\0\0\0", {}, "line 1 is binary data"),
        (b"a" * 70_000, {}, "line 1 is longer than any line"),
        (gzip.compress(line(0).encode(), mtime=0)[:40], {}, "the log is damaged gzip data"),
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


def test_a_block_comes_back_from_another_process_as_it_was() -> None:
    text = SAMPLE.read_bytes() + b"\n#Version: 1\nodd\n" + line(0).encode()
    parsed = parse_block(LineParser(), Block(text, ()))
    assert parsed.skipped
    assert unpacked(packed(parsed)) == parsed


def large(path: Path) -> Path:
    """Write a log of several blocks with broken lines here and there."""
    text = "".join(line(second // 9, f"/{second}") if second % 997 else "odd\n" for second in range(30_000))
    assert len(text) > 5 * BLOCK_BYTES
    path.write_text(text)
    return path


def test_several_processes_give_the_records_of_one_in_the_same_order(tmp_path: Path) -> None:
    large(tmp_path / "a.log")
    (tmp_path / "b.log.gz").write_bytes(gzip.compress((tmp_path / "a.log").read_bytes().replace(b"GET /", b"GET /b")))
    files = [tmp_path / "a.log", tmp_path / "b.log.gz"]
    one, two = AccessLogs(files), AccessLogs(files, processes=2)
    assert list(two) == list(one)
    assert two.counts == one.counts
    assert two.counts.broken == 62


def test_a_small_log_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_cores, "_Worker", None)
    assert sum(1 for _ in AccessLogs([ROOT / "tests/ops/samples/combined.log"], processes=None)) == 40


def test_whoever_stops_early_ends_the_processes(tmp_path: Path) -> None:
    before = set(multiprocessing.active_children())
    logs = AccessLogs([large(tmp_path / "a.log")], processes=2, hold=1)
    reading = iter(logs)
    for _ in range(15_000):
        next(reading)
    assert len(set(multiprocessing.active_children()) - before) == 2
    reading.close()  # type: ignore[attr-defined]
    assert set(multiprocessing.active_children()) <= before


def test_a_process_that_is_killed_is_an_error_and_no_hang(tmp_path: Path) -> None:
    before = set(multiprocessing.active_children())
    reading = iter(AccessLogs([large(tmp_path / "a.log")], processes=1 + 1, hold=1))
    for _ in range(6_000):
        next(reading)
    for child in set(multiprocessing.active_children()) - before:
        child.kill()
    with pytest.raises(SlidegateError, match="a process that parsed the log has ended"):
        for _ in reading:
            pass


SCRIPT = """
import sys
from slidegate.ops.access_logs import AccessLogs

if __name__ == "__main__":
    try:
        for number, _ in enumerate(AccessLogs([sys.argv[1]] * 20, processes=2, hold=1)):
            if number == 20_000:
                print("reading", flush=True)
    except KeyboardInterrupt:
        print("stopped", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_control_c_ends_all_of_it_quietly(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    running = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(large(tmp_path / "a.log"))],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "reading\n"
        os.killpg(running.pid, signal.SIGINT)  # as a terminal sends it: to every process of the group
        out, err = running.communicate(timeout=60)
    finally:
        running.kill()
        running.communicate()
    assert (out, err, running.returncode) == ("stopped\n", "", 0)


def test_the_names_of_version_0_1_are_the_same_things() -> None:
    from slidegate.ops import access_logs, accesslog

    assert accesslog.__all__
    assert all(getattr(accesslog, name) is getattr(access_logs, name) for name in accesslog.__all__)


PEAK = """
import re, sys
from slidegate.ops.access_logs import AccessLogs
print(sum(1 for _ in AccessLogs([sys.argv[1]])))
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) // 1024)
"""


@pytest.mark.deep
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the most memory of one program")
def test_a_million_lines_take_no_more_memory_than_a_hundred_mebibytes(tmp_path: Path) -> None:
    lines = SAMPLE.read_text("ascii").splitlines(keepends=True)
    with (tmp_path / "large.log").open("w") as file:
        file.writelines(itertools.islice(itertools.cycle(lines), 1_000_000))
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path / "large.log")], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    records, peak_mib = map(int, done.stdout.split())
    assert records == sum(1 for _ in AccessLog(tmp_path / "large.log")) > 999_000
    assert peak_mib <= 100


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
