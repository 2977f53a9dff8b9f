"""Scenes with several processes around one LMDB environment, each in a process of its own that forks its actors.

Run as ``python -m tests.stores.lmdb.scenes NAME PATH [NUMBER ...]``; what was seen is printed as one line of JSON.
"""

import json
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from slidegate import Limiter, StoreError
from slidegate.core import Bucket, ConfigurationError, Reason, parse_limits
from slidegate.stores.lmdb import LmdbStore, environment, journal, opening
from slidegate.testing import RecordingObserver

HOUR_US = 3_600_000_000
SHARED_AMOUNT = 300


def bucket(amount: int) -> Bucket:
    return Bucket("rule", parse_limits(f"{amount}/hour"))


def fork() -> int:
    """Fork although there may be threads, which is what is tested."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # CPython 3.12 and later
        return os.fork()


def actor(act: Callable[[int], None]) -> tuple[int, int]:
    """Fork a process that acts on the writing end of a pipe; return its id and the reading end."""
    reading, writing = os.pipe()
    pid = fork()
    if not pid:
        code = 1
        try:
            os.close(reading)
            act(writing)
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    os.close(writing)
    return pid, reading


def outcome(pid: int, reading: int) -> tuple[bytes, int]:
    """Wait for an actor to end; return what it wrote and its exit code."""
    with open(reading, "rb") as pipe:
        written = pipe.read()
    return written, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def together(count: int, act: Callable[[int], int]) -> list[int]:
    """Let several actors start at one moment; return the number that each answers with."""
    gate_reading, gate_writing = os.pipe()

    def run(number: int) -> Callable[[int], None]:
        def wait_and_act(writing: int) -> None:
            os.close(gate_writing)
            os.read(gate_reading, 1)
            os.write(writing, str(act(number)).encode())

        return wait_and_act

    actors = [actor(run(number)) for number in range(count)]
    os.close(gate_reading)
    os.close(gate_writing)
    outcomes = [outcome(*one) for one in actors]
    assert [code for _, code in outcomes] == [0] * count, "an actor failed"
    return [int(written) for written, _ in outcomes]


def hit_often(store: LmdbStore, amount: int, times: int) -> int:
    question = ((bucket(amount), "user:0", 1),)
    return sum(store.hit(question).allowed for _ in range(times))  # type: ignore[union-attr]


def hitting(path: str, amount: int, times: int) -> Any:
    """Hit one key, and return how often it was admitted."""
    return hit_often(LmdbStore(path), amount, times)


def starts(path: str, processes: int, rounds: int, damaged: str) -> Any:
    """Processes open an environment that is not there yet, or is damaged, all at one moment."""
    seen = []
    for turn in range(rounds):
        place = f"{path}-{turn}"
        if damaged == "damaged":
            LmdbStore(place).close()
            overwrite_heads(place)

        def act(_: int, place: str = place) -> int:
            return hit_often(LmdbStore(place), 20, 10)

        seen.append(sum(together(processes, act)))
    return seen


def killing(path: str, processes: int, kills: int, amount: int) -> Any:
    """Processes hit one key, and one after the other is killed and replaced; who was let in is counted outside."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    chance = random.Random(kills)

    def act(_: int) -> None:
        store, asked = LmdbStore(path), ((bucket(amount), "user:ann", 1),)
        while True:
            if store.hit(asked):  # type: ignore[arg-type]
                os.write(writing, b"x")

    actors = [actor(act) for _ in range(processes)]
    admitted = 0
    for _ in range(kills):
        time.sleep(chance.uniform(0.001, 0.03))
        victim = chance.randrange(processes)
        pid, pipe = actors[victim]
        end(pid)
        os.close(pipe)
        actors[victim] = actor(act)
        with suppress(BlockingIOError):
            admitted += len(os.read(reading, 1 << 20))
    for pid, _ in actors:
        end(pid)
    os.close(writing)
    while more := os.read(reading, 1 << 20):
        admitted += len(more)
    left = LmdbStore(path).peek(((bucket(amount), "user:ann", 0),)).remaining
    return {"admitted": admitted, "counted": amount - (left or 0)}


def banning(path: str, kills: int) -> Any:
    """A process bans, says so, and is killed at some moment; afterwards every ban that it spoke of must be there."""
    chance = random.Random(kills)
    lost, spoken = 0, 0
    options: dict[str, Any] = {"max_bans": 10**6}
    LmdbStore(path, **options).close()
    for turn in range(kills):

        def act(writing: int, turn: int = turn) -> None:
            store = LmdbStore(path, **options)
            for number in range(10**6):
                store.bans.ban(f"user:{turn}-{number}", HOUR_US, "by request", "ann")
                store.hit(((bucket(10**6), f"user:{number}", 1),))
                os.write(writing, b"x")

        pid, reading = actor(act)
        said = len(os.read(reading, 1)) if turn % 2 else 0  # a busy machine may not have come to its first word
        time.sleep(chance.uniform(0.0, 0.03))
        os.kill(pid, signal.SIGKILL)
        said += len(outcome(pid, reading)[0])
        store = LmdbStore(path, **options)
        banned = {ban.key for ban in store.bans.active()}
        lost += sum(f"user:{turn}-{number}" not in banned for number in range(said))
        spoken += said
        for key in banned:
            store.bans.unban(key, "bob")
        store.close()
    return {"lost": lost, "spoken": spoken}


def turns(path: str, processes: int, compactions: int) -> Any:
    """Processes ban and lift bans in turn while the journal is written anew again and again; then the machine starts.

    Returns how many bans were acknowledged, how many of them are missing, and how many that were lifted are back.
    """
    journal.MIN_BYTES = 2_000  # type: ignore[misc]
    environment.HOUSEKEEP_EVERY_S = 0.0  # type: ignore[misc]

    def act(number: int) -> Callable[[int], None]:
        def ban(writing: int) -> None:
            store, turn = LmdbStore(path, max_bans=10**6), 0
            while True:
                turn += 1
                for lasting in (turn % 5 == 0, False):
                    key = f"user:{number}-{turn}-{lasting:d}"
                    store.bans.ban(key, HOUR_US, "by request", "ann")
                    if not lasting:
                        store.bans.unban(key, "ann")
                    os.write(writing, b"+" if lasting else b"-")

        return ban

    kept = Path(path, journal.JOURNAL)
    actors = [actor(act(number)) for number in range(processes)]
    done, inode, until_s = -1, 0, time.monotonic() + 120
    while done < compactions and time.monotonic() < until_s:
        with suppress(FileNotFoundError):
            if (there := kept.stat().st_ino) != inode:
                done, inode = done + 1, there
        time.sleep(0.0005)
    for pid, _ in actors:
        os.kill(pid, signal.SIGKILL)
    spoken = [outcome(*one)[0] for one in actors]
    opening.boot_id = lambda: "another"
    banned = {ban.key for ban in LmdbStore(path).bans.active()}  # type: ignore[union-attr]
    acknowledged = {
        f"user:{number}-{5 * turn}-1"
        for number in range(processes)
        for turn in range(1, spoken[number].count(b"+") + 1)
    }
    lifted = {key for key in banned if key.endswith("-0")}
    return {
        "acknowledged": len(acknowledged),
        "lost": len(acknowledged - banned),
        "back": len(lifted),
        "extra": len(banned - acknowledged - lifted),
        "compactions": done,
    }


def on_full_disk(path: str, most: int) -> Any:
    """Fill a small disk with the counts of new keys, and then with something else, until there is room again.

    Returns the kinds of events, how many hits of 60 known keys passed, how many new ones had no answer, whether a ban
    was acknowledged on the full disk, and whether a new key gets a window of its own in the end.
    """
    heard, ballast = RecordingObserver(), Path(path, "ballast")
    store = LmdbStore(os.path.join(path, "lmdb"), max_keys=10**6)
    ballast.write_bytes(bytes(most))
    limiter = Limiter(store, on_error="deny", observers=[heard], deadline="60s").sync
    passed = unanswered = 0
    for turn in range(20):
        passed += sum(limiter.hit(f"known:{key:>050}", "15/hour").allowed for key in range(60))
        for number in range(1_500):
            unanswered += limiter.hit(f"new:{turn}-{number:>050}", "5/hour").reason is Reason.UNAVAILABLE
    try:
        with suppress(OSError), ballast.open("ab", 0) as file:
            while True:
                file.write(bytes(4_096))
        limiter.ban("user:eve", "1h")
        banned = True
    except StoreError:
        banned = False
    room = store._env.room
    stuck = room.stuck
    ballast.unlink()
    until_s = time.monotonic() + 30
    while store._env.room.fullness and time.monotonic() < until_s:
        limiter.hit("later", "1000000/hour")
    keys = keys_in(store)
    limiter.hit("last", "5/hour")
    return {
        "kinds": sorted({*heard.kinds}),
        "passed": passed,
        "unanswered": unanswered,
        "stuck": stuck,
        "banned": banned,
        "own": keys_in(store) - keys,
    }


def counts_file(path: str | Path) -> Path:
    """Return the file of counts."""
    (found,) = Path(path).glob("counts-*")
    return found


def keys_in(store: LmdbStore) -> Any:
    """Return the number of windows in a store, without shared cells."""
    return store._batcher.look(lambda transaction: transaction.windows.count())


def overwrite_heads(path: str) -> None:
    with counts_file(path).open("r+b") as file:
        for page in range(2):
            file.seek(page * 4_096 + 16)
            file.write(b"\xff" * 144)


class Crowd:
    """Processes that hit old and new keys of a file that grows, and what happens to them and to it."""

    def __init__(self, path: str, processes: int, chance: random.Random) -> None:
        self.path = path
        self.chance = chance
        self.admitted, self.files = 0, 1
        self.actors = [actor(self.act) for _ in range(processes)]

    def act(self, writing: int) -> None:
        own, store = random.Random(os.getpid()), None
        new, shared = bucket(5), ((bucket(SHARED_AMOUNT), "user:all", 1),)
        while True:
            with suppress(StoreError, ConfigurationError):
                store = store or LmdbStore(self.path, max_map_size=1 << 26)
                for _ in range(20):
                    store.hit(((new, f"user:{own.getrandbits(64):x}", 1),))
                os.write(writing, b"+" if store.hit(shared) else b".")

    def answered(self, pipe: int) -> bool:
        """Read what a process has said; tell whether that was anything."""
        os.set_blocking(pipe, False)
        said = b""
        with suppress(BlockingIOError):
            while more := os.read(pipe, 1 << 16):
                said += more
        self.admitted += said.count(b"+")
        return bool(said)

    def fault(self) -> str:
        """Let something happen."""
        number = self.chance.randrange(len(self.actors))
        pid, pipe = self.actors[number]
        what = self.chance.choice(("kill", "kill", "stop", "stop", "gate", "users", "counts", "head"))
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
                    overwrite_heads(self.path)
                else:
                    (counts_file(self.path) if what == "counts" else Path(self.path, what)).unlink()
        return what

    def leave(self) -> list[int]:
        """End all; return the exit codes of those who had ended by themselves."""
        found = [(pid, os.waitpid(pid, os.WNOHANG)) for pid, _ in self.actors]
        for pid, (ended, _) in found:
            if not ended:
                end(pid)
        return [os.waitstatus_to_exitcode(status) for _, (ended, status) in found if ended]


def faults(path: str, processes: int, rounds: int, seed: int) -> Any:
    """Faults, one after the other, and then everybody should answer.

    Returns who ended by itself, who is silent after the last fault and when the others had answered, how many were let
    in under the key of all, and how many files there may have been.
    """
    crowd = Crowd(path, processes, random.Random(seed))
    done = []
    for _ in range(rounds):
        time.sleep(crowd.chance.uniform(0.02, 0.2))
        done.append(crowd.fault())
        for _, pipe in crowd.actors:
            crowd.answered(pipe)
    last_s, silent = time.monotonic(), {pipe for _, pipe in crowd.actors}
    while silent and time.monotonic() < last_s + 30:
        silent -= {pipe for pipe in silent if crowd.answered(pipe)}
        time.sleep(0.001)
    seen = {"after_s": time.monotonic() - last_s, "silent": len(silent), "codes": crowd.leave(), "done": done}
    return {**seen, "admitted": crowd.admitted, "amount": SHARED_AMOUNT, "files": crowd.files}


SCENES = {scene.__name__: scene for scene in (hitting, starts, killing, banning, turns, on_full_disk, faults)}

if __name__ == "__main__":
    name, place, *given = sys.argv[1:]
    seen = SCENES[name](place, *(int(text) if text.isdigit() else text for text in given))
    sys.stdout.write(json.dumps(seen))
