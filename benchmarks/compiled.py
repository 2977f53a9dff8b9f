"""One hit in memory by the compiled wheel, by the source, and by the exact moving window of `limits`.

Processes of the two builds take turns; each measures itself against the peer, round by round, as the benchmark
`limiter` does. `python3 dev.py bench compiled` builds the wheel first.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import zipfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from .limiter import candidate, ours, theirs
from .measure import rounds
from .report.tables import Cell, Table

PACKAGES = ("limits",)
ROOT = Path(__file__).resolve().parents[1]
PEER = "limits, moving window"
LIMITS = {"counters (resolution 64)": "100/hour", "timestamps (resolution 100)": "100/hour @100"}
OUTCOMES = {"admitted": False, "refused": True}


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--turns", type=int, default=6, help="processes of each build")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in each process")


def measured(path: Path, count: int) -> dict[str, dict[str, list[float]]]:
    """Return what a process that finds slidegate at `path` measured: outcome -> candidate -> microseconds."""
    paths = os.pathsep.join((str(path), str(ROOT)))
    command = [sys.executable, "-m", "benchmarks.compiled", str(count)]
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE)
    if ended.returncode:
        raise SystemExit("a measuring process failed; the lines above say why")
    found = json.loads(ended.stdout)
    if found.pop("compiled") is not (path != ROOT / "src"):
        raise SystemExit(f"{path} is not the build that it should be")
    return dict(found)


def measure_here(count: int) -> dict[str, object]:
    """Measure the build that this process has imported."""
    import slidegate

    found: dict[str, object] = {"compiled": slidegate.compiled}
    for outcome, refused in OUTCOMES.items():
        candidates = {name: candidate(ours(limit), refused) for name, limit in LIMITS.items()}
        found[outcome] = asyncio.run(rounds({**candidates, PEER: candidate(theirs, refused)}, count))
    return found


def tables(options: Namespace) -> Iterator[Table]:
    """Measure both builds in turn."""
    wheels = list((ROOT / ".cache" / "compiled").glob("*/*.whl"))
    if len(wheels) != 1:
        raise SystemExit("there is no compiled wheel: python3 dev.py bench compiled")
    with TemporaryDirectory() as unpacked:
        zipfile.ZipFile(wheels[0]).extractall(unpacked)
        builds = {"compiled": Path(unpacked), "source": ROOT / "src"}
        turns = [
            (build, measured(path, options.rounds)) for _ in range(options.turns) for build, path in builds.items()
        ]
    for outcome in OUTCOMES:
        rows: list[list[Cell]] = []
        for name in LIMITS:
            for build in builds:
                found = [taken[outcome] for made, taken in turns if made == build]
                pairs = [pair for taken in found for pair in zip(taken[name], taken[PEER], strict=True)]
                times = median(theirs_us / own_us for own_us, theirs_us in pairs)
                rows.append([f"{name}, {build}", median(own_us for own_us, _ in pairs), times])
        peers = [took_us for _, taken in turns for took_us in taken[outcome][PEER]]
        columns = {"what": "", "median us": ".2f", "times as fast as the peer": ".2f"}
        yield Table(f"One hit, {outcome}", columns, [*rows, [PEER, median(peers), None]])


if __name__ == "__main__":
    print(json.dumps(measure_here(int(sys.argv[1]))))
