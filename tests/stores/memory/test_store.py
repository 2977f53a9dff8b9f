"""The memory store: the contract, threads, and how little it keeps."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slidegate.stores.memory.store
import slidegate.stores.memory.tables
from slidegate.core import (
    Bucket,
    ConfigurationError,
    CounterWindow,
    Decision,
    Event,
    Limit,
    Reason,
    TimestampWindow,
    parse_limits,
)
from slidegate.core.windows.rings import Ring, new_window
from slidegate.limiter import Limiter
from slidegate.stores.memory.store import LEAST_VISITS, SWEEP_STEP, MemoryStats, MemoryStore
from slidegate.stores.memory.tables import SHARED_CELLS, Table, cell_number
from slidegate.testing import FakeClock, RecordingObserver
from slidegate.testing.contract import StoreContract
from slidegate.testing.contract.player import Player
from slidegate.testing.contract.programs import Dice
from slidegate.testing.reference.model import verdict_of

from ...hurry import hurried

MINUTE_US = 60_000_000
HOUR_US = 3_600_000_000


def bucket(limits: str, rule: str = "rule") -> Bucket:
    return Bucket(rule, parse_limits(limits))


class TestContract(StoreContract):
    def make_store(self, clock: FakeClock) -> MemoryStore:
        return MemoryStore(clock=clock)


# -- threads, tasks and loops ----------------------------------------------------------------------------------------


@pytest.fixture
def _fine_switching() -> Iterator[None]:
    with hurried(collecting=False):
        yield


def storm(work: Callable[[], int], threads: int = 8) -> int:
    """Run `work` in several threads that start together, and add up what they return."""
    start = threading.Barrier(threads)
    results: list[int] = []

    def run() -> None:
        start.wait()
        results.append(work())

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert len(results) == threads, "a thread ended with an error"
    return sum(results)


def hit_often(store: MemoryStore, asked: Bucket, times: int) -> int:
    checks = ((asked, "ann", 1),)
    return sum(store.hit(checks).allowed for _ in range(times))


def without_lock(store: MemoryStore) -> MemoryStore:
    store._acquire = store._release = lambda *_: True  # type: ignore[assignment, misc]
    store._lock = nullcontext()  # type: ignore[assignment]
    return store


@pytest.mark.usefixtures("_fine_switching")
@pytest.mark.parametrize("amount", [50, 5_000])
def test_eight_threads_admit_exactly_the_amount(amount: int) -> None:
    store = MemoryStore()
    assert storm(lambda: hit_often(store, bucket(f"{amount}/hour"), 20_000)) == amount


@pytest.mark.deep
@pytest.mark.usefixtures("_fine_switching")
@pytest.mark.parametrize(("amount", "hits_each"), [(50_000, 200_000), (1_000, 125_000)])
def test_eight_threads_admit_exactly_the_amount_of_very_many(amount: int, hits_each: int) -> None:
    store = MemoryStore()
    assert storm(lambda: hit_often(store, bucket(f"{amount}/hour"), hits_each)) == amount


def hesitant(ring: type) -> type:
    """Return a ring that lets other threads go first whenever it reads how much is spent."""
    spent = ring.spent

    def read(window: object) -> int:
        value = spent.__get__(window)
        time.sleep(0)  # no pause: it hands the interpreter to another thread
        return value

    return type(f"Hesitant{ring.__name__}", (ring,), {"spent": property(read, spent.__set__)})


@pytest.fixture
def _hesitant_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    times, counts = hesitant(TimestampWindow), hesitant(CounterWindow)

    def new_window(limit: Limit) -> object:
        return times(limit.window_us) if limit.exact else counts(limit.slices, limit.slice_us)

    monkeypatch.setattr(slidegate.stores.memory.tables, "new_count", new_window)


@pytest.mark.usefixtures("_fine_switching", "_hesitant_rings")
@pytest.mark.parametrize("amount", [50, 300])
def test_threads_are_told_apart_by_the_lock_alone(amount: int) -> None:
    store = MemoryStore()
    assert storm(lambda: hit_often(store, bucket(f"{amount}/hour"), 200)) == amount


@pytest.mark.usefixtures("_fine_switching", "_hesitant_rings")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("amount", [50, 300])
def test_without_the_lock_the_same_threads_break_the_bound(amount: int) -> None:
    store = without_lock(MemoryStore())
    with pytest.raises(AssertionError):
        assert storm(lambda: hit_often(store, bucket(f"{amount}/hour"), 200)) == amount


def run_loop(limiter: Limiter, limits: str, tasks: int, hits_each: int) -> int:
    """Hit from several tasks of an event loop of this thread's own."""

    async def one() -> int:
        admitted = 0
        for _ in range(hits_each):
            admitted += (await limiter.hit("ann", limits)).allowed
            await asyncio.sleep(0)
        return admitted

    async def together() -> int:
        return sum(await asyncio.gather(*(one() for _ in range(tasks))))

    return asyncio.run(together())


@pytest.mark.usefixtures("_fine_switching")
@pytest.mark.parametrize("limits", ["50/hour", "500/hour", "50/hour; 500/day"])
def test_two_event_loops_in_two_threads_share_one_limiter(limits: str) -> None:
    limiter = Limiter(MemoryStore())
    amount = parse_limits(limits)[0].amount
    assert storm(lambda: run_loop(limiter, limits, tasks=20, hits_each=50), threads=2) == amount


@pytest.mark.usefixtures("_fine_switching", "_hesitant_rings")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_without_the_lock_two_event_loops_break_the_bound() -> None:
    limiters = (Limiter(without_lock(MemoryStore())) for _ in range(100))
    storms = (storm(partial(run_loop, limiter, "50/hour", tasks=20, hits_each=20), threads=2) for limiter in limiters)
    # On a busy machine one thread may have spent everything before the other begins, so that one storm is not enough.
    with pytest.raises(AssertionError):
        assert all(admitted == 50 for admitted in storms)


@pytest.mark.usefixtures("_fine_switching")
def test_a_reset_in_the_middle_hands_out_one_amount_and_no_more() -> None:
    store, asked, turn = MemoryStore(), bucket("100/hour"), itertools.count()

    def work() -> int:
        if next(turn) == 0:  # the first thread to come
            return -sum(100 for _ in range(100) if store.reset("ann"))
        return hit_often(store, asked, 20_000)

    # What was admitted, less an amount for every reset that found something.
    assert storm(work, threads=6) <= 100
    assert store.reset("ann") is True
    assert hit_often(store, asked, 101) == 100


async def test_a_thousand_tasks_cancelled_at_random_lose_and_leak_nothing(rng: random.Random) -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    limiter = Limiter(store)
    admitted: list[int] = []

    async def work() -> None:
        for _ in range(4):
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
            cost = rng.randrange(1, 4)
            if await limiter.hit("ann", "100000/minute; 500000/hour", cost):
                admitted.append(cost)

    tasks = [asyncio.create_task(work()) for _ in range(1_000)]
    for task in rng.sample(tasks, 700):
        if rng.random() < 0.05:
            await asyncio.sleep(0)
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert 0 < sum(isinstance(result, asyncio.CancelledError) for result in results) <= 700
    peeked = await limiter.peek("ann", "100000/minute; 500000/hour", 0)
    assert [state.limit.amount - state.remaining for state in peeked.states] == [sum(admitted)] * 2
    assert not store._lock.locked()
    clock.advance("2h")
    assert (await limiter.hit("ann", "100000/minute; 500000/hour", 100_000)).remaining == 0


@pytest.mark.usefixtures("_fine_switching")
def test_a_timeout_around_a_hit_leaves_the_lock_free_and_the_others_served() -> None:
    store = MemoryStore()
    limiter = Limiter(store)
    stop = threading.Event()

    def contend() -> int:
        hits = 0
        while not stop.is_set():
            hits += store.hit(((bucket("5/hour", "other"), "eve", 1),)).allowed
        return 0

    async def impatient() -> int:
        admitted = 0
        for _ in range(200):
            try:
                async with asyncio.timeout(0):
                    admitted += (await limiter.hit("ann", "1000000/hour")).allowed
                    await asyncio.sleep(0)
            except TimeoutError:
                continue
        return admitted

    async def waiters() -> int:
        return sum(await asyncio.gather(*(impatient() for _ in range(50))))

    contending = threading.Thread(target=contend)
    contending.start()
    try:
        assert asyncio.run(waiters()) == 50 * 200
    finally:
        stop.set()
        contending.join()
    assert not store._lock.locked()


def test_a_clock_that_fails_leaves_the_lock_free() -> None:
    store, asked = MemoryStore(clock=lambda: 1 // 0), bucket("5/minute")
    decision = MemoryStore(clock=FakeClock()).hit(((asked, "ann", 1),))
    for call in (
        lambda: store.hit(decision.checks),
        lambda: store.peek(decision.checks),
        lambda: store.refund(decision),
    ):
        with pytest.raises(ZeroDivisionError):
            call()
        assert not store._lock.locked()


# -- a long random trace ---------------------------------------------------------------------------------------------


def test_a_long_random_trace_is_answered_as_by_the_reference(rng: random.Random) -> None:
    rules = [parse_limits("5/10s; 100/minute @10"), parse_limits("70/7s @7"), parse_limits("3/second; 64/hour")]
    dice, clock = Dice(rng.randbytes(150_000)), FakeClock()
    moves = [move for _ in range(11_000) if (move := dice.move(rules))]
    asyncio.run(Player(MemoryStore(clock=clock), clock, rules).play(moves))


def test_the_header_seconds_are_enough_for_one_retry(rng: random.Random) -> None:
    clock = FakeClock(10**12)
    store = MemoryStore(clock=clock)
    refusals = 0
    while refusals < 1_000:
        limit = Limit(rng.randrange(1, 200), rng.randrange(1, 100), resolution=rng.randrange(1, 129))
        asked = Bucket(f"rule-{refusals}", [limit])
        while store.hit(((asked, "ann", rng.randrange(1, max(limit.amount // 3, 2))),)):
            clock.advance(us=rng.randrange(limit.window_us // 20))
        refused = store.hit(((asked, "ann", 1),))
        if refused.allowed:
            continue
        refusals += 1
        wait_us, header_s = refused.retry_after_us, refused.retry_after
        assert wait_us is not None
        assert header_s == max(1, -(-wait_us // 1_000_000)) <= -(-(limit.slices + 1) * limit.slice_us // 1_000_000)
        clock.advance(us=header_s * 1_000_000)
        assert store.hit(((asked, "ann", 1),))


# -- several in one demand -------------------------------------------------------------------------------------------


def test_one_window_that_is_asked_twice_has_to_hold_both_costs() -> None:
    clock = FakeClock()
    store, asked = MemoryStore(clock=clock), bucket("10/minute")
    twice = ((asked, "ann", 3), (asked, "ann", 4))
    assert store.peek(twice).allowed
    assert store.hit(twice).allowed
    assert store.peek(((asked, "ann", 0),)).remaining == 3
    refused = store.hit(twice)
    assert (refused.allowed, refused.reason, refused.retry_after_us) == (False, Reason.LIMITED, MINUTE_US)
    clock.advance(us=MINUTE_US - 1)
    assert not store.hit(twice)
    clock.advance(us=1)
    assert store.hit(twice)


def test_costs_that_never_fit_together_are_too_large_together() -> None:
    store, asked = MemoryStore(clock=FakeClock()), bucket("5/minute")
    twice = ((asked, "ann", 3), (asked, "ann", 3))
    for answer in (store.peek(twice), store.hit(twice)):
        assert (answer.allowed, answer.reason, answer.retry_after) == (False, Reason.TOO_LARGE, None)
    assert store.peek(((asked, "ann", 0),)).remaining == 5


def test_a_peek_at_many_windows_that_change_their_ring_keeps_them_apart() -> None:
    store = MemoryStore(clock=FakeClock(10**9))
    limits = [f"{{}}/{days}d" for days in range(1, 9)]
    wide = bucket("; ".join(limit.format(1_000) for limit in limits))
    narrow = bucket("; ".join(limit.format(60) for limit in limits))
    for used in range(1, 9):
        store.hit(((Bucket("rule", [wide.limits[used - 1]]), "ann", used),))
    assert [60 - state.remaining for state in store.peek(((narrow, "ann", 0),)).states] == list(range(1, 9))


def test_no_checks_at_all_pass() -> None:
    store = MemoryStore(clock=FakeClock())
    assert (store.hit(()).allowed, store.peek(()).allowed, store.refund(store.hit(()))) == (True, True, False)


# -- refunds of charges that are elsewhere by now --------------------------------------------------------------------


def test_a_charge_that_was_reset_evicted_or_converted_is_not_refunded() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    wide, narrow = bucket("100/minute"), bucket("5/minute")
    reset, converted = store.hit(((wide, "ann", 1),)), store.hit(((wide, "bob", 1),))
    store.reset("ann")
    store.hit(((wide, "ann", 1), (narrow, "bob", 1)))
    assert store.refund(reset) is store.refund(converted) is False
    evicted = store.hit(((wide, "eve", 1),))
    clock.advance("1h")
    store.hit(((wide, "ann", 1),))
    assert store.refund(evicted) is False


@pytest.mark.parametrize("limits", ["3/10s @1", "3/10s @5", "3/10s"])
def test_a_charge_of_before_a_reset_is_never_refunded_whatever_has_been_let_go_of(
    limits: str, rng: random.Random
) -> None:
    """Each key has a ring of the core beside it, which begins anew with a reset, while the store lets windows go."""
    asked, clock = bucket(limits), FakeClock(100_000_000)
    (limit,) = asked.limits
    assert isinstance(limit, Limit)
    store, keys = MemoryStore(clock=clock), ["ann", "bob", "eve"]
    for _ in range(150):
        for number in range(rng.randrange(4 * SWEEP_STEP)):
            store.hit(((asked, f"other {number}", 1),))
        clock.advance("20s")  # each hit from now on lets some windows go
        rings, charges = {key: new_window(limit) for key in keys}, list[tuple[str, Ring, Decision]]()
        for _ in range(40):
            key, what = rng.choice(keys), rng.random()
            if what < 0.4:
                decision = store.hit(((asked, key, 1),))
                assert decision.allowed == (rings[key].spend(clock(), 3, 1)[3] == 0)
                charges.append((key, rings[key], decision))
            elif what < 0.6:
                store.reset(key)
                rings[key] = new_window(limit)
            elif what < 0.8 and charges:
                key, ring, decision = charges.pop(rng.randrange(len(charges)))
                known = decision.allowed and ring is rings[key] and ring.remove(clock(), decision.now_us, 1)
                assert store.refund(decision) is known
            else:
                clock.advance(us=rng.choice((0, 0, 1, 100_000)))
        clock.advance("20s")


@pytest.mark.parametrize("limits", ["2/10s @1", "2/10s @5", "2/10s"])
def test_a_charge_that_has_aged_out_is_not_refunded_when_its_moment_comes_again(limits: str) -> None:
    clock, rule = FakeClock(100_000_000), bucket(limits)
    store = MemoryStore(clock=clock)
    for number in range(2 * SWEEP_STEP):  # so many are visited before the window of ann
        store.hit(((rule, f"other {number}", 1),))
    aged = store.hit(((rule, "ann", 1),))
    clock.advance("1m")
    store.hit(((rule, "ann", 0),))  # it drops what has aged out
    clock.set(100_000_000)
    assert [store.hit(((rule, "ann", 1),)).allowed for _ in range(3)] == [True, True, False]
    assert store.refund(aged) is False
    assert not store.hit(((rule, "ann", 1),))


def test_a_charge_in_a_shared_cell_is_refunded() -> None:
    store, asked = MemoryStore(max_keys=1, clock=FakeClock()), bucket("2/minute")
    store.hit(((asked, "ann", 1),))
    decision = store.hit(((asked, "bob", 2),))
    assert store.refund(decision) is True
    assert store.hit(((asked, "bob", 2),))


# -- bounded memory --------------------------------------------------------------------------------------------------


def cell_of(store: MemoryStore, key: str) -> int:
    return cell_number(key, store.secret)


def cellmates(store: MemoryStore, number: int) -> list[str]:
    """Return keys that fall into one cell."""
    by_cell: dict[int, list[str]] = defaultdict(list)
    for count in range(10_000_000):
        mates = by_cell[cell_of(store, f"key-{count}")]
        mates.append(f"key-{count}")
        if len(mates) == number:
            return mates
    raise AssertionError("no keys share a cell")


def test_a_flood_of_one_hit_keys_stays_within_max_keys_and_is_told() -> None:
    clock, observer = FakeClock(), RecordingObserver()
    store, asked = MemoryStore(max_keys=1_000, clock=clock), bucket("5/minute")
    store.observe(observer)
    admitted: Counter[int] = Counter()
    for number in range(120_000):
        key = f"client-{number}"
        if store.hit(((asked, key, 1),)) and number >= 1_000:
            admitted[cell_of(store, key)] += 1
    stats = store.stats()
    assert stats == MemoryStats(keys=1_000, evictions=0, shared_hits=119_000)
    assert max(admitted.values()) == 5  # strangers who meet in a cell share its bound, and nobody gets past it
    (table,) = store._tables.values()
    assert sum(map(len, table.rows.shards)) + len(table.cells) <= 1_000 + SHARED_CELLS
    assert observer.kinds == ["keys_shared"]
    assert "all 1000 keys are in use" in observer.events[0].message
    assert dict(observer.events[0].details) == {"max_keys": 1_000}


def test_no_key_passes_its_bound_while_windows_come_and_go(rng: random.Random) -> None:
    clock = FakeClock()
    store = MemoryStore(max_keys=40, clock=clock)
    rules = [bucket("3/10s", "times"), bucket("70/10s @7", "counts")]
    admitted: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for _ in range(40_000):
        clock.advance(us=rng.choice((0, rng.randrange(2_000), rng.randrange(300_000))))
        asked = rng.choice(rules)
        key = f"client-{int(rng.paretovariate(0.5)) % 3_000}"
        cost = 1 if asked.rule == "times" else rng.randrange(1, 30)
        if store.hit(((asked, key, cost),)):
            admitted[asked.rule, key].append((clock.now_us, cost))
        assert store.stats().keys <= 40
    assert store.stats().evictions > 1_000
    assert store.stats().shared_hits > 1_000
    for (rule, key), charges in admitted.items():
        amount = 3 if rule == "times" else 70
        for first_us, _ in charges:
            spent = sum(cost for at_us, cost in charges if first_us <= at_us < first_us + 10_000_000)
            assert spent <= amount, (rule, key)


def test_a_key_leaves_its_cell_with_a_copy_of_it_where_there_is_room_again() -> None:
    clock = FakeClock()
    store, asked = MemoryStore(max_keys=1, clock=clock), bucket("3/minute")
    store.hit(((asked, "ann", 1),))
    clock.advance("30s")
    assert store.hit(((asked, "bob", 2),)).remaining == 1
    clock.advance("45s")
    assert store.hit(((asked, "bob", 0),)).remaining == 1  # in the cell: ann's window goes after this answer
    assert store.stats() == MemoryStats(keys=0, evictions=1, shared_hits=2)
    assert store.hit(((asked, "bob", 1),)).remaining == 0  # the two that are in the cell came along
    assert store.stats() == MemoryStats(keys=1, evictions=1, shared_hits=2)
    clock.advance("14s")
    refused = store.hit(((asked, "bob", 1),))
    assert refused.retry_after_us == 1_000_000
    clock.advance("1s")
    assert store.hit(((asked, "bob", 2),)).remaining == 0


@pytest.mark.parametrize("limits", ["3/minute", "300/minute"])
def test_colliding_keys_may_be_refused_and_never_pass_together(limits: str) -> None:
    clock = FakeClock()
    store, asked = MemoryStore(max_keys=1, clock=clock), bucket(limits)
    amount = asked.limits[0].amount
    first, second, third = cellmates(store, 3)
    store.hit(((asked, first, 1),))
    assert store.hit(((asked, second, amount),))
    refused = store.hit(((asked, third, 1),))
    assert (refused.reason, refused.remaining) == (Reason.LIMITED, 0)
    assert refused.retry_after_us is not None
    assert store.peek(((asked, third, 1),)).retry_after_us == refused.retry_after_us
    clock.advance(us=refused.retry_after_us)
    assert store.hit(((asked, third, 1),))


def test_two_keys_of_one_demand_in_one_cell_have_to_fit_beside_others_and_not_beside_each_other() -> None:
    clock = FakeClock()
    store, asked = MemoryStore(max_keys=1, clock=clock), bucket("5/minute")
    first, second, third = cellmates(store, 3)
    store.hit(((asked, first, 1),))
    both = ((asked, second, 3), (asked, third, 4))
    assert store.peek(both).allowed
    assert store.hit(both).allowed
    assert store.peek(((asked, second, 0),)).remaining == 0  # all seven are in the cell
    for demand in (both, ((asked, second, 1),)):
        refused = store.hit(demand)
        assert (refused.reason, refused.retry_after_us) == (Reason.LIMITED, MINUTE_US)
    clock.advance(us=MINUTE_US - 1)
    assert not store.hit(both)
    clock.advance(us=1)
    assert store.hit(both)


def test_a_full_store_says_what_it_would_do_without_doing_it() -> None:
    store, asked = MemoryStore(max_keys=1, clock=FakeClock()), bucket("5/minute")
    first, second, third = cellmates(store, 3)
    store.hit(((asked, first, 1),))
    together = ((asked, second, 3), (asked, third, 3))
    assert store.peek(together).allowed is store.hit(together).allowed


@given(st.one_of(st.binary(max_size=60), st.binary(min_size=200, max_size=800)))
def test_a_full_store_answers_a_peek_as_the_hit_after_it_and_lets_nobody_pass(rolled: bytes) -> None:
    dice, clock = Dice(rolled), FakeClock()
    store = MemoryStore(max_keys=2, clock=clock)
    rules = [bucket("4/10s @4", "times"), bucket("9/10s @3; 20/25s @2", "counts")]
    admitted: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slidegate.stores.memory.tables, "SHARED_CELLS", 3)  # so that keys meet
        while dice:
            clock.advance(us=dice.pick((0, dice.below(4_000_000), dice.below(20_000_000))))
            asked = {(dice.below(2), dice.below(6)): dice.pick((1, 0, 2, 4)) for _ in range(dice.pick((1, 1, 2, 3)))}
            checks = [(rules[rule], f"client-{key}", cost) for (rule, key), cost in asked.items()]
            for _ in range(6):
                store.hit(())  # what can be let go goes now, and not between peek and hit
            peeked, decision = verdict_of(store.peek(checks)), store.hit(checks)
            assert peeked == verdict_of(decision)
            assert store.stats().keys <= 2
            for charged, key, cost in checks if decision else ():
                admitted[charged.rule, key].append((clock.now_us, cost))
    for (rule, _), charges in admitted.items():
        for limit in rules[rule == "counts"].limits:
            for first_us, _ in charges:
                spent = sum(cost for at_us, cost in charges if first_us <= at_us < first_us + limit.window_us)
                assert spent <= limit.amount


def test_the_cell_moves_with_a_changed_amount() -> None:
    store = MemoryStore(max_keys=1, clock=FakeClock())
    wide, narrow = bucket("100/minute"), bucket("10/minute")
    first, second = cellmates(store, 2)
    store.hit(((wide, first, 50),))
    store.hit(((wide, second, 7),))
    assert store.peek(((narrow, second, 0),)).remaining == 3
    assert store.hit(((narrow, second, 1),)).remaining == 2
    assert store.hit(((wide, second, 1),)).remaining == 91
    assert store.stats().keys == 1


def test_further_events_come_once_a_window() -> None:
    clock, observer = FakeClock(), RecordingObserver()
    store, asked = MemoryStore(max_keys=1, clock=clock), bucket("5/minute")
    store.observe(observer)
    for _ in range(10):
        for key in range(20):
            store.hit(((asked, f"client-{key}", 1),))
        clock.advance("20s")
    assert observer.kinds == ["keys_shared"] * 4


def test_an_observer_that_fails_changes_no_answer() -> None:
    heard: list[Event] = []

    def fails(event: Event) -> None:
        heard.append(event)
        raise RuntimeError("no pager")

    store, asked = MemoryStore(max_keys=1, clock=FakeClock()), bucket("5/minute")
    store.observe(fails)
    after = RecordingObserver()
    store.observe(after)
    assert store.hit(((asked, "ann", 1),)).allowed
    assert store.hit(((asked, "bob", 1),)).allowed
    assert len(heard) == len(after.events) == 1


def test_expired_keys_go_a_few_at_a_time() -> None:
    clock = FakeClock()
    store, asked = MemoryStore(clock=clock), bucket("5/minute")
    for number in range(20_000):
        store.hit(((asked, f"client-{number}", 1),))
    clock.advance("2m")
    hits = 0
    while store.stats().keys > 1:
        before = store.stats().evictions
        store.hit(((asked, "ann", 0),))
        assert store.stats().evictions - before <= SWEEP_STEP
        hits += 1
    assert hits <= 20_000 // SWEEP_STEP + 2
    assert store.stats().evictions >= 20_000


def test_a_sweep_lets_no_live_window_go() -> None:
    clock = FakeClock()
    store, asked = MemoryStore(clock=clock), bucket("100/minute")
    for number in range(500):
        store.hit(((asked, f"client-{number}", 100),))
        clock.advance("1s")
    for _ in range(200):
        store.hit(((asked, "ann", 0),))
    living = [number for number in range(500) if not store.peek(((asked, f"client-{number}", 1),))]
    # A counted minute is held for 65 slices of 0.9375 s; the clock stands at 500 s.
    assert living == [number for number in range(500) if (number * 1_000_000 // 937_500 + 65) * 937_500 > 500_000_000]
    assert store.stats().evictions > 400


def test_a_store_that_nobody_uses_any_more_is_empty_but_for_the_last_key() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    for number in range(200):
        store.hit(((bucket(f"5/{number + 1}s; 70/{number + 1}m", f"rule-{number}"), "ann", 1),))
    last = bucket("5/minute", "last")
    for _ in range(3):  # empty tables are kept for a while
        clock.advance("5h")
        for _ in range(1_000):
            store.hit(((last, "bob", 1),))
    assert store.stats().keys == 1
    assert len(store._tables) == len(store._bound) == 1


@pytest.mark.parametrize("order", ["5/second; 1000/hour", "1000/hour; 5/second"])
def test_idle_keys_of_a_long_window_go_although_a_short_one_empties_again_and_again(order: str) -> None:
    clock = FakeClock()
    store, asked = MemoryStore(clock=clock), bucket(order)
    for number in range(5_000):
        store.hit(((asked, f"client-{number}", 1),))
    for _ in range(2_400):  # 80 minutes; a pass through 5,000 windows takes 79 requests
        clock.advance("2s")
        store.hit(((asked, "ann", 1),))
    assert store.stats().keys <= 2


def test_every_table_gets_its_turn_and_a_call_looks_at_a_few() -> None:
    clock, looks = FakeClock(), Counter[str]()
    store = MemoryStore(clock=clock)
    rules = [bucket("5/second; 70/second @10", f"rule-{number}") for number in range(500)]
    for asked in rules:
        store.hit(((asked, "ann", 1),))

    def visit(table: Table, now_us: int, most: int) -> tuple[int, int]:
        looks[table.rule] += 1
        return unpatched(table, now_us, most)

    unpatched = Table.visit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "visit", visit)
        clock.advance("2s")
        for _ in range(len(rules) * 2 * LEAST_VISITS // SWEEP_STEP):
            before = looks.total()
            store.hit(((rules[0], "bob", 1),))
            assert looks.total() - before <= SWEEP_STEP // LEAST_VISITS
    assert len(looks) == 500
    assert store.stats().keys <= 2


def test_a_table_that_is_used_again_and_again_is_kept_and_one_that_is_not_goes() -> None:
    clock = FakeClock()
    store, brief, other = MemoryStore(clock=clock), bucket("5/second"), bucket("5/second", "other")
    store.hit(((other, "ann", 1),))
    store.hit(((brief, "ann", 1),))
    table = store._tables["rule", (1_000_000, 64), True]
    for _ in range(100):
        clock.advance("3s")
        store.hit(((brief, "ann", 1),))
    assert store._tables == {table.identity: table}


def test_the_first_window_of_a_table_is_let_go_of_in_time() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    store.hit(((bucket("5/day", "slow"), "ann", 1),))
    clock.advance("1s")
    store.hit(((bucket("5/second", "quick"), "ann", 1),))
    clock.advance("1s")
    for _ in range(2):
        store.hit(((bucket("5/day", "slow"), "ann", 1),))
    assert store.stats() == MemoryStats(keys=1, evictions=1, shared_hits=0)


def test_charges_alone_let_go_of_windows_too() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    for number in range(1_000):
        store.charge(((bucket("5/second"), f"client-{number}", 1),))
        clock.advance("100ms")
    assert store.stats().keys < 50


def test_looking_handing_back_and_resetting_make_no_tables() -> None:
    clock = FakeClock()
    store, asked = MemoryStore(clock=clock), bucket("5/minute")
    decision = store.hit(((asked, "ann", 1),))
    for _ in range(3):  # the table goes
        clock.advance("5m")
        store.hit(())
    for number in range(100):
        store.peek(((bucket("5/minute; 70/hour", f"rule-{number}"), "ann", 1),))
    assert store.refund(decision) is False
    assert store.reset("ann") is False
    assert store._tables == store._bound == {}


def test_a_peek_at_two_costs_in_a_window_that_is_not_there_yet_sums_them_up() -> None:
    store, asked = MemoryStore(clock=FakeClock()), bucket("5/minute; 70/hour")
    twice = ((asked, "ann", 3), (asked, "ann", 3))
    peeked = store.peek(twice)
    assert (peeked.reason, peeked.states) == (Reason.TOO_LARGE, store.hit(twice).states)


def test_windows_that_moved_to_the_other_ring_are_let_go_like_all_others() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    wide, narrow = bucket("100/minute"), bucket("10/minute")
    for number in range(100):
        store.hit(((wide, f"client-{number}", 5),))
        store.hit(((narrow, f"client-{number}", 1),))
    assert store.stats().keys == 100
    clock.advance("5m")
    for _ in range(20):
        store.hit(((narrow, "ann", 0),))
        clock.advance("5m")
    assert store.stats().keys <= 1
    assert store.stats().evictions >= 100
    assert store.hit(((wide, "client-1", 100),)).remaining == 0


def test_thousands_of_buckets_are_forgotten_and_their_windows_are_not() -> None:
    store = MemoryStore(clock=FakeClock())
    for number in range(10_000):
        decision = store.hit(((bucket("5/minute"), "ann", 1),))
        assert decision.allowed is (number < 5)
    assert len(store._bound) < 10_000


def test_counters_say_what_is_held() -> None:
    store, asked = MemoryStore(max_keys=2, clock=FakeClock()), bucket("5/minute; 100/hour")
    assert repr(store) == "<MemoryStore 0 of 2 keys>"
    store.hit(((asked, "ann", 1),))
    store.hit(((asked, "bob", 1),))
    assert store.stats() == MemoryStats(keys=2, evictions=0, shared_hits=2)
    assert repr(store) == "<MemoryStore 2 of 2 keys>"


def test_looking_and_handing_back_make_no_windows() -> None:
    store, asked = MemoryStore(clock=FakeClock()), bucket("5/minute")
    store.peek(((asked, "ann", 1),))
    store.refund(store.hit(((asked, "bob", 9),)))
    assert store.reset("eve") is False
    assert store.stats().keys <= 1  # bob's, who was refused


# -- clocks ----------------------------------------------------------------------------------------------------------


def test_steps_of_the_wall_clock_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    steady_ns = FakeClock(10**15)
    monkeypatch.setattr(slidegate.stores.memory.store, "monotonic_ns", steady_ns)
    plain, asked = MemoryStore(), bucket("10/minute")
    answers = []
    for step_s in (0, -3_600, 3_600, 86_400 * 365, -(10**9)):
        moved_ns = 10**18 + step_s * 10**9
        monkeypatch.setattr(time, "time", lambda moved_ns=moved_ns: moved_ns / 10**9)
        monkeypatch.setattr(time, "time_ns", lambda moved_ns=moved_ns: moved_ns)
        answers.append([plain.hit(((asked, "ann", 1),)).retry_after_us for _ in range(6)])
        steady_ns.set(steady_ns() + 10 * 10**9)
    assert answers == [[0] * 6, [0] * 4 + [50_000_000] * 2, [40_000_000] * 6, [30_000_000] * 6, [20_000_000] * 6]


@pytest.mark.parametrize("limits", ["10/minute", "100/minute"])
def test_a_clock_that_stood_still_makes_windows_longer_and_never_shorter(limits: str) -> None:
    clock = FakeClock()
    store, asked = MemoryStore(clock=clock), bucket(limits)
    amount = asked.limits[0].amount
    assert hit_often(store, asked, amount // 2) == amount // 2
    true_us = 600_000_000  # the machine was suspended, and the monotonic clock with it
    assert hit_often(store, asked, amount) == amount - amount // 2
    clock.advance(us=MINUTE_US - 1)
    true_us += MINUTE_US - 1
    assert hit_often(store, asked, amount) == 0
    assert true_us > MINUTE_US


@pytest.mark.parametrize("limits", ["10/minute", "100/minute"])
def test_no_date_and_no_time_zone_matters(limits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(start_s: int) -> list[tuple[bool, int | None]]:
        clock = FakeClock(start_s * 1_000_000)
        store, asked, rng = MemoryStore(clock=clock), bucket(limits), random.Random(7)
        found = []
        for _ in range(300):
            clock.advance(us=rng.randrange(5_000_000))
            decision = store.hit(((asked, "ann", rng.randrange(1, 8)),))
            found.append((decision.allowed, decision.retry_after_us))
        return found

    expected = answers(0)
    minutes = (1_325_239_200, 2_147_483_640, 2_147_483_700, 4_102_444_800)  # Apia's lost day, 2038, 2100
    try:
        for zone in ("UTC", "Pacific/Apia", "Europe/Berlin"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            assert all(answers(start_s) == expected for start_s in minutes)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("start_us", [0, 1, 2**62 // 1_000, 2**62])
@pytest.mark.parametrize("amount", [64, 5_000])
def test_a_clock_that_stands_still_admits_exactly_the_amount(amount: int, start_us: int) -> None:
    store = MemoryStore(clock=FakeClock(start_us))
    assert hit_often(store, bucket(f"{amount}/minute"), 20_000) == amount


def test_time_goes_on_by_itself() -> None:
    store, asked = MemoryStore(), bucket("2/hour")
    first, second = (store.hit(((asked, "ann", 1),)) for _ in range(2))
    assert 0 < first.now_us <= second.now_us
    assert 0 < second.more_after_us <= HOUR_US


# -- making one ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_keys", [0, -1, 1.5, True, "5", None, 10**5 + 0.5])
def test_max_keys_that_cannot_be_are_named(max_keys: object) -> None:
    with pytest.raises(
        ConfigurationError, match=r"max_keys: expected a whole number above 0, for example 100_000, not"
    ):
        MemoryStore(max_keys=max_keys)  # type: ignore[arg-type]


@pytest.mark.parametrize("clock", [0, "monotonic", object()])
def test_a_clock_that_cannot_be_called_is_named(clock: object) -> None:
    with pytest.raises(ConfigurationError, match="clock: expected a function that returns microseconds, not"):
        MemoryStore(clock=clock)  # type: ignore[arg-type]


def test_every_store_has_a_secret_of_its_own() -> None:
    secrets = {MemoryStore().secret for _ in range(10)}
    assert len(secrets) == 10
    assert {len(secret) for secret in secrets} == {32}


def test_a_store_needs_no_thread() -> None:
    before = threading.active_count()
    store = MemoryStore()
    store.hit(((bucket("5/minute"), "ann", 1),))
    store.close()
    store.close()
    assert threading.active_count() == before


def test_a_demand_without_checks_is_answered_at_once_and_does_what_is_due() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    store.hit([(bucket("5/second"), "key", 1)])
    for _ in range(3):
        decision = store.hit((), ("203.0.113.9",))
        assert (decision.allowed, decision.reason, decision.now_us) == (True, Reason.OK, clock())
        assert (decision.checks, decision.readings, decision.charge) == ((), (), ())
        clock.advance("100ms")
    assert store.stats().keys == 1
    clock.advance("1h")
    store.hit(())
    assert store.stats().keys == 0, "what is empty is swept, whoever asks"
    clock.advance(us=-HOUR_US)
    assert store.hit(()).now_us == clock()
    store.bans.ban("203.0.113.9", HOUR_US, "by hand", "somebody")
    assert store.hit((), ("203.0.113.9",)).reason is Reason.BANNED
