"""`bench real` and `bench limiter` measure what their rows say: limiters that count, answers that are checked, rounds
that are compared."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Coroutine
from itertools import pairwise, permutations
from typing import Any, TypeVar

import pytest

from benchmarks import apps, hits, limiter, real, rounds, traffic, versions, worker

ROOT = versions.ROOT
KNOWN = apps.candidates()
Result = TypeVar("Result")
SMALL = ["--processes", "1", "--rounds", "1", "--requests", "3", "--paths", "2560"]


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    # A separate process, because benchmarks disable logging and change the garbage collector.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    line = [sys.executable, "-m", "benchmarks", "real", *SMALL, *flags]
    return subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True)


def on_counting_loop(work: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=traffic.CountingLoop) as runner:
        return runner.run(work)


@pytest.mark.parametrize(
    "names",
    [
        ["everything", "refused by a limit", "decorator"],
        pytest.param([row.name for row in real.ROWS], marks=pytest.mark.deep),
    ],
)
def test_a_small_run_shows_the_rows(names: list[str]) -> None:
    ended = run(*(text for name in names for text in ("--only", name)))
    assert ended.returncode == 0, ended.stderr
    assert re.findall(r"^\| (.+?) \| +-?[0-9]", ended.stdout, re.MULTILINE) == names
    assert "`python3 dev.py bench real" in ended.stdout


def test_every_row_is_made_of_candidates_and_every_candidate_has_a_row() -> None:
    assert {name for row in real.ROWS for name in row.candidates} == {*KNOWN}
    assert {name for row in limiter.ROWS for name in row.candidates} == {*hits.HITS}


@pytest.mark.parametrize("name", hits.HITS)
def test_each_limiter_admits_a_hundred_hits_of_a_key_and_refuses_the_next(name: str) -> None:
    assert on_counting_loop(hits.HITS[name](0)) > 0


def test_a_limiter_with_another_answer_is_an_error() -> None:
    refuses = hits.Hits(lambda key: False, [(key,) for key in hits.KEYS], awaited=False)
    with pytest.raises(RuntimeError, match="expected every hit to be admitted"):
        on_counting_loop(hits.hit_us(refuses, True))


@pytest.mark.parametrize("count", [2, 6, 7])
def test_every_candidate_comes_first_and_follows_every_other_as_often(count: int) -> None:
    names = [f"candidate {number}" for number in range(count)]
    times = 1 + count % 2
    orders = [worker.order_of(names, turn) for turn in range(count * times)]
    assert Counter(order[0] for order in orders) == dict.fromkeys(names, times)
    assert Counter(pair for order in orders for pair in pairwise(order)) == dict.fromkeys(permutations(names, 2), times)


def test_a_row_is_the_median_over_processes_of_medians_over_rounds() -> None:
    # The second round of the first process is slow, and so is the whole third process.
    bare = [[10.0, 100.0, 10.0], [10.0, 10.0, 10.0], [20.0, 20.0, 20.0]]
    peer = [[15.0, 150.0, 15.0], [15.0, 15.0, 15.0], [30.0, 30.0, 30.0]]
    ours = [[20.0, 200.0, 20.0], [16.0, 16.0, 16.0], [35.0, 35.0, 35.0]]
    measured = [
        [{"default": own, real.BARE: alone, real.PEER: theirs} for own, alone, theirs in zip(*rounds, strict=True)]
        for rounds in zip(ours, bare, peer, strict=True)
    ]
    (row,) = (row for row in real.ROWS if row.name == "default")
    cells = rounds.row_of(row, {"source": measured, "wheel": measured})
    assert cells == ["default", 10.0, 1.5, 10.0, 1.5, "≤1.2; ≤0.65"]


# asgi-ratelimit asks asyncio for it, and Python 3.14 wants inspect asked.
@pytest.mark.filterwarnings("ignore:.*iscoroutinefunction:DeprecationWarning")
@pytest.mark.parametrize("name", [name for name, app in KNOWN.items() if app.limited])
def test_each_limiter_counts_and_does_what_it_is_measured_for(name: str) -> None:
    on_counting_loop(worker.check(name, KNOWN[name]))


def without_list(allowed: apps.Allowed) -> object:
    return apps.ours(allowed)


@pytest.mark.parametrize(
    ("app", "what"),
    [
        (apps.App(apps.bare), "requests of one client"),
        (apps.App(apps.fastapi_limiter), "another client after them"),
        (apps.App(without_list, bans=True), "the last of many requests"),  # type: ignore[arg-type]
        (apps.App(without_list, blocks=True), "a blocked network"),  # type: ignore[arg-type]
    ],
)
def test_a_limiter_that_does_not_is_an_error(app: apps.App, what: str) -> None:
    with pytest.raises(SystemExit, match=f"subject: {what}: expected "):
        on_counting_loop(worker.check("subject", app))
