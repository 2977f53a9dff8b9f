"""The compiled wheel beside the source: one hit in memory, one request, and requests a second behind a server.

Processes of the two builds take turns; each measures itself against the peer or the bare application, round by round,
as the benchmarks `limiter` and `middleware` do. Behind a server all of them stand at once, as in `server`.
`python3 dev.py bench compiled` builds the wheel first.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import zipfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from . import middleware, server
from .limiter import candidate, ours, theirs
from .measure import COLUMNS, rounds, row_of
from .report.tables import Cell, Table
from .serving.apps import APPS

PACKAGES = ("limits", "starlette", "fastapi", "asgi-ratelimit", "fastapi-limiter", "uvicorn", "uvloop", "httptools")
ROOT = Path(__file__).resolve().parents[1]
PEER = "limits, moving window"
LIMITS = {"counters (resolution 64)": "100/hour", "timestamps (resolution 100)": "100/hour @100"}
HITS = {"admitted": False, "refused": True}
REQUESTS = (
    "bare Starlette",
    "slidegate",
    "slidegate, statistics=False",
    "asgi-ratelimit",
    "bare FastAPI",
    "slidegate around FastAPI",
    "slidegate around FastAPI, statistics=False",
    "slidegate at the endpoint of FastAPI",
    "fastapi-limiter at the endpoint",
)
"""The candidates of `middleware` that are measured here."""

BUILDS = ("compiled", "source")
Times = Mapping[str, list[float]]
"""Candidate -> microseconds, by rounds."""
Turns = Sequence[tuple[str, Times]]
"""The build of each process, and what it measured."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--turns", type=int, default=6, help="processes of each build")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in each process")


def measured(path: str, count: int) -> dict[str, Mapping[str, Times]]:
    """Return what a process that finds slidegate at `path` measured: "hits" and "requests", by outcome."""
    command = [sys.executable, "-m", "benchmarks.compiled", str(count)]
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE)
    if ended.returncode:
        raise SystemExit("a measuring process failed; the lines above say why")
    found = json.loads(ended.stdout)
    if found.pop("compiled") is not (path != source()):
        raise SystemExit(f"{path} is not the build that it should be")
    return dict(found)


def measure_here(count: int) -> dict[str, object]:
    """Measure the build that this process has imported."""
    import slidegate

    hits = {}
    for outcome, refused in HITS.items():
        candidates = {name: candidate(partial(ours, limit), refused) for name, limit in LIMITS.items()}
        hits[outcome] = asyncio.run(rounds({**candidates, PEER: candidate(theirs, refused)}, count))
    requests = {}
    for outcome, (amount, status) in middleware.OUTCOMES.items():
        apps = middleware.applications(amount, status)
        requests[outcome] = asyncio.run(middleware.measured({name: apps[name] for name in REQUESTS}, count))
    return {"compiled": slidegate.core.compiled, "hits": hits, "requests": requests}


def source() -> str:
    """Return where a process finds the source, and the benchmarks."""
    return f"{ROOT / 'src'}{os.pathsep}{ROOT}"


def tables(options: Namespace) -> Iterator[Table]:
    """Measure both builds in turn."""
    wheels = list((ROOT / ".cache" / "compiled").glob("*.whl"))
    if len(wheels) != 1:
        raise SystemExit("there is no compiled wheel: python3 dev.py bench compiled")
    with TemporaryDirectory() as unpacked:
        zipfile.ZipFile(wheels[0]).extractall(unpacked)
        builds = dict(zip(BUILDS, (f"{unpacked}{os.pathsep}{ROOT}", source()), strict=True))
        turns = [
            (build, measured(path, options.rounds)) for _ in range(options.turns) for build, path in builds.items()
        ]
        for outcome in HITS:
            yield of_hits(outcome, [(build, taken["hits"][outcome]) for build, taken in turns])
        for outcome in middleware.OUTCOMES:
            yield of_requests(outcome, [(build, taken["requests"][outcome]) for build, taken in turns])
        yield behind_a_server(builds)


def pairs_of(builds: Iterable[str], name: str, base: str, turns: Turns) -> list[tuple[float, float]]:
    """Return (own, base) of all rounds in the processes of some builds."""
    return [pair for build, taken in turns if build in builds for pair in zip(taken[name], taken[base], strict=True)]


def of_hits(outcome: str, turns: Turns) -> Table:
    """Return the table of one hit."""
    rows: list[list[Cell]] = []
    for name in LIMITS:
        for build in BUILDS:
            pairs = pairs_of([build], name, PEER, turns)
            times = median(theirs_us / own_us for own_us, theirs_us in pairs)
            rows.append([f"{name}, {build}", median(own_us for own_us, _ in pairs), times])
    peers = [took_us for _, taken in turns for took_us in taken[PEER]]
    columns = {"what": "", "median us": ".2f", "times as fast as the peer": ".2f"}
    return Table(f"One hit, {outcome}", columns, [*rows, [PEER, median(peers), None]])


def of_requests(outcome: str, turns: Turns) -> Table:
    """Return the table of one request; peers and bare applications are the same in the processes of both builds."""
    rows: list[list[Cell]] = []
    for name in REQUESTS:
        base = middleware.baseline(name)
        if base is None:
            rows.append([name, median(took_us for _, taken in turns for took_us in taken[name]), None, None, None])
        elif name.startswith("slidegate"):
            rows += [row_of(f"{name}, {build}", pairs_of([build], name, base, turns), base) for build in BUILDS]
        else:
            rows.append(row_of(name, pairs_of(BUILDS, name, base, turns), base))
    return Table(f"One request, {outcome}", COLUMNS, rows)


def behind_a_server(builds: Mapping[str, str]) -> Table:
    """Return the table of requests a second behind uvicorn."""
    candidates: dict[str, tuple[str, str]] = {}
    for name in APPS:
        if name.startswith("slidegate"):
            candidates.update({f"{name}, {build}": (name, path) for build, path in builds.items()})
        elif not name.startswith("slowapi"):
            candidates[name] = name, builds["source"]
    return server.compared("Behind uvicorn", candidates, server.ROUNDS, seconds=1)


if __name__ == "__main__":
    print(json.dumps(measure_here(int(sys.argv[1]))))
