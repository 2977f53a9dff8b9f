"""Benchmarks run small; `bench real` measures what its rows say, and checks that its limiters count."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys

import pytest

from benchmarks import apps, real, traffic, versions, worker

ROOT = versions.ROOT
KNOWN = apps.candidates()
REAL = ["--processes", "1", "--rounds", "1", "--requests", "3", "--paths", "2560"]
SMALL = {"networks": ["--count", "50", "--rounds", "1"], "startup": ["--rounds", "1"]}
LONGER = {"lmdb": ["--rounds", "1", "--hits", "640"], "memory": ["--keys", "20000"]}


def run(name: str, *flags: str) -> subprocess.CompletedProcess[str]:
    # A process of its own: benchmarks fork, silence the log and change the garbage collector.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks", name, *flags], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert f"`python3 dev.py bench {name}" in ended.stdout
    return ended


@pytest.mark.parametrize(
    ("name", "flags"),
    [*SMALL.items(), *(pytest.param(name, flags, marks=pytest.mark.deep) for name, flags in LONGER.items())],
)
def test_a_small_run_of_a_benchmark_shows_a_table(name: str, flags: list[str]) -> None:
    assert re.search(r"^\| -", run(name, *flags).stdout, re.MULTILINE)


def on_counting_loop(work: object) -> object:
    with asyncio.Runner(loop_factory=traffic.CountingLoop) as runner:
        return runner.run(work)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "names",
    [
        ["everything", "refused by a limit", "decorator", "hit, refused"],
        pytest.param([row.name for row in real.ROWS], marks=pytest.mark.deep),
    ],
)
def test_a_small_run_shows_the_rows(names: list[str]) -> None:
    ended = run("real", *REAL, *(text for name in names for text in ("--only", name)))
    assert re.findall(r"^\| (.+?) \| +-?[0-9]", ended.stdout, re.MULTILINE) == names


def test_every_row_is_made_of_candidates_and_every_candidate_has_a_row() -> None:
    assert {name for row in real.ROWS for name in row.candidates} == {*KNOWN, *worker.HITS}


def test_a_row_is_the_median_over_processes_of_medians_over_rounds() -> None:
    # In the first process the machine is slow in the second round, and the third process is slower by itself.
    bare = [[10.0, 100.0, 10.0], [10.0, 10.0, 10.0], [20.0, 20.0, 20.0]]
    peer = [[15.0, 150.0, 15.0], [15.0, 15.0, 15.0], [30.0, 30.0, 30.0]]
    ours = [[20.0, 200.0, 20.0], [16.0, 16.0, 16.0], [35.0, 35.0, 35.0]]
    measured = [
        [{"default": own, real.BARE: alone, real.PEER: theirs} for own, alone, theirs in zip(*rounds, strict=True)]
        for rounds in zip(ours, bare, peer, strict=True)
    ]
    (row,) = (row for row in real.ROWS if row.name == "default")
    cells = real.row_of(row, {"source": measured, "wheel": measured})
    assert cells == ["default", 10.0, 1.5, 10.0, 1.5, "≤1.2; ≤0.65"]


@pytest.mark.parametrize("name", [name for name, app in KNOWN.items() if app.limited])
def test_each_limiter_counts_and_does_what_it_is_measured_for(name: str) -> None:
    on_counting_loop(worker.check(name, KNOWN[name]))


@pytest.mark.parametrize(
    ("app", "what"),
    [
        (apps.App(apps.bare), "requests of one client"),
        (apps.App(apps.fastapi_limiter), "another client after them"),
        (apps.App(lambda allowed: apps.ours(allowed), bans=True), "the last of many requests"),
        (apps.App(lambda allowed: apps.ours(allowed), blocks=True), "a blocked network"),
    ],
)
def test_a_limiter_that_does_not_is_an_error(app: apps.App, what: str) -> None:
    with pytest.raises(SystemExit, match=f"subject: {what}: expected "):
        on_counting_loop(worker.check("subject", app))
