"""The LMDB store with several processes: exact together, whoever is killed or stopped, and when."""

import itertools
import os
import random
import shlex
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slidegate import ConfigurationError, Limiter, Quota, StoreError, parse_limits
from slidegate.core import Bucket, Reason
from slidegate.stores.lmdb import LmdbStore, environment, journal, opening
from slidegate.testing import RecordingObserver

from ...contract.programs import HOUR_US
from .processes import actor, counts_file, end, keys_in, outcome, overwrite_heads, python


def hits(amount: int, key: str = "user:ann") -> Any:
    return ((Bucket("rule", parse_limits(f"{amount}/hour")), key, 1),)


@pytest.mark.all
@pytest.mark.parametrize("rounds", [60, pytest.param(400, marks=pytest.mark.deep)])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_processes_that_start_at_once_make_one_environment(tmp_path: Path, is_damaged: bool, rounds: int) -> None:
    for turn in range(rounds):
        directory = tmp_path / f"{turn}"
        if is_damaged:
            LmdbStore(directory).close()
            overwrite_heads(counts_file(directory))
        waiting, go = os.pipe()

        def act(writing: int, directory: Path = directory, waiting: int = waiting, go: int = go) -> None:
            os.close(go)
            os.read(waiting, 1)
            store: Any = LmdbStore(directory)
            os.write(writing, b"x" * sum(bool(store.hit(hits(20))) for _ in range(10)))

        actors = [actor(act) for _ in range(8)]
        os.close(waiting)
        os.close(go)
        admitted, codes = zip(*[outcome(*one) for one in actors], strict=True)
        assert (len(b"".join(admitted)), {*codes}) == (20, {0})


def ban_in_turn(path: Path, number: int, writing: int) -> None:
    """Ban and unban a key after the other, and leave each fifth banned; say so after each."""
    store = LmdbStore(path, max_bans=10**6)
    for turn in itertools.count(1):
        for lasting in (turn % 5 == 0, False):
            key = f"user:{number}-{turn}-{lasting:d}"
            store.bans.ban(key, HOUR_US, "by request", "ann")
            if not lasting:
                store.bans.unban(key, "ann")
            os.write(writing, b"+" if lasting else b"-")


@pytest.mark.all
@pytest.mark.parametrize("kills", [15, pytest.param(500, marks=pytest.mark.deep)])
def test_over_kills_and_compactions_no_ban_that_was_acknowledged_is_lost_and_none_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    monkeypatch.setattr(journal, "MIN_BYTES", 2_000)
    monkeypatch.setattr(environment, "HOUSEKEEP_EVERY_S", 0.0)
    chance, acknowledged, actors = random.Random(kills), set[str](), dict[int, tuple[int, int]]()
    until_s, inode, compactions = time.monotonic() + 120, 0, -1

    def start() -> None:
        number = max(actors, default=-1) + 1
        actors[number] = actor(partial(ban_in_turn, tmp_path, number))

    def kill(number: int) -> None:
        pid, reading = actors.pop(number)
        os.kill(pid, signal.SIGKILL)
        said = outcome(pid, reading)[0].count(b"+")
        acknowledged.update(f"user:{number}-{5 * turn}-1" for turn in range(1, said + 1))

    for _ in range(4):
        start()
    while (compactions < 50 or max(actors) < 3 + kills) and time.monotonic() < until_s:
        with suppress(FileNotFoundError):
            if (there := (tmp_path / journal.JOURNAL).stat().st_ino) != inode:
                compactions, inode = compactions + 1, there
        time.sleep(0.0005)
        if max(actors) < 3 + kills and chance.random() < 0.03:
            start()
            kill(chance.choice(sorted(actors)))
    for number in [*actors]:
        kill(number)
    assert compactions >= 50
    assert len(acknowledged) > 100
    for boot in (opening.boot_id(), "another"):  # before and after the machine starts again
        monkeypatch.setattr(opening, "boot_id", lambda boot=boot: boot)
        store: Any = LmdbStore(tmp_path, max_bans=10**6)
        banned = {ban.key for ban in store.bans.active()}
        store.close()
        assert acknowledged <= banned
        assert len(banned - acknowledged) <= 4 + kills, "at most one of each who was killed"


UNSHARE = ("unshare", *(() if os.geteuid() == 0 else ("--map-root-user",)))


def in_a_namespace(*kind: str) -> tuple[str, ...]:
    command = (*UNSHARE, *kind)
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip(f"there is no {' '.join(kind)} here")
    return command


def mounted(mount: str) -> tuple[str, ...]:
    """Return how a command begins that sees something mounted."""
    apart = in_a_namespace("--mount")
    if subprocess.run([*apart, "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    return (*apart, "sh", "-c", f'{mount} && exec "$@"', "sh")


@pytest.mark.all
def test_on_a_full_disk_known_keys_keep_their_limits_and_nobody_is_killed(tmp_path: Path) -> None:
    code = f"from {__name__} import fill_a_disk; fill_a_disk(path)"
    python(code, tmp_path, before=mounted(f"mount -t tmpfs -o size={25 << 19} none {shlex.quote(str(tmp_path))}"))


def fill_a_disk(path: str) -> None:
    """Fill a small disk with the counts of new keys, and then with something else, until there is room again."""
    observer, ballast = RecordingObserver(), Path(path, "ballast")
    store = LmdbStore(os.path.join(path, "lmdb"), max_keys=10**6)
    ballast.write_bytes(bytes(3 << 20))
    limiter = Limiter(store, on_error="deny", observers=[observer], deadline="60s").sync
    passed, quota = 0, Quota("60/year")  # each unit has a line
    limiter.hit("plan", quota)
    for turn in range(20):
        passed += sum(limiter.hit(f"known:{key:>050}", "15/hour").allowed for key in range(60))
        for number in range(1_500):
            assert limiter.hit(f"new:{turn}-{number:>050}", "5/hour").reason is not Reason.UNAVAILABLE
    assert passed == 60 * 15
    with suppress(OSError), ballast.open("ab", 0) as file:
        while True:
            file.write(bytes(4_096))
    assert {limiter.hit("plan", quota).reason for _ in range(59)} == {Reason.OK, Reason.UNAVAILABLE}
    with pytest.raises(StoreError):  # what the journal cannot keep is not acknowledged
        limiter.ban("user:eve", "1h", reason="x" * 256)
    assert "store_failed" not in observer.kinds, "all others are answered"
    assert store._env.counts.stuck == "No space left on device"
    assert {"map_full", "store_error"} == {*observer.kinds}
    ballast.unlink()
    until_s = time.monotonic() + 30
    while store._env.counts.fullness and time.monotonic() < until_s:
        limiter.hit("later", "1000000/hour")
    keys = keys_in(store)
    limiter.hit("last", "5/hour")
    assert keys_in(store) == keys + 1, "a new key gets a window of its own"


@pytest.mark.all
def test_processes_in_process_namespaces_of_their_own_count_together(tmp_path: Path) -> None:
    before = in_a_namespace("--pid", "--fork")
    LmdbStore(tmp_path).close()
    code = """
        asked = ((Bucket("rule", parse_limits("400/hour")), "user:ann", 1),)
        store = LmdbStore(path)
        print(sum(bool(store.hit(asked)) for _ in range(300)))
    """
    with ThreadPoolExecutor(3) as pool:
        assert sum(int(said) for said in pool.map(lambda _: python(code, tmp_path, before=before), range(3))) == 400


class Processes:
    """Processes that hit one key together, after each some new ones of their own, and what happens to them."""

    def __init__(self, path: Path, processes: int, chance: random.Random, amount: int = 300, new: int = 20) -> None:
        self.path, self.chance, self.checks, self.new = path, chance, hits(amount, "user:all"), new
        self.admitted, self.files = 0, 1
        self.actors = [actor(self.act) for _ in range(processes)]

    def act(self, writing: int) -> None:
        own, store = random.Random(os.getpid()), None
        while True:
            with suppress(StoreError, ConfigurationError):
                store = store or LmdbStore(self.path, max_map_size=1 << 26)
                for _ in range(self.new):
                    store.hit(hits(5, f"user:{own.getrandbits(64):x}"))
                os.write(writing, b"+" if store.hit(self.checks) else b".")

    def answered(self, pipe: int) -> bool:
        """Read what a process has said; tell whether that was anything."""
        os.set_blocking(pipe, False)
        said = b""
        with suppress(BlockingIOError):
            while more := os.read(pipe, 1 << 16):
                said += more
        self.admitted += said.count(b"+")
        return bool(said)

    def fault(self, *faults: str) -> str:
        """Let one of some things happen."""
        number = self.chance.randrange(len(self.actors))
        pid, pipe = self.actors[number]
        what = self.chance.choice(faults)
        if what == "kill":
            end(pid)
            self.answered(pipe)
            os.close(pipe)
            self.actors[number] = actor(self.act)
        elif what == "stop":
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self.chance.uniform(0.0, 0.2))
            os.kill(pid, signal.SIGCONT)
        else:
            self.files += 1
            with suppress(FileNotFoundError, ValueError):
                if what == "head":
                    overwrite_heads(counts_file(self.path))
                else:
                    (counts_file(self.path) if what == "counts" else self.path / what).unlink()
        return what

    def leave(self) -> list[int]:
        """End all; return the exit codes of those who had ended by themselves."""
        found = [(pid, os.waitpid(pid, os.WNOHANG)) for pid, _ in self.actors]
        for pid, (ended, _) in found:
            if not ended:
                end(pid)
        for _, pipe in self.actors:
            self.answered(pipe)
        return [os.waitstatus_to_exitcode(status) for _, (ended, status) in found if ended]


@pytest.mark.all
@pytest.mark.parametrize(
    ("processes", "rounds", "seed"),
    [(4, 12, 1), *(pytest.param(8, 60, seed, marks=pytest.mark.deep) for seed in range(4))],
)
def test_after_faults_every_process_answers_from_the_store(
    tmp_path: Path, processes: int, rounds: int, seed: int
) -> None:
    crew, done = Processes(tmp_path, processes, random.Random(seed)), []
    for _ in range(rounds):
        time.sleep(crew.chance.uniform(0.02, 0.2))
        done.append(crew.fault("kill", "kill", "stop", "stop", "gate", "users", "counts", "head"))
        for _, pipe in crew.actors:
            crew.answered(pipe)
    last_s, silent = time.monotonic(), {pipe for _, pipe in crew.actors}
    while silent and time.monotonic() < last_s + 30:
        silent -= {pipe for pipe in silent if crew.answered(pipe)}
        time.sleep(0.001)
    assert crew.leave() == [], f"somebody ended by itself after {done}"  # SIGABRT is -6, SIGBUS is -7
    assert not silent, done
    # Whoever has not noticed yet that the path has another file counts in the old one, up to a second.
    assert crew.admitted <= 300 * 2 * crew.files, done


@pytest.mark.parametrize(("kills", "amount"), [(25, 5_000), pytest.param(400, 100_000, marks=pytest.mark.deep)])
def test_killed_processes_never_let_more_in(tmp_path: Path, kills: int, amount: int) -> None:
    crew = Processes(tmp_path, 4, random.Random(kills), amount, new=0)
    for _ in range(kills):
        time.sleep(crew.chance.uniform(0.001, 0.03))
        crew.fault("kill")
    assert crew.leave() == []
    counted = amount - LmdbStore(tmp_path).peek(crew.checks).remaining  # type: ignore[union-attr]
    # Who was killed between its transaction and its word was counted, and let nobody in.
    assert crew.admitted <= counted <= crew.admitted + kills + 4
