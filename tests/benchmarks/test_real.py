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
from pathlib import Path
from typing import Any, TypeVar

import pytest

from benchmarks import apps, limiter, real, rounds, worker
from benchmarks.traffic import Client, CountingLoop, client_of, timed

ROOT = rounds.ROOT
KNOWN = apps.candidates()
ROWS = [row for rows in real.TABLES.values() for row in rows]
FEW = apps.Allowed(3, "hour")
PEERS = ("asgi-ratelimit", "fastapi-limiter")
PATH = 5
Result = TypeVar("Result")


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    # A separate process, because benchmarks disable logging and change the garbage collector.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    line = [sys.executable, "-m", "benchmarks", "real", "--processes", "1", "--rounds", "1", "--requests", "3", *flags]
    return subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True)


def on_counting_loop(work: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        return runner.run(work)


@pytest.mark.parametrize(
    "names",
    [
        ["everything", "refused by a limit", "decorator"],
        pytest.param([row.name for row in ROWS], marks=pytest.mark.deep),
    ],
)
def test_a_small_run_shows_the_rows(names: list[str]) -> None:
    ended = run(*(text for name in names for text in ("--only", name)))
    assert ended.returncode == 0, ended.stderr
    assert re.findall(r"^\| (.+?) \| +-?[0-9]", ended.stdout, re.MULTILINE) == names
    assert "`python3 dev.py bench real" in ended.stdout


def test_every_row_is_made_of_candidates_and_every_candidate_has_a_row() -> None:
    assert {name for row in ROWS for name in row[:4] if name} == {*KNOWN}
    rows = [row for rows in limiter.TABLES.values() for row in rows]
    assert {name for row in rows for name in row[:4] if name} == {*limiter.ROUNDS}


@pytest.mark.parametrize("name", limiter.ROUNDS)
def test_each_limiter_admits_a_hundred_hits_of_a_key_and_refuses_the_next(name: str) -> None:
    assert on_counting_loop(limiter.ROUNDS[name](0)) > 0


def test_a_limiter_with_another_answer_is_an_error() -> None:
    refuses = limiter.Hits(lambda key: False, [(key,) for key in limiter.KEYS], awaited=False)
    with pytest.raises(RuntimeError, match="expected every hit to be admitted"):
        on_counting_loop(limiter.hit_us(refuses, True))


def test_a_response_with_another_status_is_an_error() -> None:
    async def measured() -> float:
        app = KNOWN["refused by a limit"]
        return await timed(await app.make(app.allowed), app.traffic.round(1, 3), 3, app.status)

    with pytest.raises(RuntimeError, match="expected 429, got 200"):
        on_counting_loop(measured())


@pytest.mark.parametrize("count", [2, 6, 7])
def test_every_candidate_comes_first_and_follows_every_other_as_often(count: int) -> None:
    names = [f"candidate {number}" for number in range(count)]
    orders = [worker.order_of(names, turn) for turn in range(count * (1 + count % 2))]
    assert {*Counter(order[0] for order in orders).values()} == {1 + count % 2}
    followed = Counter(pair for order in orders for pair in pairwise(order))
    assert followed == dict.fromkeys(permutations(names, 2), 1 + count % 2)


def test_a_row_is_the_median_over_processes_of_medians_over_rounds() -> None:
    # The second round of the first process is slow, and so is the whole third process.
    bare = [[10.0, 100.0, 10.0], [10.0, 10.0, 10.0], [20.0, 20.0, 20.0]]
    peer = [[15.0, 150.0, 15.0], [15.0, 15.0, 15.0], [30.0, 30.0, 30.0]]
    ours = [[20.0, 200.0, 20.0], [16.0, 16.0, 16.0], [35.0, 35.0, 35.0]]
    measured = [
        [{"default": own, real.BARE: alone, real.PEER: theirs} for own, alone, theirs in zip(*times, strict=True)]
        for times in zip(ours, bare, peer, strict=True)
    ]
    (row,) = (row for row in ROWS if row.name == "default")
    cells = rounds.cells_of(row, {"source": measured, "compiled": measured})
    assert cells == ["default", "10.0", "1.50", "10.0", "1.50", row.target]


def test_a_version_without_slidegate_is_an_error(tmp_path: Path) -> None:
    ended = run("--only", "default", "--other", str(tmp_path))
    assert ended.returncode == 1
    assert f"expected slidegate from {tmp_path / 'src'}, found" in ended.stderr


async def statuses(name: str, client: str, requests: int, key: int = 0) -> list[int]:
    """Return the statuses of requests of one client to a candidate with a low limit."""
    app, one = KNOWN[name], Client()
    made = await app.make(FEW)
    return [await one.ask(made, app.traffic.scope(PATH, client, key)) for _ in range(requests)]


UNLIMITED = {name for name in KNOWN if name.startswith("bare ")} | {"concurrency", "refused by a ban"}


# asgi-ratelimit asks asyncio for it, and Python 3.14 wants inspect asked.
@pytest.mark.filterwarnings("ignore:.*iscoroutinefunction:DeprecationWarning")
@pytest.mark.parametrize("name", sorted({*KNOWN} - UNLIMITED))
def test_each_limiter_counts_each_client_and_says_so(name: str) -> None:
    async def answers() -> tuple[list[int], int, dict[bytes, bytes]]:
        app, client = KNOWN[name], Client()
        made = await app.make(FEW)
        own = [await client.ask(made, app.traffic.scope(PATH, client_of(0))) for _ in range(FEW.amount + 2)]
        fields = client.headers
        return own, await client.ask(made, app.traffic.scope(PATH, client_of(1), 1)), fields

    own, other, fields = on_counting_loop(answers())
    assert own == [200] * FEW.amount + [429] * 2
    assert other == (429 if name.startswith("fastapi-limiter") else 200)
    assert name.startswith(PEERS) or {b"ratelimit", b"ratelimit-policy", b"retry-after"} <= {*fields}


@pytest.mark.parametrize("name", [name for name in KNOWN if name.startswith(("ban policy", "everything"))])
def test_a_client_that_goes_on_is_banned(name: str) -> None:
    assert on_counting_loop(statuses(name, client_of(0), 40))[-1] == 403


@pytest.mark.parametrize("name", [name for name in KNOWN if name.startswith(("blocklist", "everything"))])
def test_a_blocked_network_is_refused(name: str) -> None:
    assert on_counting_loop(statuses(name, "198.18.0.1", 1)) == [403]
