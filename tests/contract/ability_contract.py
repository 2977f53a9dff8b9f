"""The parts of the store contract for prepared questions, permits, shared stats, and processes that share a store."""

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from threading import Barrier
from typing import Final

import pytest

from slidegate import BanPolicy, MemoryStore
from slidegate.core import Bucket, Concurrency, Decision, Question, Reason, StatsRow, Store, parse_address

from .harness import StoreHarness, bucket, with_store
from .player import settle
from .programs import SECOND_US


async def hits(store: Store, question: Question, count: int) -> list[bool]:
    """Ask a question several times; return for each whether it passed."""
    return [bool(await settle(store.ask(question))) for _ in range(count)]


class QuestionsContract:
    """The tests; see `StoreContract`. The defaults, `prepare` which looks nothing up and `ask`, pass them."""

    @with_store()
    async def test_a_prepared_question_is_the_sequence_of_its_checks(self, store: StoreHarness) -> None:
        checks = ((bucket("5/minute"), "ann", 1), (bucket("9/hour", "other"), "bob", 2))
        question = store.raw.prepare(list(checks))
        assert (tuple(question), len(question), question[1]) == (checks, 2, checks[1])
        assert tuple(store.raw.prepare(question)) == checks
        asks = store.raw.ask, store.raw.hit, store.raw.charge
        decisions: list[Decision] = [await settle(ask(question)) for ask in asks]
        for decision in decisions:
            assert tuple(decision.checks) == checks
            copied = pickle.loads(pickle.dumps(decision))
            assert [check[1:] for check in copied.checks] == [check[1:] for check in checks]

    @with_store()
    async def test_bans_of_its_keys_and_subjects_refuse_a_prepared_question(self, store: StoreHarness) -> None:
        checks = ((bucket("9/minute"), "ann", 1), (bucket("9/minute", "other"), "bob", 1))
        address = parse_address("192.0.2.7")
        assert address is not None
        question = store.raw.prepare(checks, ("eve", "192.0.2.7", address))
        for key in ("ann", "bob", "eve", "192.0.2.7", "192.0.2.0/24"):
            assert await hits(store.raw, question, 1) == [True]
            await store.ban(key)
            refused = await settle(store.raw.ask(question))
            assert (refused.reason, refused.ban and refused.ban.key) == (Reason.BANNED, key)
            await store.unban(key)
        await store.ban("dan")
        await store.ban("203.0.113.0/24")
        assert await hits(store.raw, question, 1) == [True]

    @with_store()
    async def test_a_question_that_another_store_prepared_charges_this_one_alone(self, store: StoreHarness) -> None:
        checks = ((bucket("2/minute"), "ann", 1), (bucket("9/minute", "other"), "everyone", 1))
        other = MemoryStore(clock=store.clock)
        for maker in (store.raw, other):
            question = maker.prepare(checks)
            for _ in range(2):  # alternately, so that each store has answered it before
                assert (await settle(store.raw.hit(question))).allowed
                assert other.hit(question).allowed
            assert not await settle(store.raw.hit(question))
            assert not other.hit(question)
            assert await store.reset("ann") is True
            assert not other.hit(question)
            assert other.reset("ann") is True


class PermitsContract:
    """The tests; see `StoreContract`. They are skipped for a store without permits."""

    @with_store(ability="permits_held")
    async def test_units_stay_when_the_permits_of_a_decision_are_released(self, store: StoreHarness) -> None:
        window, held = (bucket("3/minute", "both"), "ann", 1), (Bucket("both", (Concurrency(1),)), "ann", 1)
        decision = await store.hit(window, held)
        if not store.raw.release(decision):  # at once, as the middleware does if the store can
            assert [await store.refund(decision, 1) for _ in range(2)] == [True, False]
        assert not store.raw.release(decision)
        assert store.raw.permits_held() == 0
        assert [state.remaining for state in decision.states] == [2, 1]
        other = await store.hit(window, held)
        assert await store.refund(decision) is True
        assert (other.allowed, store.raw.permits_held()) == (True, 1)
        assert (await store.peek(window)).remaining == 1


ANN, BOB = b"ann00000", b"bob00000"


def row(rollup: str, number: int, value: bytes, kept_s: int = 60) -> StatsRow:
    """Return a row that expires after `kept_s` seconds."""
    return StatsRow(rollup, number, value, kept_s * SECOND_US)


class StatsContract:
    """The tests; see `StoreContract`. They are skipped for a store without shared stats."""

    @with_store(ability="shared_stats")
    async def test_rows_of_all_workers_are_read_by_rollup_and_number(self, store: StoreHarness) -> None:
        assert await settle(store.stats.read("5s", 0, 9)) == []
        mine = [row("5s", 7, b"seven"), row("5s", 300, b"far"), row("5sx", 7, b"x"), row("workers", 0, b"\0\xff")]
        await _write(store, ANN, *mine)
        await _write(store, BOB, row("5s", 7, b""), row("5s", 8, b"eight"))
        assert sorted(await settle(store.stats.read("5s", 7, 8))) == [
            (7, ANN, b"seven"),
            (7, BOB, b""),
            (8, BOB, b"eight"),
        ]
        assert list(await settle(store.stats.read("5s", 9, 300))) == [(300, ANN, b"far")]
        assert list(await settle(store.stats.read("workers", 0, 0))) == [(0, ANN, b"\0\xff")]
        assert list(await settle(store.stats.read("5sx", 0, 7))) == [(7, ANN, b"x")]

    @with_store(ability="shared_stats")
    async def test_a_row_is_replaced_and_taken_back_by_the_worker_that_wrote_it(self, store: StoreHarness) -> None:
        for worker, value in ((ANN, b"old"), (BOB, b"other"), (ANN, b"new")):
            await _write(store, worker, row("5s", 1, value))
        assert sorted(await settle(store.stats.read("5s", 0, 2))) == [(1, ANN, b"new"), (1, BOB, b"other")]
        await _write(store, ANN, row("5s", 1, b"", 0), row("5s", 2, b"", -5))
        assert list(await settle(store.stats.read("5s", 0, 2))) == [(1, BOB, b"other")]

    @with_store(ability="shared_stats")
    async def test_a_row_goes_when_its_time_is_over_and_not_before(self, store: StoreHarness) -> None:
        await _write(store, ANN, row("limits", 0, b"ann", 60))
        await _write(store, BOB, row("limits", 0, b"bob", 1))
        await _write(store, ANN, row("workers", 0, b"ann", 10), row("5s", 1, b"1", 20))
        store.clock.advance("5s")
        await _write(store, BOB, row("workers", 0, b"bob", 10))
        store.clock.advance(us=5 * SECOND_US - 1)
        assert len(await settle(store.stats.read("workers", 0, 0))) == 2
        store.clock.advance(us=1)
        assert list(await settle(store.stats.read("workers", 0, 0))) == [(0, BOB, b"bob")]
        assert list(await settle(store.stats.read("5s", 1, 1))) == [(1, ANN, b"1")]
        store.clock.advance("10s")
        assert await settle(store.stats.read("5s", 1, 1)) == []
        assert list(await settle(store.stats.read("limits", 0, 0))) == [(0, ANN, b"ann")], "it outlives one beside it"

    @with_store(ability="shared_stats")
    async def test_the_time_of_statistics_is_that_of_the_store(self, store: StoreHarness) -> None:
        before_us = await settle(store.stats.time())
        store.clock.advance("3s")
        assert await settle(store.stats.time()) == before_us + 3 * SECOND_US


async def _write(store: StoreHarness, worker: bytes, *rows: StatsRow) -> None:
    for row in rows:
        await settle(store.stats.write(worker, row))


LIMITS: Final = {"50/hour": 50, "500/hour": 500}
"""One exact limit, and one that counts in slices."""
POLICIES: Final = tuple(BanPolicy(f"{amount}/hour", "1h", name=f"after {amount}") for amount in (60, 400))
"""One policy that counts exactly, and one that counts in slices."""
_START_S: Final = 60
_barriers: list[Barrier] = []


class ProcessesContract:
    """The tests; see `StoreContract`. They are skipped for a store that processes cannot share."""

    def opener(self) -> Callable[[], Store] | None:
        """Return a function that opens one initially empty store from several processes, with the real clock.

        Must be picklable, for example ``functools.partial(MyStore, path)``. None if processes cannot share the store.
        """
        return None

    def test_processes_that_hit_at_once_admit_exactly_the_amount(self) -> None:
        counts = self._in_two_processes(_admitted)
        assert [sum(admitted) for admitted in zip(*counts, strict=True)] == [*LIMITS.values()], counts

    def test_processes_that_strike_at_once_make_one_ban_and_only_when_both_have_struck(self) -> None:
        made = self._in_two_processes(_struck)
        assert [sum(bans) for bans in zip(*made, strict=True)] == [1] * len(POLICIES), made

    def _in_two_processes(self, work: Callable[[Store], Awaitable[list[int]]]) -> list[list[int]]:
        """Return what some work counts in each of two processes that start it at once."""
        opens = self.opener()
        if opens is None:
            pytest.skip("the store lacks the ability: opener (processes that share it)")
        context = get_context("spawn")
        start = context.Barrier(2)
        with ProcessPoolExecutor(2, mp_context=context, initializer=_meet_at, initargs=(start,)) as pool:
            return list(pool.map(_work_at_once, (opens, opens), (work, work)))


def _meet_at(start: Barrier) -> None:
    """Initialize a process with the barrier at which all processes wait."""
    _barriers.append(start)


def _work_at_once(opens: Callable[[], Store], work: Callable[[Store], Awaitable[list[int]]]) -> list[int]:
    async def with_own_store() -> list[int]:
        store = opens()
        try:
            return await work(store)
        finally:
            await settle(store.close())

    _barriers[0].wait(_START_S)
    return asyncio.run(with_own_store())


async def _admitted(store: Store) -> list[int]:
    """Return the hits that pass under each limit in this process, while another process hits too."""
    admitted = []
    for limits, amount in LIMITS.items():
        question = store.prepare(((bucket(limits, f"rule-{amount}"), "ann", 1),))
        admitted.append(sum([bool(await settle(store.ask(question))) for _ in range(amount)]))
    return admitted


async def _struck(store: Store) -> list[int]:
    """Return the bans that this process makes under each policy by three quarters of the strikes of one."""
    bans = []
    for policy in POLICIES:
        times = policy.after.amount * 3 // 4
        made = [await settle(store.bans.strike(policy, f"user:{policy.name}", 1, "")) for _ in range(times)]
        bans.append(sum(ban is not None for ban in made))
    return bans
