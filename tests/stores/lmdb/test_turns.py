"""Threads and event loops of one process: one at a time has its turn behind the gate.

A loop waits for nobody, whatever it is asked: a thread may hang, as on a disk, and another process may be stopped. A
thread without a loop waits for the others. All get their turns, however busy the others are.
"""

import asyncio
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

from slidegate import BanPolicy, Decision, Limiter, StoreError
from slidegate.core import Ban, Reason
from slidegate.limiter.aio import answer_of
from slidegate.stores.lmdb import LmdbStore, batching, environment, rows
from slidegate.stores.lmdb.kept import Kept
from slidegate.testing import RecordingObserver

from ...contract.player import settle
from ...contract.store_contract import CHECKS, HOUR_US, QUESTIONS, SHARED_QUESTIONS
from ...hurry import PATIENCE_S, at_once
from ...virtual_time import turns
from ..conftest import Opened
from .processes import SMALL, counts_file, gate_held, open_files

HANGS_S = 1.0
"""A thread that hangs lets go after this time, so that a test fails which waits for it."""


@contextmanager
def thread_hangs(store: Any) -> Iterator[None]:
    is_inside, may_go = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(store._batcher.run, lambda _: (is_inside.set(), may_go.wait(HANGS_S)))
        assert is_inside.wait(PATIENCE_S)
        try:
            yield
        finally:
            may_go.set()
            hanging.result()


# -- no step of a loop is long -----------------------------------------------------------------------------------------


STEP_S = 0.05
ASKED: dict[str, Callable[[Any], Any]] = {
    **QUESTIONS,
    **SHARED_QUESTIONS,
    "count": lambda store: store.bans.count(),
    "observe": lambda store: store.observe(RecordingObserver()),
    "open": lambda store: LmdbStore(store._env.path, **SMALL).close(),
    "open another place": lambda store: LmdbStore(f"{store._env.path}-other", **SMALL).close(),
}


async def listed(limiter: Limiter) -> None:
    async for _ in limiter.bans():
        pass


OF_A_LIMITER: dict[str, Callable[[Limiter], Awaitable[object]]] = {
    "hit of a limiter": lambda limiter: limiter.hit("user:ann", "5/hour"),
    "reset of a limiter": lambda limiter: limiter.reset("user:ann"),
    "ban of a limiter": lambda limiter: limiter.ban("user:eve", "1h"),
    "bans of a limiter": listed,
    "overrides of a limiter": lambda limiter: limiter.overrides(),
    "nothing but to close a limiter": lambda limiter: asyncio.sleep(0),
}


async def in_its_life(ask: Callable[[Limiter], Awaitable[object]], store: Any) -> None:
    async with Limiter(LmdbStore(store._env.path, **SMALL), deadline="20ms") as limiter:
        await ask(limiter)


async def longest_step_s(ask: Callable[[], Any]) -> float:
    """Return the longest time for which the event loop stood still while something was asked."""

    async def asked() -> None:
        with suppress(StoreError):
            await settle(ask())

    asking, times_s = asyncio.ensure_future(asked()), [time.monotonic()]
    for _ in range(40):
        await asyncio.sleep(0.001)
        times_s.append(time.monotonic())
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking
    return max(later_s - earlier_s for earlier_s, later_s in pairwise(times_s))


@pytest.mark.parametrize("name", [*ASKED, *OF_A_LIMITER])
@pytest.mark.parametrize("holds", [thread_hangs, gate_held])
async def test_nothing_that_is_asked_on_a_loop_makes_it_wait(store: Any, name: str, holds: Any) -> None:
    ask, longest_s = ASKED.get(name) or partial(in_its_life, OF_A_LIMITER[name]), STEP_S
    for _ in range(8):  # a busy machine pauses as well, but not each time
        if longest_s >= STEP_S:
            with holds(store):
                longest_s = await longest_step_s(partial(ask, store))
    assert longest_s < STEP_S


async def test_many_networks_that_others_have_banned_are_read_in_steps(
    store: Any, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    bans = [Ban(f"10.{number // 256}.{number % 256}.0/24", "", "ann", 0, 0, None) for number in range(1_000)]
    await settle(opened(store._env.path).bans.load(bans))
    reads, run, read = list[int](), store._env.run, rows.read_ban

    def counted(packed: bytes) -> Ban:
        reads[-1] += 1
        return read(packed)

    monkeypatch.setattr(store._env, "run", lambda *given: reads.append(0) or run(*given))
    monkeypatch.setattr(rows, "read_ban", counted)
    assert not (await settle(store.hit(CHECKS, [(4, 0x0A_03_E7_07)]))).allowed
    assert sum(reads) == 1_000
    assert max(reads) <= 100


def on_a_slow_disk(patch: pytest.MonkeyPatch) -> None:
    """Let what is kept be read and written as slowly as on a disk that is busy."""
    for name in ("read", "_write"):
        do = getattr(Kept, name)
        patch.setattr(Kept, name, lambda *given, do=do: time.sleep(0.3) or do(*given))


@pytest.mark.parametrize("missing", ["counts-*", "gate", "*"])
async def test_files_that_were_deleted_are_made_again_beside_the_loop(
    store: Any, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    await settle(store.bans.ban("user:eve", HOUR_US, "why", "ann"))
    on_a_slow_disk(monkeypatch)
    longest_s = STEP_S
    for _ in range(8):
        if longest_s >= STEP_S:
            for file in store._env.path.glob(missing):
                file.unlink()
            store._env._examine_at_s = 0.0
            longest_s = await longest_step_s(lambda: store.hit(CHECKS))
            decision = await settle(store.hit(CHECKS, ["user:eve"]))
            assert (decision.ban is not None) == (missing != "*"), "it is answered by the new file"
    assert longest_s < STEP_S


async def test_while_files_are_made_again_the_deadline_decides(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = Limiter(store, deadline="20ms", on_error="deny")
    await limiter.hit("user:ann", "5/hour")
    counts_file(store._env.path).unlink()
    store._env._examine_at_s = 0.0
    on_a_slow_disk(monkeypatch)
    assert (await limiter.hit("user:ann", "5/hour")).reason is Reason.UNAVAILABLE
    assert (await Limiter(store, deadline="9s").hit("user:ann", "5/hour")).remaining == 4, "a hit given up is no charge"


@pytest.mark.parametrize("takes_s", [0.0, 0.2])
async def test_files_that_cannot_be_made_again_are_an_error_on_a_loop(
    store: Any, opened: Opened, monkeypatch: pytest.MonkeyPatch, takes_s: float
) -> None:
    """For a moment from when that is known, however long it takes to find out; then until it is found again."""
    check = environment.check_directory
    monkeypatch.setattr(
        environment, "check_directory", lambda *given, **named: time.sleep(takes_s) or check(*given, **named)
    )
    monkeypatch.setattr(environment, "EXAMINE_EVERY_S", 0.1)
    path = store._env.path
    path.rename(path.with_name("moved"))
    path.touch()
    store._env._examine_at_s = 0.0
    asked = await asyncio.gather(*(settle(store.hit(CHECKS)) for _ in range(20)), return_exceptions=True)
    assert all("is a file; expected a directory" in str(error) for error in asked), asked
    path.unlink()
    await asyncio.sleep(0.1)
    opened()  # in this thread, and all is well again
    shutil.rmtree(path)
    store._env._examine_at_s = 0.0
    assert (await settle(store.hit(CHECKS))).remaining == 4


async def test_a_store_is_closed_beside_the_loop_when_all_is_kept(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, policy = opened(), BanPolicy("1/minute")
    on_a_slow_disk(monkeypatch)
    await settle(store.bans.strike(policy, "user:eve", 1, "why"))
    assert await longest_step_s(store.close) < STEP_S
    while open_files(store._env.path):
        await turns(1)
    counts_file(store._env.path).unlink()
    assert (await settle(opened().hit(CHECKS, ["user:eve"]))).ban


def test_under_trio_all_is_kept_when_a_store_is_closed(opened: Opened) -> None:
    """Its loop waits, because nothing could tell it of the end of a thread."""

    async def strike_and_close() -> None:
        store.bans.strike(BanPolicy("1/minute"), "user:eve", 1, "why")
        assert store.close() is None
        assert open_files(store._env.path) == []

    store = opened()
    trio.run(strike_and_close)
    counts_file(store._env.path).unlink()
    assert opened().hit(CHECKS, ["user:eve"]).ban


@pytest.mark.parametrize("missing", [counts_file, lambda path: path / "gate"])
def test_a_store_whose_files_were_deleted_is_closed_at_once(opened: Opened, missing: Callable[[Path], Path]) -> None:
    store = opened()
    store.hit(CHECKS)
    path = store._env.path
    missing(path).unlink()
    store._env._examine_at_s = 0
    assert store.close() is None, "nobody else has to close it later"
    assert open_files(path) == []


@pytest.mark.parametrize("holds", [thread_hangs, gate_held])
async def test_bans_are_counted_by_their_last_number_where_somebody_holds_the_files(store: Any, holds: Any) -> None:
    with holds(store):
        assert store.bans.count() is None
    assert store.bans.count() == 0
    await settle(store.bans.ban("user:eve", HOUR_US, "why", "ann"))
    assert store.bans.count() == 1
    await settle(store.bans.ban("user:bob", HOUR_US, "why", "ann"))
    with holds(store):
        assert store.bans.count() == 1
    assert store.bans.count() == 2


async def test_a_store_that_is_closed_beside_a_thread_that_hangs_closes_its_files_after_it(opened: Opened) -> None:
    store = opened()
    await answer_of(store.hit(CHECKS))
    path = store._env.path
    with thread_hangs(store):
        store.close()
        again = opened()
    again.close()
    while open_files(path):
        await turns(1)
    assert (await answer_of(opened(max_map_size=1 << 21).hit(CHECKS))).remaining == 3


async def test_where_no_thread_can_be_started_a_store_that_is_closed_waits_a_moment_for_one_that_hangs(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "WAIT_S", 0.02)
    monkeypatch.setattr(environment, "in_background", lambda work: None)
    store, before_s = opened(), time.monotonic()
    await answer_of(store.hit(CHECKS))
    with thread_hangs(store):
        assert store.close() is None
        assert time.monotonic() < before_s + HANGS_S / 2
    again = opened()
    assert (await answer_of(again.hit(CHECKS))).remaining == 3
    again.close()
    assert open_files(again._env.path) == []


# -- how long a question waits -----------------------------------------------------------------------------------------


async def ask(limiter: Limiter, way: str) -> Decision:
    if way == "thread":
        return await asyncio.to_thread(limiter.sync.hit, "user:ann", "100/hour")
    return await asyncio.to_thread(anyio.run, limiter.hit, "user:ann", "100/hour", backend=way)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["asyncio", "trio"])
@pytest.mark.parametrize("holds", [thread_hangs, gate_held])
async def test_on_a_loop_the_deadline_decides(store: Any, way: str, holds: Any) -> None:
    limiter, took_s = Limiter(store, deadline="20ms", on_error="deny"), list[float]()
    with holds(store):
        for _ in range(3):
            before_s = time.monotonic()
            assert (await ask(limiter, way)).reason is Reason.UNAVAILABLE
            took_s.append(time.monotonic() - before_s)
    assert min(took_s) < HANGS_S / 2
    limiter = Limiter(store, deadline="10s", on_error="deny")
    assert (await ask(limiter, way)).remaining == 99, "a hit that was given up has charged nothing"


async def test_a_thread_waits_for_others_beyond_its_deadline(store: Any, observer: RecordingObserver) -> None:
    limiter = Limiter(store, deadline="5ms", on_error="deny", observers=[observer])
    with thread_hangs(store):
        asked = [asyncio.create_task(ask(limiter, "thread")) for _ in range(3)]
        done, _ = await asyncio.wait(asked, timeout=0.1)
        assert not done
    assert sorted(decision.remaining for decision in await asyncio.gather(*asked)) == [97, 98, 99]
    assert observer.kinds == []


async def test_a_thread_does_not_wait_for_ever_for_one_that_hangs(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "WAIT_S", 0.05)
    limiter = Limiter(store, deadline="5ms", on_error="deny")
    with thread_hangs(store):
        assert (await ask(limiter, "thread")).reason is Reason.UNAVAILABLE
    assert (await ask(limiter, "thread")).remaining == 99


# -- all get their turns -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threads", "loops", "work_s", "deadline"),
    [
        (1, 1, 0.0, "4s"),
        (4, 1, 0.0, "4s"),
        (0, 2, 0.0, "4s"),
        (2, 2, 0.0, "4s"),
        # A thread waits for the others of its process beyond its deadline, a loop does not.
        (16, 0, 0.002, "50ms"),
        (8, 1, 0.002, "10s"),
    ],
)
def test_busy_threads_and_loops_leave_each_other_turns(
    store: Any,
    observer: RecordingObserver,
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
    loops: int,
    work_s: float,
    deadline: str,
) -> None:
    """A thread lets the interpreter go while it has its turn, and so it nearly always has it where a loop asks.

    One that works between its hits seldom gets the interpreter at once.
    """
    monkeypatch.setattr(batching, "WAIT_S", PATIENCE_S)  # a busy machine needs more than a second for all of them
    limiter = Limiter(store, deadline=deadline, on_error="allow", observers=[observer])
    hits, decisions = [0] * (threads + 8 * loops), list[Decision]()

    def note(number: int, decision: Decision) -> None:
        decisions.append(decision)
        hits[number] += 1
        until_s = time.thread_time() + work_s
        while time.thread_time() < until_s:
            pass

    def in_thread(number: int) -> None:
        while min(hits) < 20:
            note(number, limiter.sync.hit("user:ann", "100/hour"))

    async def in_task(number: int) -> None:
        while min(hits) < 20:
            note(number, await limiter.hit("user:ann", "100/hour"))
            await asyncio.sleep(0)

    async def in_tasks(first: int) -> None:
        await asyncio.gather(*map(in_task, range(first, len(hits), loops)))

    with ThreadPoolExecutor(threads + loops) as pool:
        works = [pool.submit(in_thread, number) for number in range(threads)]
        works += [pool.submit(asyncio.run, in_tasks(threads + number)) for number in range(loops)]
        for work in works:
            work.result()
    assert sum(decision.allowed for decision in decisions) == 100
    assert {*observer.kinds} <= {"exceeded"}


def test_a_loop_that_ends_while_it_waits_for_its_turn_holds_nobody_up(store: Any) -> None:
    async def leave_a_question() -> None:
        store.hit(CHECKS)
        await turns()

    def hit(_: int) -> None:
        while time.monotonic() < before_s + 0.1:
            store.hit(CHECKS)

    with thread_hangs(store):
        asyncio.run(leave_a_question())
    before_s = time.monotonic()
    at_once(hit, threads=1)
    assert time.monotonic() < before_s + 1
