"""The LMDB store: the contract in one process and over two, and when a transaction takes place."""

import asyncio
import fcntl
import itertools
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from slidegate import BanPolicy, Limiter
from slidegate.core import (
    Bucket,
    ConfigurationError,
    Decision,
    Quota,
    Reason,
    StoreTimeout,
    StoreUnavailable,
    parse_limits,
)
from slidegate.stores.lmdb import LmdbStore
from slidegate.stores.lmdb.batching import LOOK_EVERY, TIMEOUT_S
from slidegate.testing import FakeClock, RecordingObserver

from ...contract import StoreContract
from ...contract.harness import bucket
from ...contract.player import settle
from ...virtual_time import turns
from ..transports import RandomContract
from .processes import SMALL, counts_file, gate_held, in_another_process, keys_in
from .remote import Remote, TwoProcesses

MINUTE_US = 60_000_000

# Syncing costs nothing there; a disk would take minutes for what is asked of a store here.
QUICK_DISK = next((place for place in [Path("/dev/shm")] if place.is_dir()), None)


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


class TestContractOverTwoProcesses(InFiles, RandomContract):
    remote: Remote

    @pytest.fixture(autouse=True)
    def _remote(self) -> Iterator[None]:
        self.remote = Remote()
        yield
        self.remote.close()

    def make_store(self, clock: FakeClock) -> Any:
        return TwoProcesses(self.new_path(), self.remote, clock)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    made = LmdbStore(tmp_path / "lmdb", **SMALL)
    yield made
    made.close()


@contextmanager
def gate_held_for_a_moment(store: LmdbStore) -> Iterator[None]:
    with gate_held(store) as gate:
        timer = threading.Timer(0.02, lambda: fcntl.flock(gate, fcntl.LOCK_UN))
        timer.start()
        yield
        timer.join()


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


async def test_a_known_refusal_ends_when_another_process_resets_or_refunds(store: LmdbStore) -> None:
    limiter = Limiter(store, on_error="deny")
    for _ in range(6):
        await limiter.hit("user:ann", "5/hour")
    in_another_process(store, lambda own: own.reset("user:ann"))
    charged = [await limiter.hit("user:ann", "5/hour") for _ in range(6)]
    assert [decision.remaining for decision in charged] == [4, 3, 2, 1, 0, 0]
    in_another_process(store, lambda own: own.refund(charged[2].take_back()))
    assert (await limiter.hit("user:ann", "5/hour")).allowed


@pytest.mark.parametrize("limits", ["5/minute", "100/minute", Quota("5/day")])
def test_a_refusal_writes_nothing(tmp_path: Path, limits: Any) -> None:
    ticks, wall = FakeClock(10**12), FakeClock(10**15)
    store: Any = LmdbStore(tmp_path / "lmdb", clock=ticks, wall_clock=wall, **SMALL)
    asked = ((Bucket("rule", parse_limits(limits)), "ann", 1),)
    while store.hit(asked):
        pass
    written = store._env._opened.lmdb.info()["last_txnid"]
    for _ in range(10):
        ticks.advance(us=3)
        wall.advance(us=7)
        other = LmdbStore(tmp_path / "lmdb", clock=ticks, wall_clock=wall, **SMALL)  # which was not asked before
        assert not other.hit(asked)
        other.close()
    assert store._env._opened.lmdb.info()["last_txnid"] == written
    store.close()


async def waited(store: LmdbStore, checks: Any) -> Decision:
    return await settle(store.hit(checks))


class Ended(FakeClock):
    """A clock that is an iterator, and has come to its end."""

    ends = False

    def __call__(self) -> int:
        return next(iter(())) if self.ends else super().__call__()


async def test_a_clock_that_fails_in_any_way_holds_nobody_else_up(tmp_path: Path) -> None:
    wall, quota = Ended(10**15), ((Bucket("quota", [Quota("5/day")]), "ann", 1),)
    store = LmdbStore(tmp_path / "lmdb", wall_clock=wall, **SMALL)
    asked = ((bucket("5/hour"), "ann", 1),)
    with gate_held(store):
        waiting = [asyncio.ensure_future(waited(store, checks)) for checks in (asked, quota, asked)]
        await asyncio.sleep(0)
        wall.ends = True
    await asyncio.wait(waiting, timeout=60)
    assert isinstance(waiting[1].exception(), RuntimeError)
    assert [waiting[at].result().remaining for at in (0, 2)] == [4, 3]
    assert (await asyncio.wait_for(waited(store, asked), 60)).remaining == 2
    wall.ends = False
    store.close()


def fill(store: LmdbStore, keys: Sequence[int], limits: str = "5/hour") -> list[bool]:
    asked = bucket(limits)
    return [bool(store.hit(((asked, f"user:{number:>054}", 1),))) for number in keys]


async def flood(limiter: Limiter, known: int, fresh: int) -> Counter[Reason]:
    """Ask for known keys, whose limits have to hold, and for new ones in between; return what these were told."""
    admitted, numbers, told = dict.fromkeys(range(known), 0), itertools.count(), Counter[Reason]()
    for _ in range(20):
        for key in admitted:
            decision = await limiter.hit(f"known:{key:>050}", "15/hour")
            assert decision.reason is not Reason.UNAVAILABLE, key
            admitted[key] += decision.allowed
        told.update([(await limiter.hit(f"new:{next(numbers):>050}", "5/hour")).reason for _ in range(fresh)])
    assert set(admitted.values()) == {15}
    ban = await limiter.ban("known:0", "1h")
    assert ban in [other async for other in limiter.bans()]
    return told


async def test_in_a_full_file_keys_that_are_known_keep_their_limits(tmp_path: Path) -> None:
    """New ones share cells, and only where there is no room for these either does `on_error` decide, for them alone."""
    heard = RecordingObserver()
    store = LmdbStore(tmp_path / "lmdb", max_map_size=1 << 20)
    told = await flood(Limiter(store, on_error="allow", observers=[heard]), 150, 200)
    assert told.total() - told[Reason.UNAVAILABLE] > 1_000
    assert "map_full" in heard.kinds
    store.close()


def test_idle_keys_go_in_small_steps(tmp_path: Path) -> None:
    clock = FakeClock()
    store = LmdbStore(tmp_path / "lmdb", clock=clock, **SMALL)
    fill(store, range(500), "5/minute")
    clock.advance("61s")
    for number in range(100):
        fill(store, [10_000 + number], "5/minute")
    assert keys_in(store) == 100
    store.close()


def test_two_stores_of_a_process_share_one_environment(tmp_path: Path) -> None:
    stores = [LmdbStore(path, **SMALL) for path in (tmp_path / "lmdb", tmp_path / "." / "lmdb")]
    assert [fill(store, [1], "1/hour") for store in stores] == [[True], [False]]
    stores[0].close()
    assert fill(stores[1], [2], "1/hour") == [True]
    stores[1].close()


def files_open_in(path: Path) -> list[str]:
    found = list[str]()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the list itself
            found.append(os.readlink(link))
    return [name for name in found if name.startswith(str(path))]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="nobody says here which files are open")
@pytest.mark.parametrize("on_loop", [True, False])
async def test_a_closed_store_opens_its_files_no_more_and_leaves_its_path_to_others(
    tmp_path: Path, on_loop: bool
) -> None:
    path, asked = tmp_path / "lmdb", ((bucket("5/hour"), "ann", 1),)
    store: Any = LmdbStore(path, **SMALL)

    async def on_a_loop(question: Callable[[Any], Any]) -> Any:
        return await settle(question(asked))

    def ask() -> None:
        for question in (store.hit, store.peek, store.charge):
            with pytest.raises(StoreUnavailable, match=f"the store at {path} was closed"):
                asyncio.run(on_a_loop(question)) if on_loop else question(asked)

    await waited(store, asked)
    assert files_open_in(path)
    store.close()
    for _ in range(3):
        await asyncio.to_thread(ask)
    assert files_open_in(path) == []
    other: Any = LmdbStore(path, max_map_size=1 << 21)
    await asyncio.to_thread(ask)
    assert other.hit(asked).remaining == 3
    other.close()
    assert files_open_in(path) == []


def test_a_file_with_more_keys_than_it_may_have_now_takes_no_further_ones(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "lmdb", max_keys=9, **SMALL)
    fill(store, range(3))
    store.close()
    store = LmdbStore(tmp_path / "lmdb", max_keys=2, **SMALL)
    heard = RecordingObserver()
    store.observe(heard)
    fill(store, range(2, 5))
    assert (keys_in(store), heard.kinds) == (3, ["keys_shared"])
    store.close()


def test_one_path_has_one_set_of_options(store: LmdbStore) -> None:
    with pytest.raises(ConfigurationError, match="use the same options"):
        LmdbStore(store._env.path, max_map_size=1 << 25)


async def test_a_hit_that_waits_longer_than_the_deadline_is_given_up_and_not_charged(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "lmdb", **SMALL)
    limiter = Limiter(store, deadline="20ms", on_error="deny")
    with gate_held(store):
        cancelled = asyncio.create_task(limiter.hit("user:ann", "5/hour"))
        await asyncio.sleep(0)
        cancelled.cancel()
        decisions = await asyncio.gather(*(limiter.hit("user:ann", "5/hour") for _ in range(3)))
        assert {decision.reason for decision in decisions} == {Reason.UNAVAILABLE}
    await asyncio.sleep(0.01)
    assert (await asyncio.wait_for(waited(store, ((bucket("5/hour", "hit"), "user:ann", 1),)), 10)).remaining == 4
    store.close()


def test_without_an_event_loop_a_hit_waits_for_the_gate(store: LmdbStore) -> None:
    asked = ((bucket("5/hour"), "user:ann", 1),)
    with gate_held_for_a_moment(store):
        assert store.hit(asked).remaining == 4
    store.keep_deadline(0.02)
    with gate_held(store), pytest.raises(StoreTimeout, match=r"another process has held the files for 0.02 s"):
        store.hit(asked)


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


async def test_files_that_have_to_be_opened_again_wait_for_another_process_as_a_hit_does(store: LmdbStore) -> None:
    asked = ((bucket("5/hour"), "ann", 1),)
    store.hit(asked)
    store._env.close_files()  # as after a fork, or where the files were replaced
    with gate_held(store):
        waiting = asyncio.ensure_future(waited(store, asked))
        await turns(100)
        assert not waiting.done()
    assert (await waiting).remaining == 3


@pytest.fixture(params=["the short one is made first", "the long one is made first"])
def sharing(store: LmdbStore, request: pytest.FixtureRequest) -> tuple[Limiter, Limiter]:
    """Return limiters of one store, with a short deadline and a long one."""
    deadlines = ["20ms", "4s"] if "short" in request.param else ["4s", "20ms"]
    made = {deadline: Limiter(store, deadline=deadline, on_error="deny") for deadline in deadlines}
    return made["20ms"], made["4s"]


async def test_limiters_that_share_a_store_have_a_deadline_each(
    store: LmdbStore, sharing: tuple[Limiter, Limiter]
) -> None:
    short, long = sharing
    with gate_held(store) as gate:
        waiting = [asyncio.create_task(long.hit("user:ann", "5/hour")) for _ in range(2)]
        assert (await short.hit("user:ann", "5/hour")).reason is Reason.UNAVAILABLE
        assert not any(task.done() for task in waiting)
        fcntl.flock(gate, fcntl.LOCK_UN)
        assert sorted(decision.remaining for decision in await asyncio.gather(*waiting)) == [3, 4]


def test_limiters_that_share_a_store_have_a_deadline_each_in_threads_too(
    store: LmdbStore, sharing: tuple[Limiter, Limiter]
) -> None:
    short, long = sharing
    with gate_held(store) as gate, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(long.sync.hit, "user:ann", "5/hour")
        assert short.sync.hit("user:ann", "5/hour").reason is Reason.UNAVAILABLE
        fcntl.flock(gate, fcntl.LOCK_UN)
        assert waiting.result().remaining == 4


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


def test_a_child_can_open_a_store_although_a_thread_was_opening_one(store: LmdbStore, tmp_path: Path) -> None:
    ended = threading.Event()

    def open_and_close() -> None:
        for number in itertools.cycle(range(5)):
            LmdbStore(tmp_path / str(number), **SMALL).close()
            if ended.is_set():
                return

    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(open_and_close)
        try:
            for _ in range(10):
                in_another_process(store, lambda own: keys_in(own) == 0)
        finally:
            ended.set()
        opening.result()


async def test_closing_tells_all_who_wait(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "lmdb", **SMALL)
    asked = ((bucket("5/hour"), "ann", 1),)
    await waited(store, asked)
    with gate_held(store):
        waiting = [asyncio.ensure_future(waited(store, asked)) for _ in range(5)]
        await turns(3)
        store.close()
        await asyncio.wait(waiting, timeout=60)
        assert [type(task.exception()) for task in waiting] == [StoreUnavailable] * 5
    store = LmdbStore(tmp_path / "lmdb", **SMALL)
    assert (await waited(store, asked)).remaining == 3, "they have charged nothing"
    store.close()


async def test_a_full_file_can_be_opened_again_and_has_room_when_its_windows_have_ended(tmp_path: Path) -> None:
    clock = FakeClock()
    options: dict[str, Any] = {"max_map_size": 1 << 20, "clock": clock}
    store = LmdbStore(tmp_path / "lmdb", **options)
    limiter = Limiter(store, on_error="deny")
    for number in range(5_000):
        await limiter.hit(f"user:{number:>050}", "1/minute")
    assert await settle(keys_in(store)) > 500
    store.close()
    store = LmdbStore(tmp_path / "lmdb", **options)
    limiter = Limiter(store, on_error="deny")
    assert (await limiter.hit(f"user:{0:>050}", "1/minute")).reason is Reason.LIMITED
    clock.advance("2m")
    for turn in range(3):
        for number in range(400):
            decision = await limiter.hit(f"later:{turn}-{number:>050}", "1/minute")
            assert decision or turn == 0, (turn, number)  # the old ones are let go of, a few at each hit
        assert turn == 0 or await settle(keys_in(store)) == 400, "each has a window of its own"
        clock.advance("2m")
    assert counts_file(tmp_path / "lmdb").stat().st_blocks * 512 <= 1 << 20
    store.close()


@pytest.mark.parametrize("stuffing", ["bans", "windows"])
def test_a_file_that_takes_no_more_changes_goes_on_when_what_is_in_it_has_ended(tmp_path: Path, stuffing: str) -> None:
    clock = FakeClock(10**12)
    store = LmdbStore(tmp_path / "lmdb", max_map_size=1 << 20, clock=clock)
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
    store.keep_deadline(TIMEOUT_S)
    clock.advance("2m")
    for _ in range(40):
        clock.advance("1s")
        with suppress(StoreUnavailable):
            fill(store, [1])
    assert fill(store, range(10, 20)) == [True] * 10
    assert store.bans.active() == []
    store.close()


def test_keys_that_begin_alike_are_not_reset_together(store: LmdbStore) -> None:
    questions = [((bucket("1/hour"), key, 1),) for key in ("ann", "anna", "ann\0", "an")]
    assert all(map(store.hit, questions))
    assert store.reset("ann") is True
    assert [bool(store.hit(question)) for question in questions] == [True, False, False, False]
