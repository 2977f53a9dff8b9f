"""The LMDB store: the contract with one store and with two, when a transaction takes place, and operators' commands.

Several processes are exact together, also when some are killed or stopped.
"""

import asyncio
import fcntl
import itertools
import json
import os
import random
import shutil
import signal
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from slidegate import ConfigurationError, Decision, Limiter, Quota
from slidegate.core import Ban, Bucket, Concurrency, Reason, SharedRow, StoreTimeout, StoreUnavailable
from slidegate.core.bans.rows import HEADER
from slidegate.stores.lmdb import LmdbStore
from slidegate.stores.lmdb.batching import LOOK_EVERY
from slidegate.stores.lmdb.counts import LEAD
from slidegate.stores.lmdb.transaction import Transaction, Transactions
from slidegate.stores.lmdb.windows import WindowRows
from slidegate.testing import FakeClock, RecordingObserver

from ...contract import RandomContract, StoreContract
from ...contract.player import listed, settle
from ...contract.programs import MINUTE_US, SECOND_US
from ...contract.store_contract import CHECKS, bucket
from ...hurry import PATIENCE_S, at_once, hurried
from ...remote_stores import RemoteStore
from ...virtual_time import VirtualTime, turns
from ..conftest import Opened
from ..forked import actor, outcome
from .processes import SMALL, counts_file, gate_held, keys_in, open_files, overwrite, python, unshared


class InFiles:
    @pytest.fixture(autouse=True)
    def _root(self, tmp_path: Path) -> Iterator[None]:
        self.root, self.numbers = tmp_path, itertools.count()
        yield
        shutil.rmtree(tmp_path, ignore_errors=True)  # pytest would keep 32 MB of each test; a copy may be under way

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


class TwoStores(RemoteStore):
    """Two stores at one place, which take turns; what each has read before is as in a process of its own."""

    permits_held: Any = None
    """A store without permits: a worker renews its own, and here two would have them."""

    def __init__(self, path: str, clock: FakeClock) -> None:
        self.both = [LmdbStore(path, clock=clock, **SMALL) for _ in "12"]
        self.turns = itertools.cycle(self.both)
        super().__init__(inner=self.both[0])

    def answer(self, question: Callable[..., Any], *arguments: Any) -> Any:
        store: Any = next(self.turns)
        if question == self.bans.listed:
            return listed(store)
        return getattr(store.bans if question.__self__ is self.inner.bans else store, question.__name__)(*arguments)

    def observe(self, observer: Any) -> None:
        for store in self.both:
            store.observe(observer)

    def close(self) -> None:
        for store in self.both:
            store.close()


@pytest.mark.usefixtures("fewer_programs")
class TestContractOverTwoStores(InFiles, RandomContract):
    def make_store(self, clock: FakeClock) -> Any:
        return TwoStores(self.new_path(), clock)


async def test_what_arrives_in_one_turn_is_one_transaction(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    limiter, rounds, tasks = Limiter(store, on_error="deny"), 20, 64

    async def work(number: int) -> int:
        return sum([(await limiter.hit(f"user:{number % 8}", "100000/hour")).allowed for _ in range(rounds)])

    run, begun = store._env.run, list[int]()
    monkeypatch.setattr(store._env, "run", lambda *work: begun.append(1) or run(*work))
    assert sum(await asyncio.gather(*map(work, range(tasks)))) == rounds * tasks
    assert len(begun) <= LOOK_EVERY + rounds + 2
    assert (await limiter.peek("user:0", "100000/hour", 0)).remaining == 100_000 - rounds * tasks // 8


@pytest.mark.parametrize("limits", ["5/minute", "100/minute", Quota("5/day")])
def test_a_refusal_writes_nothing(opened: Opened, limits: Any) -> None:
    ticks, wall = FakeClock(10**12), FakeClock(10**15)
    store, checks = opened(clock=ticks, wall_clock=wall), ((bucket(limits), "ann", 1),)
    while store.hit(checks):
        pass
    written = store._env.counts.lmdb.info()["last_txnid"]
    for _ in range(10):
        ticks.advance(us=3)
        wall.advance(us=7)
        assert not opened(clock=ticks, wall_clock=wall).hit(checks), "which was not asked before"
    assert store._env.counts.lmdb.info()["last_txnid"] == written


def test_what_has_ended_is_looked_for_ten_times_a_second(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is nothing yet, and where what is there ends later."""
    clock, sweep, swept = FakeClock(10**12), Transaction.sweep, list[int]()
    monkeypatch.setattr(Transaction, "sweep", lambda own, most: swept.append(most) or sweep(own, most))
    store = opened(clock=clock)
    for looks, checks in ((2, ()), (4, CHECKS)):
        for _ in range(20):
            store.hit(checks)
            clock.advance("10ms")
        assert len(swept) == looks


async def waited(store: Any) -> Decision:
    return await settle(store.hit(CHECKS))


def fill(store: Any, keys: Sequence[int], limits: str = "5/hour") -> list[bool]:
    limited = bucket(limits)
    return [bool(store.hit(((limited, f"user:{number:>054}", 1),))) for number in keys]


async def test_in_a_full_file_keys_that_are_known_keep_their_limits(opened: Opened) -> None:
    """New ones share cells, and only where there is no room for these either does `on_error` decide, for them alone."""
    observer, known, reasons = RecordingObserver(), Counter[int](), Counter[Reason]()
    limiter = Limiter(opened(max_map_size=1 << 20), on_error="allow", observers=[observer])
    for turn in range(20):
        for key in range(150):
            decision = await limiter.hit(f"known:{key:>050}", "15/hour")
            assert decision.reason is not Reason.UNAVAILABLE, key
            known[key] += decision.allowed
        reasons.update([(await limiter.hit(f"new:{turn}-{number:>050}", "5/hour")).reason for number in range(200)])
    assert {*known.values()} == {15}
    assert reasons.total() - reasons[Reason.UNAVAILABLE] > 1_000
    assert "map_full" in observer.kinds
    assert "keys_shared" not in observer.kinds, "which would ask for a larger max_keys"
    ban = await limiter.ban("known:0", "1h")
    assert ban in [other async for other in limiter.bans()]


def test_two_stores_of_a_process_share_one_environment_and_its_options(opened: Opened) -> None:
    first, second = opened("store"), opened("./store")
    assert [fill(store, [1], "1/hour") for store in (first, second)] == [[True], [False]]
    first.close()
    assert fill(second, [2], "1/hour") == [True]
    with pytest.raises(ConfigurationError, match="use the same options"):
        opened(max_map_size=1 << 25)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="nobody says here which files are open")
@pytest.mark.parametrize("on_loop", [False, True])
def test_a_closed_store_opens_its_files_no_more_and_leaves_its_path_to_others(opened: Opened, on_loop: bool) -> None:
    store = opened()
    path = store._env.path

    async def settled(act: Callable[[], Any]) -> Any:
        return await settle(act())

    def do(act: Callable[[], Any]) -> Any:
        return asyncio.run(settled(act)) if on_loop else act()

    def ask() -> None:
        for ask in (partial(store.hit, CHECKS), lambda: asyncio.run(waited(store))):
            with pytest.raises(StoreUnavailable, match=f"<LmdbStore {str(path)!r}> was closed"):
                ask()

    do(partial(store.hit, CHECKS))
    assert open_files(path)
    do(store.close)
    for _ in range(3):
        ask()
    assert open_files(path) == []
    other = opened(max_map_size=1 << 21)
    ask()
    assert do(partial(other.hit, CHECKS)).remaining == 3
    other._env.kept.keep = [].pop
    with pytest.raises(TypeError):  # as a signal handler may raise
        do(other.close)
    assert open_files(path) == []


def test_a_signal_handler_that_raises_within_a_transaction_leaves_nobody_waiting(opened: Opened) -> None:
    store = opened()
    write, waiting = store._transactions.write, list[Any]()

    async def ask_while_others_do() -> None:
        await waited(store)
        store._batcher._of_thread.jobs.schedule()
        waiting.extend(store.hit(CHECKS) for _ in range(3))
        store._transactions.write = Mock(side_effect=SystemExit)
        await asyncio.sleep(PATIENCE_S)

    with asyncio.Runner() as runner:
        with pytest.raises(SystemExit):
            runner.run(ask_while_others_do())
        store._transactions.write = write
        assert [type(future.exception()) for future in waiting] == [StoreUnavailable] * 3
        assert runner.run(waited(store)).remaining == 3


def test_a_file_with_more_keys_than_allowed_takes_no_others(opened: Opened, observer: RecordingObserver) -> None:
    store = opened(max_keys=9)
    fill(store, range(3))
    store.close()
    store = opened(max_keys=2)
    fill(store, range(2, 5))
    for forget in (WindowRows.reset, WindowRows.remove_strikes):  # what follows in their transaction
        store._batcher.run(lambda own, do: (do(own.windows, "user:ann"), own.hit(CHECKS, ())), forget)
    assert (keys_in(store), observer.kinds) == (3, ["keys_shared"])


async def test_files_that_have_to_be_opened_again_wait_for_another_process_as_a_hit_does(store: Any) -> None:
    store.hit(CHECKS)
    store._env.close_files()  # as after a fork, or where the files were replaced
    with gate_held(store):
        waiting = asyncio.ensure_future(waited(store))
        await turns(100)
        assert not waiting.done()
    assert (await waiting).remaining == 3


@pytest.mark.parametrize("deadlines", [("20ms", "4s"), ("4s", "20ms")])
async def test_a_hit_is_given_up_at_its_own_deadline_for_nothing(store: Any, deadlines: tuple[str, str]) -> None:
    made = {deadline: Limiter(store, deadline=deadline, on_error="deny") for deadline in deadlines}
    short, long = made["20ms"], made["4s"]
    with gate_held(store) as gate:
        waiting = [
            asyncio.create_task(long.hit("ann", "5/hour")),
            asyncio.create_task(asyncio.to_thread(long.sync.hit, "ann", "5/hour")),
        ]
        cancelled = asyncio.create_task(long.hit("ann", "5/hour"))
        assert (await short.hit("ann", "5/hour")).reason is Reason.UNAVAILABLE
        assert (await asyncio.to_thread(short.sync.hit, "ann", "5/hour")).reason is Reason.UNAVAILABLE
        cancelled.cancel()
        assert not any(task.done() for task in waiting)
        fcntl.flock(gate, fcntl.LOCK_UN)
        assert sorted(decision.remaining for decision in await asyncio.gather(*waiting)) == [3, 4]


async def test_closing_ends_all_waits(opened: Opened) -> None:
    store = opened()
    await waited(store)
    with gate_held(store):
        waiting = [asyncio.ensure_future(waited(store)) for _ in range(5)]
        await turns(3)
        store.close()
        await asyncio.wait(waiting, timeout=60)
        assert [type(task.exception()) for task in waiting] == [StoreUnavailable] * 5
    assert (await waited(opened())).remaining == 3, "they have charged nothing"


HELD = Bucket("held", (Concurrency(2),))


def stuff(store: Any, stuffing: str, ban_us: int | None) -> dict[int, Any]:
    """Write bans, windows, permits or statistics until over fifty had no room; return those that had, by number."""
    limits = [f"{1000 + turn}/minute @{64 + turn % 64}" for turn in range(400)]
    grows: dict[str, Callable[[int], object]] = {
        "bans": lambda number: store.bans.ban(f"user:{number}", ban_us, "x" * 256, "ann"),
        "windows": lambda number: fill(store, [number % 100], limits[number // 100]),
        "permits": lambda number: store.hit(((HELD, f"user:{number}", 1),)),
        "stats": lambda number: store.shared_rows.write(b"ann00000", SharedRow("5s", number, b"x" * 256, MINUTE_US)),
    }
    made, failed = dict[int, Any](), 0
    store.bans._batcher.command = store.bans._batcher.run  # which waits for no disk
    for number in range(40_000):
        try:
            made[number] = grows[stuffing](number)
        except StoreUnavailable as error:
            failed += error.concerns == "request"
            if failed > 50:
                return made
    raise AssertionError("the file is not full")


@pytest.mark.parametrize("stuffing", ["bans", "windows", "stats"])
def test_a_full_file_goes_on_when_what_is_in_it_has_ended(opened: Opened, stuffing: str) -> None:
    clock = FakeClock(10**12)
    store = opened(max_map_size=1 << 20, clock=clock)
    assert fill(store, [1], "1/minute") == [True]
    stuff(store, stuffing, MINUTE_US)
    with gate_held(store), pytest.raises(StoreTimeout, match="has held the files for too long"):
        store.hit(CHECKS, (), 0.02)
    store.close()
    store = opened(max_map_size=1 << 20, clock=clock)
    assert not store.peek(((bucket("1/minute"), f"user:{1:>054}", 1),))
    clock.advance("2m")
    for _ in range(400):  # what has ended is let go of, a little at each hit
        clock.advance("100ms")
        with suppress(StoreUnavailable):
            fill(store, [1], "1/minute")  # these units are in no cell that a key of below may begin with
    assert fill(store, range(10, 20)) == [True] * 10
    assert keys_in(store) == 11, "each has a window of its own"
    assert listed(store) == []
    assert counts_file(store._env.path).stat().st_blocks * 512 <= 1 << 20


@pytest.mark.parametrize("growing", ["bans", "windows"])
def test_of_what_a_full_file_keeps_windows_of_known_keys_and_bans_take_a_half(opened: Opened, growing: str) -> None:
    clock = FakeClock(10**12)
    store = opened(max_map_size=1 << 20, max_bans=10**6, clock=clock)
    store.bans._batcher.command = store.bans._batcher.run  # which waits for no disk
    known = 0
    while not store._env.counts.room:
        assert fill(store, [known], "100/hour") == [True]
        known += 1
    used = store._env.counts.used()
    clock.advance("1m")
    grows: dict[str, Callable[[int], object]] = {
        "bans": lambda number: store.bans.ban(f"user:{number}", None, "", "ann"),
        "windows": lambda number: fill(store, [number % known], "100/hour"),
    }
    with pytest.raises(StoreUnavailable, match="is full"):
        deque(map(grows[growing], itertools.count()), maxlen=0)
    with pytest.raises(StoreUnavailable, match="is full"):
        fill(store, [0], "100/hour")
    eighth = (1 << 20) // 8
    assert eighth / 2 < store._env.counts.used() - used <= eighth
    assert LEAD // 2 == 2 << 20, "of a large file"


@pytest.mark.parametrize("stuffing", ["bans", "windows", "permits"])
def test_from_a_full_file_whatever_operators_and_requests_give_back_can_be_taken(opened: Opened, stuffing: str) -> None:
    store = opened(max_map_size=1 << 20, clock=FakeClock(10**12), max_bans=10**6)
    held = store.hit(((HELD, "ann", 1), CHECKS[0]))
    store.bans.ban("198.51.100.0/24", None, "", "ann")
    store.shared_rows.write(b"ann00000", SharedRow("changed", 0, b"x" * 200, MINUTE_US))
    made = stuff(store, stuffing, None)
    if stuffing == "permits":
        with pytest.raises(StoreUnavailable, match="no room"):
            store.shared_rows.write(b"ann00000", SharedRow("5s", 0, bytes(4_097), MINUTE_US))
        store.shared_rows.write(b"ann00000", SharedRow("limits", 0, b"off", MINUTE_US))
        assert len(store.shared_rows.read("limits", 0, 0)) == 1, "an operator's change has room"
        store.renew_permits()
        assert all(store.refund(decision.begin_refund()) for decision in made.values())
    assert store.refund(held.begin_refund())
    assert store.permits_held() == 0
    store.shared_rows.write(b"ann00000", SharedRow("changed", 0, b"", 0))
    assert store.shared_rows.read("changed", 0, 0) == []
    assert store.bans.unban("198.51.100.0/24", "ann")
    if stuffing == "bans":
        assert all(store.bans.unban(f"user:{number}", "ann") for number in made)
    assert store.reset(CHECKS[0][1]) is False, "it was handed back"
    assert store.reset_all() is (stuffing == "windows")
    assert listed(store) == []
    assert fill(store, range(10, 20)) == [True] * 10


def lasting(bans: int) -> list[Ban]:
    return [Ban(f"user:{number}", "", "ann", 0, 10**15, None) for number in range(bans)]


def export(bans: int) -> list[str]:
    return [json.dumps(row) for row in (HEADER, *(ban._asdict() for ban in lasting(bans)))]


@pytest.fixture
def ban_store(opened: Opened, clock: FakeClock) -> Any:
    return opened(clock=clock, max_bans=500)


async def test_an_import_that_ends_half_way_goes_on_when_it_is_repeated(ban_store: Any) -> None:
    time = VirtualTime()  # in which half a minute is nothing
    limiter = Limiter(ban_store, deadline="50ms", on_error="deny")
    importing = asyncio.ensure_future(limiter.import_bans(export(400)))
    while not ban_store.bans.count():
        await turns(1)
    with gate_held(ban_store), pytest.raises(StoreTimeout):
        await importing
    time.end()
    written = ban_store.bans.count()
    assert 0 < written < 400
    assert await limiter.import_bans(export(400)) == ban_store.bans.count() == 400


def test_without_an_event_loop_many_bans_are_imported_too(ban_store: Any, clock: FakeClock) -> None:
    for number in range(300):
        ban_store.bans.ban(f"over:{number}", SECOND_US, "why", "me")
    clock.advance("2s")
    assert ban_store.bans.load(lasting(400)) == len(listed(ban_store)) == 400


def test_events_of_threads_that_ban_at_once_come_once(
    ban_store: Any, observer: RecordingObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = Transactions.tell

    def slowly(own: Transactions) -> None:
        time.sleep(0)  # lets other threads go on
        tell(own)

    monkeypatch.setattr(Transactions, "tell", slowly)
    keys = [[f"user:{thread}-{number}" for number in range(50)] for thread in range(4)]

    def ban(thread: int) -> None:
        for key in keys[thread]:
            ban_store.bans.ban(key, None, "why", "me")

    with hurried():
        at_once(ban, threads=len(keys))
    assert sorted(event.details["key"] for event in observer.events) == sorted(key for some in keys for key in some)


# -- commands of operators, which have more time than requests ---------------------------------------------------------


COMMANDS: dict[str, Callable[[Any], Any]] = {
    "ban": lambda limiter: limiter.ban("user:eve", "1h"),
    "unban": lambda limiter: limiter.unban("user:bob"),
    "reset": lambda limiter: limiter.reset("user:ann"),
    "reset_all": lambda limiter: limiter.reset_all(),
}
MORE: dict[str, Callable[[Any], Any]] = {
    "import_bans": lambda limiter: limiter.import_bans(export(150)),  # more than are written at once
    "a question without a deadline": lambda limiter: settle(limiter.store.hit(CHECKS)),
}


@pytest.fixture
async def limiter(ban_store: Any) -> AsyncIterator[Limiter]:
    async with Limiter(ban_store, deadline="20ms", on_error="deny") as made:
        await made.hit("user:ann", "5/hour")
        await made.ban("user:bob", "1h")
        yield made


async def requests_are_given_up(limiter: Limiter) -> None:
    for _ in range(2):
        assert (await limiter.hit("user:ann", "5/hour")).reason is Reason.UNAVAILABLE


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_command_waits_longer_for_a_writer_than_a_request(limiter: Limiter, name: str, in_thread: bool) -> None:
    do = COMMANDS[name]

    def after_a_request() -> Any:
        limiter.sync.hit("user:ann", "5/hour")  # for which this thread waits 20 ms
        return do(limiter.sync)

    with gate_held(limiter.store):
        working = asyncio.ensure_future(asyncio.to_thread(after_a_request) if in_thread else do(limiter))
        await asyncio.sleep(0)
        await requests_are_given_up(limiter)
        assert not working.done(), working.exception()
    assert await working


@pytest.mark.parametrize("name", [*COMMANDS, *MORE])
async def test_a_command_is_given_up_after_half_a_minute(limiter: Limiter, name: str) -> None:
    time = VirtualTime()
    with gate_held(limiter.store):
        with pytest.raises(StoreTimeout, match=r"no answer within 30 s|has held the files for too long"):
            await (COMMANDS | MORE)[name](limiter)
        assert time.passed_s == pytest.approx(30, abs=0.1)
        await requests_are_given_up(limiter)
        assert time.passed_s == pytest.approx(30, abs=0.1)


# -- several processes -------------------------------------------------------------------------------------------------


def hits(amount: int) -> Any:
    return ((bucket(f"{amount}/hour"), "user:ann", 1),)


@pytest.mark.all
@pytest.mark.parametrize("rounds", [60, pytest.param(400, marks=pytest.mark.deep)])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_processes_that_start_at_once_make_one_environment(tmp_path: Path, is_damaged: bool, rounds: int) -> None:
    for turn in range(rounds):
        directory = tmp_path / f"{turn}"
        if is_damaged:
            LmdbStore(directory).close()
            overwrite(counts_file(directory), *((page * 4_096 + 16, b"\xff" * 144) for page in range(2)))
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


@pytest.mark.all
def test_processes_in_process_namespaces_of_their_own_count_together(tmp_path: Path) -> None:
    before = unshared("--pid", "--fork")
    LmdbStore(tmp_path).close()
    code = """
        asked = ((Bucket("rule", parse_limits("400/hour")), "user:ann", 1),)
        store = LmdbStore(path)
        print(sum(bool(store.hit(asked)) for _ in range(300)))
    """
    with ThreadPoolExecutor(3) as pool:
        assert sum(int(said) for said in pool.map(lambda _: python(code, tmp_path, before=before), range(3))) == 400


@pytest.mark.parametrize(("kills", "amount"), [(25, 5_000), pytest.param(400, 100_000, marks=pytest.mark.deep)])
def test_killed_processes_never_let_more_in(tmp_path: Path, kills: int, amount: int) -> None:
    chance, checks, admitted = random.Random(kills), hits(amount), 0

    def act(writing: int) -> None:
        store = LmdbStore(tmp_path)
        while True:
            os.write(writing, b"+" if store.hit(checks) else b".")

    def kill(pid: int, reading: int) -> int:
        """Kill a process; return how often it has said that it was let in."""
        os.kill(pid, signal.SIGKILL)
        said, code = outcome(pid, reading)
        assert code == -signal.SIGKILL
        return said.count(b"+")

    actors = [actor(act) for _ in range(4)]
    for _ in range(kills):
        time.sleep(chance.uniform(0.001, 0.03))
        number = chance.randrange(len(actors))
        admitted += kill(*actors[number])
        actors[number] = actor(act)
    admitted += sum(kill(*one) for one in actors)
    counted = amount - LmdbStore(tmp_path).peek(checks).remaining  # type: ignore[union-attr]
    # Who was killed between its transaction and its word was counted, and let nobody in.
    assert admitted <= counted <= admitted + kills + 4
