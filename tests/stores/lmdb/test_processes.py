"""The LMDB store with several processes: exact together, whoever is killed or stopped, and when."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


def play(scene: str, path: Path, *given: object, before: tuple[str, ...] = ()) -> Any:
    """Play a scene of `scenes`, and return what it saw; a failed test shows what its processes said."""
    command = [*before, sys.executable, "-m", "tests.stores.lmdb.scenes", scene, str(path), *map(str, given)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    sys.stderr.write(ended.stderr[-4_000:])
    assert ended.returncode == 0
    return json.loads(ended.stdout)


@pytest.mark.parametrize(("kills", "amount"), [(25, 5_000), pytest.param(400, 100_000, marks=pytest.mark.deep)])
def test_killed_processes_never_let_more_in(tmp_path: Path, kills: int, amount: int) -> None:
    seen = play("killing", tmp_path / "lmdb", 4, kills, amount)
    assert seen["admitted"] <= seen["counted"] <= amount
    # Who was killed between its transaction and its word was counted, and let nobody in.
    assert seen["counted"] - seen["admitted"] <= kills + 4


@pytest.mark.all
@pytest.mark.parametrize("durability", ["fast", "safe"])
@pytest.mark.parametrize("kills", [15, pytest.param(500, marks=pytest.mark.deep)])
def test_no_ban_that_was_acknowledged_is_lost_by_a_kill(tmp_path: Path, kills: int, durability: str) -> None:
    seen = play("banning", tmp_path / "lmdb", kills, durability)
    assert seen["lost"] == 0
    assert seen["spoken"] > 0


@pytest.mark.all
@pytest.mark.parametrize("rounds", [60, pytest.param(400, marks=pytest.mark.deep)])
@pytest.mark.parametrize("before", ["absent", "damaged"])
def test_processes_that_start_at_once_make_one_environment(tmp_path: Path, before: str, rounds: int) -> None:
    assert play("starts", tmp_path / "lmdb", 8, rounds, before) == [20] * rounds


@pytest.mark.all
@pytest.mark.parametrize(("processes", "rounds"), [(4, 10), pytest.param(16, 60, marks=pytest.mark.deep)])
def test_a_process_that_starts_never_cuts_off_what_others_have_mapped(
    tmp_path: Path, processes: int, rounds: int
) -> None:
    seen = play("growing", tmp_path / "lmdb", processes, rounds)
    assert seen["codes"] == [0] * processes  # SIGBUS is -7
    assert not seen["shrunk"]
    assert seen["grown"]
    assert seen["keys"] == processes * (rounds * 200 + 300)


@pytest.mark.all
def test_safe_syncs_before_it_answers(tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed: apt-get install strace")
    trace = tmp_path / "trace"
    calls = "trace=openat,write,pwrite64,pwritev,writev,fsync,fdatasync,msync"
    play("speaking", tmp_path / "lmdb", 5, before=(strace, "-f", "-e", calls, "-o", str(trace)))
    lines = trace.read_text(encoding="utf-8", errors="replace").splitlines()
    (meta,) = [found[1] for line in lines if (found := re.search(r'data\.mdb", \S*O_DSYNC\S*\) += (\d+)', line))]
    synced = written = spoken = 0
    for line in lines:
        if re.search(r"f(data)?sync\(", line):
            synced += 1
        elif f"pwrite64({meta}," in line and synced:
            written += 1  # through a file that is opened so that this waits for the disk
        elif "acknowledged" in line:
            spoken += 1
            assert synced, f"no sync before {line}"
            assert written, f"the head was not written before {line}"
            synced = written = 0
    assert spoken == 5


@pytest.mark.all
def test_places_of_killed_readers_are_found_again(tmp_path: Path) -> None:
    assert play("readers", tmp_path / "lmdb", 40, 16) == 3


@pytest.mark.all
@pytest.mark.parametrize(
    ("processes", "rounds", "seed"),
    [(4, 12, 1), *(pytest.param(8, 60, seed, marks=pytest.mark.deep) for seed in range(4))],
)
def test_after_faults_every_process_answers_from_the_store(
    tmp_path: Path, processes: int, rounds: int, seed: int
) -> None:
    seen = play("faults", tmp_path / "lmdb", processes, rounds, seed)
    assert seen["codes"] == [], f"seed {seed}: somebody ended by itself: {seen}"  # SIGABRT is -6, SIGBUS is -7
    assert seen["silent"] == 0, f"seed {seed}: {seen}"
    # Whoever has not noticed yet that the path has another file counts in the old one, up to a second.
    assert seen["admitted"] <= seen["amount"] * 2 * seen["files"], f"seed {seed}: {seen}"
