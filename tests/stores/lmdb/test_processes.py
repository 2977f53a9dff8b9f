"""The LMDB store with several processes: exact together, whoever is killed or stopped, and when."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slidegate.stores.lmdb import LmdbStore

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
@pytest.mark.parametrize("kills", [15, pytest.param(500, marks=pytest.mark.deep)])
def test_no_ban_that_was_acknowledged_is_lost_by_a_kill(tmp_path: Path, kills: int) -> None:
    seen = play("banning", tmp_path / "lmdb", kills)
    assert seen["lost"] == 0
    assert seen["spoken"] > 0


@pytest.mark.all
@pytest.mark.parametrize("rounds", [60, pytest.param(400, marks=pytest.mark.deep)])
@pytest.mark.parametrize("before", ["absent", "damaged"])
def test_processes_that_start_at_once_make_one_environment(tmp_path: Path, before: str, rounds: int) -> None:
    assert play("starts", tmp_path / "lmdb", 8, rounds, before) == [20] * rounds


@pytest.mark.all
def test_workers_that_ban_in_turn_over_many_compactions_lose_no_ban_and_bring_none_back(tmp_path: Path) -> None:
    seen = play("turns", tmp_path / "lmdb", 4, 50)
    assert seen["compactions"] >= 50
    assert seen["acknowledged"] > 100
    assert (seen["lost"], seen["back"] <= 4, seen["extra"] <= 4) == (0, True, True), seen  # one of each who was killed


UNSHARE = ("unshare", *(() if os.geteuid() == 0 else ("--map-root-user",)))


def in_a_namespace(*kind: str) -> tuple[str, ...]:
    command = (*UNSHARE, *kind)
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip(f"there is no {' '.join(kind)} here")
    return command


@pytest.mark.all
def test_on_a_full_disk_known_keys_keep_their_limits_and_nobody_is_killed(tmp_path: Path) -> None:
    apart, place, mib = in_a_namespace("--mount"), tmp_path / "disk", 1 << 20
    place.mkdir()
    mount = f"mount -t tmpfs -o size={12 * mib} none {shlex.quote(str(place))}"
    if subprocess.run([*apart, "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    before = (*apart, "sh", "-c", f'{mount} && exec "$@"', "sh")
    seen = play("on_full_disk", place, 3 * mib, before=before)
    assert seen["stuck"] == "No space left on device"
    assert seen["passed"] == 60 * 15
    assert {"keys_shared", "map_full"} <= {*seen["kinds"]}
    assert seen["unanswered"] == 0
    assert not seen["banned"], "what the journal cannot keep is not acknowledged"
    assert seen["own"] == 1


@pytest.mark.all
def test_processes_in_process_namespaces_of_their_own_count_together(tmp_path: Path) -> None:
    before = in_a_namespace("--pid", "--fork")
    LmdbStore(tmp_path / "lmdb").close()
    command = [
        *before,
        sys.executable,
        "-m",
        "tests.stores.lmdb.scenes",
        "hitting",
        str(tmp_path / "lmdb"),
        "400",
        "300",
    ]
    running = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert sum(int(one.communicate(timeout=120)[0]) for one in running) == 400


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
