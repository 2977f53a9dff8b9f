"""Access logs: how many lines a second are read, and how much memory that takes."""

from __future__ import annotations

import gzip
import itertools
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from slidegate.logs import AccessLogs

from .report.tables import Cell, Table

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT / "examples" / "demo" / "sample.log"
SAMPLES = ROOT / "tests" / "logs" / "samples"
COUNT = 1_000_000
PEAK = r"""
import re, sys
from slidegate.logs import AccessLogs
for _ in AccessLogs([sys.argv[1]]): pass
# The maximum that getrusage tells begins with that of the parent.
print(int(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1]) / 1024)
"""


def written(path: Path, lines: list[str], count: int) -> Path:
    """Write so many lines, again and again those that are given; return the file."""
    with path.open("w") as file:
        file.writelines(f"{line}\n" for line in itertools.islice(itertools.cycle(lines), count))
    return path


def seconds(log: AccessLogs, rounds: int) -> float:
    """Return the median of the seconds that a reading takes, in which nothing is done with the records."""
    taken = []
    for _ in range(rounds):
        started_s = time.perf_counter()
        for _ in log:
            pass
        taken.append(time.perf_counter() - started_s)
    return median(taken)


def peak_mib(path: Path) -> float:
    """Return the most memory that a process of its own took to read a file."""
    return float(subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, check=True).stdout)


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=COUNT, help="lines in a log")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of which the median is shown")


def tables(options: Namespace) -> Iterator[Table]:
    """Read logs of several kinds."""
    rows: list[list[Cell]] = []
    with tempfile.TemporaryDirectory() as directory:
        combined = written(Path(directory, "combined.log"), SAMPLE.read_text("ascii").splitlines(), options.count)
        packed = Path(directory, "combined.log.gz")
        packed.write_bytes(gzip.compress(combined.read_bytes(), compresslevel=6))
        few = options.count // 5
        nginx, served = (
            written(Path(directory, name), (SAMPLES / name).read_text("ascii").splitlines(), few)
            for name in ("nginx.jsonl", "caddy.jsonl")
        )
        for name, path, count in (
            ("Combined", combined, options.count),
            ("Combined, gzip", packed, options.count),
            ("JSON of nginx", nginx, few),
            ("JSON of Caddy", served, few),
        ):
            took_s = seconds(AccessLogs([path]), options.rounds)
            rows.append([name, count, took_s, count / took_s])
        weight = Table(
            "Memory of the process", {"what": "", "MiB": ".0f"},
            [[f"{options.count:,} lines, Combined", peak_mib(combined)]],
        )  # fmt: skip
    yield Table("", {"what": "", "lines": ",.0f", "s": ".2f", "lines/s": ",.0f"}, rows)
    yield weight
