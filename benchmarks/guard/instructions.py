"""Count the instructions of a request, and compare them with what is recorded.

Times of a busy machine say nothing about ten per cent; instructions do. Each path is divided by a reference loop that
ran in the same interpreter, and what is recorded is these ratios. They hold for one build of Python on one kind of
processor, so figures are recorded for each, and only alike is compared with alike.

The counter is valgrind's cachegrind without its simulation of caches. callgrind counts the same instructions, and takes
six times as long to do so.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import slidegate

from .paths import COUNT, REFERENCE

ROOT: Final = Path(__file__).resolve().parents[2]
RECORDED: Final = ROOT / "benchmarks" / "figures" / "instructions.json"
MOST_GROWTH: Final = 0.10
TOTAL: Final = re.compile(r"^summary: (\d+)$", re.MULTILINE)

Counts = dict[str, float]
"""The instructions of one request, by path; the reference loop is one of them."""


def interpreter() -> str:
    """Say what the figures depend on: the build of Python, the kind of processor, and whether slidegate is compiled."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    build = ", compiled slidegate" if slidegate.compiled else ""
    return f"{python}, {platform.python_compiler()}, {platform.machine()}{build}"


def count(names: Sequence[str] = ()) -> Counts:
    """Count the instructions of the named paths, or of all.

    Raises:
        RuntimeError: A path failed.
    """
    with tempfile.TemporaryDirectory() as place:
        command = [
            *("valgrind", "--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={place}/%p"),
            *(sys.executable, "-m", "benchmarks.guard.paths", *names),
        ]
        # The size of the environment moves the stack, so there is as little of it as possible.
        environment = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONHASHSEED": "0"}
        ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if ended.returncode:
            raise RuntimeError(f"counting instructions failed:\n{ended.stderr[-4_000:]}")
        totals: dict[tuple[str, int], int] = {}
        for line in ended.stdout.splitlines():
            name, times, pid = line.split("\t")
            found = TOTAL.search(Path(place, pid).read_text("utf-8"))
            if found is None:
                raise RuntimeError(f"valgrind counted nothing for {name!r}")
            totals[name, int(times)] = int(found[1])
    return {name: (totals[name, 2 * COUNT] - totals[name, COUNT]) / COUNT for name, times in totals if times == COUNT}


def ratios(counts: Counts) -> Counts:
    """Return the paths in units of the reference loop."""
    return {name: round(own / counts[REFERENCE], 3) for name, own in counts.items() if name != REFERENCE}


def record(target: Path, found: Counts) -> None:
    """Write what was counted; figures of other interpreters stay."""
    kept: dict[str, Any] = json.loads(target.read_text("utf-8")) if target.exists() else {}
    kept[interpreter()] = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "reference_instructions": round(found[REFERENCE]),
        "ratios": ratios(found),
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n", "utf-8")


def compare(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """Return a line for each path, and those of the paths that grew too much."""
    lines, failures = [], []
    for name in sorted({*before, *after}):
        if name not in before or name not in after:
            side = "not recorded, so not compared" if name in after else "recorded, but no longer a path"
            lines.append(f"{name}: {side}")
            continue
        growth = after[name] / before[name] - 1
        line = f"{name}: {before[name]:.2f} before, {after[name]:.2f} now ({growth:+.1%})"
        lines.append(line)
        if growth > MOST_GROWTH:
            failures.append(f"{line}, and at most {MOST_GROWTH:+.0%} is allowed")
    return lines, failures


def check(recorded: Path, names: Sequence[str] = ()) -> int:
    """Compare the paths with what is recorded; return 1 if one grew too much.

    Where nothing can be compared, a line says so; under continuous integration that is a failure.
    """
    kept: dict[str, Any] = json.loads(recorded.read_text("utf-8")) if recorded.exists() else {}
    reason = missing_tool()
    if not reason and interpreter() not in kept:
        others = "; ".join(sorted(kept)) or "none"
        reason = f"no figures of {interpreter()} are recorded (there are: {others}): python3 dev.py bench --record"
    if reason:
        print(f"not compared: {reason}")
        return int(os.environ.get("CI") == "true")
    after = ratios(count(names))
    before = kept[interpreter()]["ratios"]
    if names:
        before = {name: ratio for name, ratio in before.items() if name in after}
    lines, failures = compare(before, after)
    print(f"instructions of a request, in units of a reference loop; {interpreter()}")
    print(*(f"  {line}" for line in lines), sep="\n")
    print(*(f"FAILED: {line}" for line in failures), sep="\n", end="\n" if failures else "")
    return int(bool(failures))


def missing_tool() -> str:
    """Return what stands in the way of counting; nothing if nothing does."""
    return "" if shutil.which("valgrind") else "valgrind is not installed: sudo apt install valgrind"
