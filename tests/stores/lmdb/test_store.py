"""The LMDB store: the contract in one process and over two, and when a transaction takes place."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from slidegate.core import ConfigurationError, Decision, LimitSet, Quota, Reason, parse_limits
from slidegate.core.bans.policy import BanPolicy
from slidegate.core.errors import StoreTimeout, StoreUnavailable
from slidegate.limiter import Limiter
from slidegate.stores.lmdb import LmdbStore
from slidegate.stores.lmdb.batching import LOOK_EVERY
from slidegate.stores.lmdb.checking import DATA
from slidegate.stores.lmdb.opening import PATIENCE_S
from slidegate.testing import FakeClock, RecordingObserver
from slidegate.testing.contract import StoreContract
from slidegate.testing.contract.player import settle

from ..transports import RandomContract
from .remote import SMALL, Remote, TwoProcesses

MINUTE_US = 60_000_000

SHARED_MEMORY = Path("/dev/shm")


def bucket(limits: str, rule: str = "rule") -> LimitSet:
    return LimitSet(rule, parse_limits(limits))


class InFiles:
    """Environments of one test after the other, in a directory that is gone at the end."""

    parent: Path | None = None

    @pytest.fixture(autouse=True)
    def _root(self) -> Iterator[None]:
        with TemporaryDirectory(prefix="slidegate-", dir=self.parent) as root:
            self.root, self.numbers = Path(root), itertools.count()
            yield

    def new_path(self) -> str:
        number = next(self.numbers)
        shutil.rmtree(self.root / str(number - 8), ignore_errors=True)  # an example opens two at most
        return str(self.root / str(number))

    def make_store(self, clock: FakeClock) -> Any:
        return LmdbStore(self.new_path(), clock=clock, **SMALL)

    def opener(self) -> Callable[[], LmdbStore]:
        return partial(LmdbStore, self.new_path(), **SMALL)


class TestContract(InFiles, StoreContract):
    pass


class TestContractWhereEveryCommitIsSynced(InFiles, RandomContract):
    # Syncing costs nothing there; a disk would take minutes for what is asked of a store here.
    parent = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None

    def make_store(self, clock: FakeClock) -> LmdbStore:
        return LmdbStore(self.new_path(), clock=clock, durability="safe", **SMALL)


class TestContractOverTwoProcesses(InFiles, RandomContract):
    remote: Remote

    @pytest.fixture(autouse=True)
    def _remote(self, tmp_path: Path) -> Iterator[None]:
        self.remote = Remote(tmp_path)
        yield
        self.remote.close()

    def make_store(self, clock: FakeClock) -> Any:
        return TwoProcesses(self.new_path(), self.remote, clock)


# -- when a transaction takes place -----------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    made = LmdbStore(tmp_path / "lmdb", **SMALL)
    yield made
    made.close()


@contextmanager
def gate_held(store: LmdbStore) -> Iterator[int]:
    """Write for ever, as seen from the store."""
    gate = os.open(store._env.path / DATA, os.O_RDWR)
    fcntl.flock(gate, fcntl.LOCK_EX)
    yield gate
    os.close(gate)


def fork() -> int:
    """Fork although there may be threads, which is what is tested."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # CPython 3.12 and later
        return os.fork()


@contextmanager
def child(act: Callable[[], object], ends_by: signal.Signals = signal.SIGCONT) -> Iterator[int]:
    """Fork a process that does something, sends itself the signal `ends_by`, and stays where it is until the end."""
    reading, writing = os.pipe()
    pid = fork()
    if not pid:
        try:
            kept = act()  # a transaction ends when nobody holds it
            os.write(writing, b"x")
            os.kill(os.getpid(), ends_by)
            signal.pause()
            del kept
        finally:
            os._exit(1)
    os.close(writing)
    try:
        assert os.read(reading, 1) == b"x"
        if ends_by in (signal.SIGSTOP, signal.SIGKILL):
            os.waitpid(pid, os.WUNTRACED)
        yield pid
    finally:
        os.close(reading)
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def in_another_process(store: LmdbStore, act: Callable[[LmdbStore], object]) -> None:
    pid = fork()
    if not pid:
        failed = True
        try:
            failed = not act(LmdbStore(store._env.path, **SMALL))
        finally:
            os._exit(failed)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


async def test_what_arrives_in_one_turn_of_the_loop_is_one_transaction(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter, rounds, tasks = Limiter(store, on_error="deny"), 20, 64

    async def work(number: int) -> int:
        return sum([(await limiter.hit(f"user:{number % 8}", "100000/hour")).allowed for _ in range(rounds)])

    begin, begun = store._env.begin, list[int]()
    monkeypatch.setattr(store._env, "begin", lambda: begun.append(1) or begin())
    assert sum(await asyncio.gather(*map(work, range(tasks)))) == rounds * tasks
    assert len(begun) <= LOOK_EVERY + rounds + 2
    assert (await limiter.peek("user:0", "100000/hour", 0)).remaining == 100_000 - rounds * tasks // 8


async def test_known_refusals_and_bans_are_answered_while_another_process_writes(store: LmdbStore) -> None:
    limiter = Limiter(store, on_error="deny")
    for _ in range(6):
        await limiter.hit("user:ann", "5/hour; 100/day")
    await limiter.ban("192.0.2.0/24", "1h")
    with gate_held(store):
        for _ in range(100):
            refused = await limiter.hit("user:ann", "5/hour; 100/day")
            assert (refused.reason, refused.remaining) == (Reason.LIMITED, 0)
            assert (await limiter.hit("192.0.2.7", "5/hour")).reason is Reason.BANNED


async def test_a_known_refusal_ends_when_another_process_resets_or_refunds(store: LmdbStore) -> None:
    limiter = Limiter(store, on_error="deny")
    for _ in range(6):
        await limiter.hit("user:ann", "5/hour")
    in_another_process(store, lambda own: own.reset("user:ann"))
    charged = [await limiter.hit("user:ann", "5/hour") for _ in range(6)]
    assert [decision.remaining for decision in charged] == [4, 3, 2, 1, 0, 0]
    in_another_process(store, lambda own: own.refund(charged[2].take_back()))
    assert (await limiter.hit("user:ann", "5/hour")).allowed


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(10**12)


@pytest.fixture
def workers(tmp_path: Path, clock: FakeClock) -> Iterator[Callable[[], tuple[Any, Any]]]:
    """Make two stores on one file, with one clock; those that were made before are closed first."""
    made: list[Any] = []

    def close() -> None:
        while made:
            made.pop().close()

    def make() -> tuple[Any, Any]:
        close()
        made.extend(LmdbStore(tmp_path / "shared", clock=clock, **SMALL) for _ in range(2))
        return made[0], made[1]

    yield make
    close()


@pytest.mark.parametrize("limits", ["5/minute", "100/minute", Quota("5/day")])
def test_a_refusal_writes_nothing(tmp_path: Path, limits: Any) -> None:
    ticks, wall = FakeClock(10**12), FakeClock(10**15)
    store: Any = LmdbStore(tmp_path / "lmdb", clock=ticks, wall_clock=wall, **SMALL)
    asked = ((LimitSet("rule", parse_limits(limits)), "ann", 1),)
    while store.hit(asked):
        pass
    written = store._env._lmdb.info()["last_txnid"]
    for _ in range(10):
        ticks.advance(us=3)
        wall.advance(us=7)
        other = LmdbStore(tmp_path / "lmdb", clock=ticks, wall_clock=wall, **SMALL)  # which was not asked before
        assert not other.hit(asked)
        other.close()
    assert store._env._lmdb.info()["last_txnid"] == written
    store.close()


async def _waited(store: LmdbStore, checks: Any) -> Decision:
    answer = store.hit(checks)
    return answer if isinstance(answer, Decision) else await answer


async def test_a_job_that_fails_fails_alone(store: LmdbStore) -> None:
    limiter = Limiter(store, on_error="deny")
    for _ in range(LOOK_EVERY):
        await limiter.hit("user:ann", "1000/hour")
    jobs = [limiter.hit("user:ann", "1000/hour"), limiter.import_bans(["{}"]), limiter.hit("user:ann", "1000/hour")]
    first, failed, last = await asyncio.gather(*jobs, return_exceptions=True)
    assert isinstance(failed, ConfigurationError)
    assert [first.remaining, last.remaining] == [1000 - LOOK_EVERY - 1, 1000 - LOOK_EVERY - 2]  # type: ignore[union-attr]


class Ended(FakeClock):
    """A clock that is an iterator, and has come to its end."""

    ends = False

    def __call__(self) -> int:
        return next(iter(())) if self.ends else super().__call__()


@pytest.mark.parametrize("durability", ["fast", "safe"])
async def test_a_clock_that_fails_in_any_way_holds_nobody_else_up(tmp_path: Path, durability: Any) -> None:
    wall, quota = Ended(10**15), ((LimitSet("quota", [Quota("5/day")]), "ann", 1),)
    store = LmdbStore(tmp_path / "lmdb", durability=durability, wall_clock=wall, **SMALL)
    asked = ((bucket("5/hour"), "ann", 1),)
    with gate_held(store):
        waiting = [asyncio.ensure_future(_waited(store, checks)) for checks in (asked, quota, asked)]
        await asyncio.sleep(0)
        wall.ends = True
    await asyncio.wait(waiting, timeout=60)
    assert isinstance(waiting[1].exception(), RuntimeError)
    assert [waiting[at].result().remaining for at in (0, 2)] == [4, 3]
    assert (await asyncio.wait_for(_waited(store, asked), 60)).remaining == 2
    wall.ends = False
    store.close()


# -- room ------------------------------------------------------------------------------------------------------------


def fill(store: LmdbStore, keys: Sequence[int], limits: str = "5/hour") -> list[bool]:
    asked = bucket(limits)
    return [bool(store.hit(((asked, f"user:{number:>054}", 1),))) for number in keys]


def test_the_map_grows_and_what_was_counted_stays(tmp_path: Path) -> None:
    heard = RecordingObserver()
    store = LmdbStore(tmp_path / "lmdb", map_size=1 << 16, max_map_size=1 << 22)
    store.observe(heard)
    for _ in range(6):
        answers = fill(store, range(1_000))
    assert not any(answers)
    assert heard.kinds.count("map_grown") >= 2
    stats = store.stats()
    assert (stats.keys, stats.bytes_held) == (1_000, heard.events[-1].details["bytes"])
    store.close()


async def test_in_a_full_file_keys_that_are_known_keep_their_limits(tmp_path: Path) -> None:
    """New ones share cells, and only where there is no room for these either does `on_error` decide, for them alone."""
    heard = RecordingObserver()
    store = LmdbStore(tmp_path / "lmdb", map_size=1 << 19, max_map_size=1 << 19)
    limiter = Limiter(store, on_error="allow", observers=[heard])
    known, served, numbers = dict.fromkeys(range(150), 0), 0, itertools.count()
    for _ in range(20):
        for key in known:
            decision = await limiter.hit(f"known:{key:>050}", "15/hour")
            assert decision.reason is not Reason.UNAVAILABLE, key
            known[key] += decision.allowed
        for _ in range(200):
            fresh = await limiter.hit(f"new:{next(numbers):>050}", "5/hour")
            served += fresh.reason is not Reason.UNAVAILABLE
    assert set(known.values()) == {15}
    assert served > 1_000
    assert "map_full" in heard.kinds
    ban = await limiter.ban("known:0", "1h")
    assert ban in [other async for other in limiter.bans()]
    store.close()


@contextmanager
def disk_of(size: int) -> Iterator[Callable[[], None]]:
    """Let no file of this process grow beyond a size; yield what ends that."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_where_the_disk_is_full_before_the_file_keys_that_are_known_keep_their_limits(tmp_path: Path) -> None:
    heard = RecordingObserver()
    store = LmdbStore(tmp_path / "lmdb", map_size=1 << 20)
    limiter = Limiter(store, on_error="allow", observers=[heard])
    known, numbers, reasons = dict.fromkeys(range(100), 0), itertools.count(), Counter[Reason]()
    with disk_of(3 << 20) as more:
        for _ in range(20):
            for key in known:
                decision = await limiter.hit(f"known:{key:>050}", "15/hour")
                assert decision.reason is not Reason.UNAVAILABLE, key
                known[key] += decision.allowed
            for _ in range(700):
                reasons[(await limiter.hit(f"new:{next(numbers):>050}", "5/hour")).reason] += 1
        assert set(known.values()) == {15}
        assert store.stats().shared_hits > 1_000
        assert reasons[Reason.UNAVAILABLE], "the disk was never full"
        assert sorted(heard.kinds) == ["keys_shared", "map_full", "map_grown", "store_failed"]
        assert (
            f"cannot grow to {4 << 20} bytes (File too large), so new keys"
            in heard.events[heard.kinds.index("map_full")].message
        )
        ban = await limiter.ban("known:0", "1h")
        assert ban in [other async for other in limiter.bans()]
        more()
        until_s = time.monotonic() + 60
        while heard.kinds.count("map_grown") < 2:
            assert time.monotonic() < until_s
            await limiter.hit("later", "1000000/hour")
        held = store.stats().keys
        await limiter.hit("last", "5/hour")
        assert store.stats().keys == held + 1, "it has a window of its own"
    store.close()


def test_a_process_that_is_stopped_while_it_reads_is_noticed_before_the_file_is_full(tmp_path: Path) -> None:
    heard = RecordingObserver()
    store = LmdbStore(tmp_path / "lmdb", map_size=1 << 19, max_map_size=1 << 26)
    store.observe(heard)
    with child(lambda: store._env.read(), signal.SIGSTOP) as pid:
        for _ in range(20_000):
            fill(store, range(5), "10000000/hour")
            if "reader_stopped" in heard.kinds:
                break
        assert store.stats().bytes_held < 1 << 25
        assert heard.events[heard.kinds.index("reader_stopped")].details["pid"] == pid
    grown = store.stats().bytes_held
    for _ in range(1_000):
        fill(store, range(5), "10000000/hour")
    assert store.stats().bytes_held <= 2 * grown
    assert heard.kinds.count("reader_stopped") == 1
    store.close()


def test_idle_keys_go_in_small_steps(tmp_path: Path) -> None:
    clock = FakeClock()
    store = LmdbStore(tmp_path / "lmdb", clock=clock, **SMALL)
    fill(store, range(500), "5/minute")
    clock.advance("61s")
    for number in range(100):
        fill(store, [10_000 + number], "5/minute")
    assert store.stats().keys == 100
    assert store.stats().evictions == 500
    store.close()


# -- sharing ---------------------------------------------------------------------------------------------------------


def test_two_stores_of_a_process_share_one_environment(tmp_path: Path) -> None:
    stores = [LmdbStore(path, **SMALL) for path in (tmp_path / "lmdb", tmp_path / "." / "lmdb")]
    assert [fill(store, [1], "1/hour") for store in stores] == [[True], [False]]
    stores[0].close()
    assert fill(stores[1], [2], "1/hour") == [True]
    stores[1].close()


def files_open_in(path: Path) -> list[str]:
    own = Path("/proc/self/fd")
    if not own.is_dir():
        pytest.skip("nobody says here which files are open")
    with os.scandir(own) as entries:
        numbers = [entry.name for entry in entries]
    found = []
    for number in numbers:
        with suppress(FileNotFoundError):  # that of the list itself
            found.append(os.readlink(own / number))
    return [name for name in found if name.startswith(str(path))]


@pytest.mark.parametrize("durability", ["fast", "safe"])
@pytest.mark.parametrize("on_loop", [True, False])
async def test_a_closed_store_opens_its_files_no_more_and_leaves_its_path_to_others(
    tmp_path: Path, durability: Any, on_loop: bool
) -> None:
    path, asked = tmp_path / "lmdb", ((bucket("5/hour"), "ann", 1),)
    store: Any = LmdbStore(path, durability=durability, **SMALL)

    def ask() -> None:
        for question in (store.hit, store.peek, store.charge):
            with pytest.raises(StoreUnavailable, match=f"the store at {path} was closed"):
                asyncio.run(_settled(question, asked)) if on_loop else question(asked)

    await _waited(store, asked)
    assert files_open_in(path)
    store.close()
    for _ in range(3):
        await asyncio.to_thread(ask)
    assert files_open_in(path) == []
    other: Any = LmdbStore(path, map_size=1 << 21)
    await asyncio.to_thread(ask)
    assert other.hit(asked).remaining == 3
    other.close()
    assert files_open_in(path) == []


async def _settled(question: Callable[[Any], Any], checks: Any) -> Any:
    return await settle(question(checks))


def test_what_was_counted_and_banned_outlives_the_store(tmp_path: Path) -> None:
    policy = BanPolicy("3/minute", "10m")
    store = LmdbStore(tmp_path / "lmdb", **SMALL)
    fill(store, [1] * 3, "5/hour")
    store.bans.ban("user:eve", None, "by request", "ann")
    for _ in range(2):
        store.bans.strike(policy, "user:bob", 1, "refused")
    store.close()
    store = LmdbStore(tmp_path / "lmdb", **SMALL)
    assert fill(store, [1] * 3, "5/hour") == [True, True, False]
    assert [ban.key for ban in store.bans.active()] == ["user:eve"]
    assert store.bans.strike(policy, "user:bob", 1, "refused")
    assert [ban.key for ban in store.bans.active()] == ["user:bob", "user:eve"]
    store.close()


def test_one_path_has_one_set_of_options(store: LmdbStore) -> None:
    with pytest.raises(ConfigurationError, match="use the same options"):
        LmdbStore(store._env.path, durability="safe", **SMALL)


# -- deadlines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["fast", "safe"])
async def test_a_hit_that_waits_longer_than_the_deadline_is_given_up_and_not_charged(
    tmp_path: Path, durability: Any
) -> None:
    store = LmdbStore(tmp_path / "lmdb", durability=durability, **SMALL)
    limiter = Limiter(store, deadline="20ms", on_error="deny")
    with gate_held(store):
        decisions = await asyncio.gather(*(limiter.hit("user:ann", "5/hour") for _ in range(3)))
        assert {decision.reason for decision in decisions} == {Reason.UNAVAILABLE}
    await asyncio.sleep(0.01)
    assert (await asyncio.wait_for(_waited(store, ((bucket("5/hour", "hit"), "user:ann", 1),)), 10)).remaining == 4
    store.close()


def test_without_an_event_loop_a_hit_waits_for_the_gate(store: LmdbStore) -> None:
    asked = ((bucket("5/hour"), "user:ann", 1),)
    with gate_held(store) as gate:
        timer = threading.Timer(0.02, lambda: fcntl.flock(gate, fcntl.LOCK_UN))
        timer.start()
        assert store.hit(asked).remaining == 4  # type: ignore[union-attr]
        timer.join()
    store.keep_deadline(0.02)
    with gate_held(store), pytest.raises(StoreTimeout, match=r"has been writing for 0.02 s"):
        store.hit(asked)


# -- by address ------------------------------------------------------------------------------------------------------


# -- what else can be in a file --------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["a\0b", "\xff" * 32, "é" * 32])
async def test_any_text_is_a_key(store: LmdbStore, key: str) -> None:
    limiter = Limiter(store, on_error="deny")
    assert [(await limiter.hit(key, "2/hour")).allowed for _ in range(3)] == [True, True, False]
    assert await limiter.ban(f"key:{key}", "1h", reason=key)
    assert (await limiter.hit(f"key:{key}", "2/hour")).reason is Reason.BANNED
    assert [ban.key async for ban in limiter.bans()] == [limiter.key_for(f"key:{key}")]
    assert await limiter.strike(f"key:{key}:2", BanPolicy("1/minute", "1h"))
    assert len([ban async for ban in limiter.bans()]) == 2
    assert await limiter.unban(f"key:{key}")
    assert await limiter.reset(key)
    assert await limiter.hit(key, "2/hour")


@pytest.mark.parametrize("limits", ["5/minute", "100/minute", "100/minute; 1000/hour", Quota("5/day")])
def test_a_charge_of_before_a_reset_is_handed_back_by_nobody_and_after_no_restart(
    workers: Callable[[], tuple[Any, Any]], clock: FakeClock, limits: Any
) -> None:
    asked = LimitSet("rule", parse_limits(limits))
    for everything in (False, True):
        one, other = workers()
        amount = asked.limits[0].amount
        early = one.hit(((asked, "ann", amount),))
        assert early
        assert other.reset_all() if everything else other.reset("ann")
        one, other = workers()
        clock.advance(us=1)
        late = one.hit(((asked, "ann", amount),))
        assert late
        assert [one.refund(early.take_back()), other.refund(early.take_back())] == [False, False]
        assert not other.hit(((asked, "ann", 1),))
        assert other.refund(late.take_back()) is True


async def test_a_hit_that_was_given_up_while_another_process_writes_is_not_charged(store: LmdbStore) -> None:
    asked = ((bucket("5/hour"), "ann", 1),)
    with gate_held(store):
        waiting = [asyncio.ensure_future(_waited(store, asked)) for _ in range(3)]
        for _ in range(100):
            await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        waiting[0].cancel()
        await asyncio.sleep(0)
    assert [answer.remaining for answer in await asyncio.gather(*waiting[1:])] == [4, 3]


async def test_files_that_have_to_be_opened_again_wait_for_another_process_as_a_hit_does(store: LmdbStore) -> None:
    asked = ((bucket("5/hour"), "ann", 1),)
    store.hit(asked)
    store._env.close()  # as after a fork, or where the files were replaced
    with gate_held(store):
        waiting = asyncio.ensure_future(_waited(store, asked))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done()
    assert (await waiting).remaining == 3


@pytest.mark.parametrize("first", [0, 1])
async def test_limiters_that_share_a_store_have_a_deadline_each(store: LmdbStore, first: int) -> None:
    deadlines = ["20ms", "4s"]
    made = {at: Limiter(store, deadline=deadlines[at], on_error="deny") for at in (first, 1 - first)}
    short, long = made[0], made[1]
    with gate_held(store) as gate:
        waiting = [asyncio.create_task(long.hit("user:ann", "5/hour")) for _ in range(2)]
        assert (await short.hit("user:ann", "5/hour")).reason is Reason.UNAVAILABLE
        assert not any(task.done() for task in waiting)
        fcntl.flock(gate, fcntl.LOCK_UN)
        assert sorted(decision.remaining for decision in await asyncio.gather(*waiting)) == [3, 4]


@pytest.mark.parametrize("first", [0, 1])
def test_limiters_that_share_a_store_have_a_deadline_each_in_threads_too(store: LmdbStore, first: int) -> None:
    deadlines = ["20ms", "4s"]
    made = {at: Limiter(store, deadline=deadlines[at], on_error="deny") for at in (first, 1 - first)}
    answers: list[Decision] = []
    with gate_held(store) as gate:
        thread = threading.Thread(target=lambda: answers.append(made[1].sync.hit("user:ann", "5/hour")))
        thread.start()
        assert made[0].sync.hit("user:ann", "5/hour").reason is Reason.UNAVAILABLE
        fcntl.flock(gate, fcntl.LOCK_UN)
        thread.join()
    assert [decision.remaining for decision in answers] == [4]


def test_nobody_is_in_a_transaction_while_a_process_forks(store: LmdbStore) -> None:
    asked, hits = bucket("100000/hour"), 300
    running = [threading.Thread(target=lambda: fill(store, [1] * hits, "100000/hour")) for _ in range(3)]
    for thread in running:
        thread.start()
    for _ in range(10):
        in_another_process(store, lambda own: own.hit(((asked, "user:1", 1),)))
    for thread in running:
        thread.join()
    assert store.peek(((asked, f"user:{1:>054}", 0),)).remaining == 100_000 - 3 * hits


def test_a_child_can_open_a_store_although_a_thread_was_opening_one(tmp_path: Path) -> None:
    ended = threading.Event()

    def open_and_close() -> None:
        for number in itertools.cycle(range(5)):
            LmdbStore(tmp_path / str(number), **SMALL).close()
            if ended.is_set():
                return

    thread = threading.Thread(target=open_and_close)
    thread.start()
    try:
        for _ in range(10):
            pid = fork()
            if not pid:
                signal.alarm(20)
                LmdbStore(tmp_path / "child", **SMALL).close()
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("durability", ["fast", "safe"])
async def test_closing_tells_all_who_wait(tmp_path: Path, durability: Any) -> None:
    store = LmdbStore(tmp_path / "lmdb", durability=durability, **SMALL)
    asked = ((bucket("5/hour"), "ann", 1),)
    await _waited(store, asked)
    with gate_held(store):
        waiting = [asyncio.ensure_future(_waited(store, asked)) for _ in range(5)]
        for _ in range(3):
            await asyncio.sleep(0)
        store.close()
        await asyncio.wait(waiting, timeout=60)
        assert [type(task.exception()) for task in waiting] == [StoreUnavailable] * 5
    store = LmdbStore(tmp_path / "lmdb", durability=durability, **SMALL)
    assert (await _waited(store, asked)).remaining == 3, "they have charged nothing"
    store.close()


def test_a_map_that_another_process_has_made_larger_is_taken_over(store: LmdbStore) -> None:
    fill(store, [1])
    in_another_process(store, lambda own: fill(own, range(5_000)))
    assert store.peek(((bucket("5/hour"), f"user:{1:>054}", 0),)).remaining == 3
    assert fill(store, range(5_000)) == [True] * 5_000
    assert store.stats().bytes_held > 1 << 20


async def test_a_full_file_can_be_opened_again_and_has_room_when_its_windows_have_ended(tmp_path: Path) -> None:
    clock = FakeClock()
    options: dict[str, Any] = {"map_size": 1 << 19, "max_map_size": 1 << 19, "clock": clock}
    store = LmdbStore(tmp_path / "lmdb", **options)
    limiter = Limiter(store, on_error="deny")
    for number in range(5_000):
        await limiter.hit(f"user:{number:>050}", "1/minute")
    held = store.stats()
    assert held.keys > 500
    store.close()
    store = LmdbStore(tmp_path / "lmdb", **options)
    limiter = Limiter(store, on_error="deny")
    assert (await limiter.hit(f"user:{0:>050}", "1/minute")).reason is Reason.LIMITED
    clock.advance("2m")
    shared: list[int] = []
    for turn in range(3):
        for number in range(400):
            decision = await limiter.hit(f"later:{turn}-{number:>050}", "1/minute")
            assert decision or turn == 0, (turn, number)  # the old ones are let go of, a few at each hit
        shared.append(store.stats().shared_hits)
        clock.advance("2m")
    assert shared == shared[:1] * 3
    assert held.bytes_held <= store.stats().bytes_held <= (1 << 19) + (1 << 21)
    store.close()


@pytest.mark.parametrize("stuffing", ["bans", "windows"])
def test_a_file_that_takes_no_more_changes_goes_on_when_what_is_in_it_has_ended(tmp_path: Path, stuffing: str) -> None:
    clock = FakeClock(10**12)
    store = LmdbStore(tmp_path / "lmdb", map_size=1 << 16, max_map_size=1 << 16, clock=clock)
    grows: list[Callable[[int], object]] = [
        lambda number: store.bans.ban(f"user:{number}", MINUTE_US, "x" * 256, "ann"),
        lambda number: fill(store, [number % 100], f"{1000 + number // 100}/minute @{64 + number // 100 % 64}"),
    ]
    failed = 0
    for number in range(40_000):
        try:
            grows[stuffing == "windows"](number)
        except StoreUnavailable as error:
            failed += error.concerns == "key"
            if failed > 50:
                break
    assert failed
    store.keep_deadline(0.02)
    with gate_held(store), pytest.raises(StoreTimeout):
        fill(store, [1])
    store.keep_deadline(PATIENCE_S)
    clock.advance("2m")
    for _ in range(40):
        clock.advance("1s")
        with suppress(StoreUnavailable):
            fill(store, [1])
    assert fill(store, range(10, 20)) == [True] * 10
    assert store.bans.active() == []
    store.close()


def test_a_process_that_died_while_it_read_does_not_make_the_file_grow(tmp_path: Path) -> None:
    heard = RecordingObserver()
    store = LmdbStore(tmp_path / "lmdb", map_size=1 << 19)
    store.observe(heard)
    with child(lambda: store._env.read(), signal.SIGKILL):
        pass
    for _ in range(2_000):
        fill(store, range(5), "100000/hour")
    assert heard.kinds == []
    assert store.stats().bytes_held == 1 << 19
    store.close()


def test_keys_that_begin_alike_are_not_reset_together(store: LmdbStore) -> None:
    asked = bucket("1/hour")
    for key in ("ann", "anna", "ann\0", "an"):
        store.hit(((asked, key, 1),))
    assert store.reset("ann") is True
    assert [bool(store.hit(((asked, key, 1),))) for key in ("ann", "anna", "ann\0", "an")] == [
        True,
        False,
        False,
        False,
    ]


async def test_a_new_worker_knows_many_bans_at_its_first_request(tmp_path: Path) -> None:
    first, second = (LmdbStore(tmp_path / "lmdb", **SMALL) for _ in range(2))
    for number in range(500):
        await settle(first.bans.ban(f"user:{number}", MINUTE_US, "by request", "ann"))
    await Limiter(first).ban("192.0.2.0/24", "1h")
    limiter = Limiter(second, on_error="deny")
    answers = [await limiter.hit(key, "5/hour") for key in ("192.0.2.7", "user:17", "user:free")]
    assert [answer.reason for answer in answers] == [Reason.BANNED, Reason.BANNED, Reason.OK]
    assert len([ban async for ban in limiter.bans()]) == 501
    assert len([line async for line in limiter.export_bans()]) == 502
    second.close()
    first.close()


def test_without_the_package_the_message_says_how_to_get_it(tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules["lmdb"] = None
from slidegate import Limiter
Limiter.from_url("lmdb://{tmp_path}")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert 'ConfigurationError: store address: LmdbStore needs the package lmdb: pip install "slidegate[lmdb]"' in (
        ended.stderr
    )
