"""Places of concurrency limits in LMDB: who holds them, how the lease is renewed, and how they come back."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slidegate import ConfigurationError, Limiter, StoreUnavailable
from slidegate.core.decision import Bucket, Decision, Reason
from slidegate.core.kinds.concurrency import Concurrency
from slidegate.core.limits import parse_limits
from slidegate.stores.lmdb import LmdbStore
from slidegate.testing import FakeClock, RecordingObserver
from slidegate.testing.contract.programs import YEAR_2100_US

TWO = Bucket("render", [Concurrency(2)])
WINDOW = Bucket("window", parse_limits("100/minute"))
LEASE_US = 10_000_000


class Workers:
    """Stores on the same file, each with a name of its own, as processes have it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock(YEAR_2100_US)
        self.stores: list[LmdbStore] = []
        self.seen: list[RecordingObserver] = []

    def hire(self, **options: Any) -> LmdbStore:
        store = LmdbStore(self.path, clock=self.clock, map_size=1 << 20, **options)
        self.stores.append(store)
        self.seen.append(RecordingObserver())
        store.observe(self.seen[-1])
        return store

    def rows(self) -> tuple[int, int]:
        """Return how many rows of places and of workers there are."""
        env = self.stores[0]._env
        return self.stores[0]._transactions.read(
            lambda session: (
                session.txn.stat(env.dbs.places)["entries"],
                session.txn.stat(env.dbs.workers)["entries"],
            )
        )


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Workers]:
    made = Workers(tmp_path / "lmdb")
    yield made
    for store in made.stores:
        store.close()


def take(store: LmdbStore, key: str = "ann", *others: tuple[Bucket, str, int]) -> Decision:
    decision = store.hit(((TWO, key, 1), *others))
    assert isinstance(decision, Decision)
    return decision


def test_no_more_than_the_amount_is_held_over_all_workers(crew: Workers) -> None:
    first, second, third = (crew.hire() for _ in range(3))
    held = [take(first), take(second)]
    refused = take(third)
    assert [bool(decision) for decision in held] == [True, True]
    assert (refused.reason, refused.retry_after_us, refused.remaining) == (Reason.LIMITED, None, 0)
    assert third.peek(((TWO, "ann", 1),)).reason is Reason.LIMITED
    bob = take(third, "bob")
    assert bob.remaining == 1
    assert [first.refund(held[0]), first.refund(held[0])] == [True, False]
    held[0] = take(third)
    assert held[0].allowed
    assert not take(first)
    assert [store.places_held() for store in crew.stores] == [0, 1, 2]


def test_a_demand_takes_places_and_units_together_or_neither(crew: Workers) -> None:
    store = crew.hire()
    tight = Bucket("tight", parse_limits("1/minute"))
    both = take(store, "ann", (WINDOW, "ann", 1))
    assert not take(store, "ann", (tight, "ann", 2))
    assert store.places_held() == 1
    second = take(store)
    refused = take(store, "ann", (WINDOW, "ann", 1))
    assert (refused.reason, refused.retry_after_us) == (Reason.LIMITED, None)
    assert store.peek(((WINDOW, "ann", 1),)).remaining == 98
    assert store.refund(both.take_out(0)) is True
    assert take(store, "ann", (WINDOW, "ann", 1)).allowed, "a refusal by places is never given from memory"
    assert second.allowed


def test_nothing_stays_in_the_file_of_requests_that_have_ended(crew: Workers) -> None:
    store = crew.hire()
    held = [take(store, f"user:{number}") for number in range(100)]
    assert crew.rows() == (100, 1)
    assert all(store.refund(decision) for decision in held)
    assert (crew.rows(), store.places_held(), len(store._places.rows)) == ((0, 1), 0, 0)


def test_places_of_a_worker_that_is_gone_come_back_after_the_lease(crew: Workers) -> None:
    gone, here = crew.hire(), crew.hire()
    held = [take(gone), take(gone), take(gone, "bob")]
    crew.clock.advance(us=LEASE_US - 1)
    assert not take(here)
    crew.clock.advance(us=1)
    mine = take(here)
    assert mine.allowed
    assert crew.rows() == (2, 2)
    here.renew_places()
    assert crew.rows() == (1, 1), "nobody asks for the other key, and its places are found all the same"
    assert here.refund(mine) is True
    assert len(held) == 3


def test_renewed_places_stay_taken(crew: Workers) -> None:
    holds, other = crew.hire(), crew.hire()
    held = [take(holds), take(holds)]
    for _ in range(5):
        crew.clock.advance(us=LEASE_US - 1)
        holds.renew_places()
        assert not take(other)
    assert holds.refund(held.pop()) is True
    assert take(other).allowed
    assert crew.seen[0].events == []


def test_a_worker_that_was_stopped_learns_it_before_it_takes_more(crew: Workers) -> None:
    stopped, other = crew.hire(), crew.hire()
    old = [take(stopped), take(stopped)]
    crew.clock.advance(us=LEASE_US)
    taken = take(other)
    assert not take(stopped)
    (event,) = crew.seen[0].events
    assert (event.kind, dict(event.details)) == ("places_lost", {"lost": 1, "back": 1})
    assert stopped.places_held() == 1
    assert sorted([stopped.refund(decision) for decision in old]) == [False, True]
    again = take(stopped)
    assert again.allowed
    assert not take(stopped)
    assert other.refund(taken) is True
    assert take(stopped).allowed


def test_a_stopped_worker_is_told_once_by_the_renewal_that_finds_out(crew: Workers) -> None:
    stopped, other = crew.hire(), crew.hire()
    old = [take(stopped), take(stopped)]
    crew.clock.advance(us=LEASE_US)
    taken = take(other)
    for _ in range(3):
        stopped.renew_places()
    assert [event.details for event in crew.seen[0].events] == [{"lost": 1, "back": 1}]
    assert (len(old), taken.allowed) == (2, True)


def test_a_lost_place_is_put_back_when_there_is_room_again(crew: Workers) -> None:
    stopped, other = crew.hire(), crew.hire()
    old = [take(stopped), take(stopped)]
    crew.clock.advance(us=LEASE_US)
    taken = [take(other), take(other)]
    assert not take(stopped)
    assert stopped.places_held() == 0
    assert [other.refund(decision) for decision in taken] == [True, True]
    stopped.renew_places()
    assert [event.details for event in crew.seen[0].events] == [{"lost": 2, "back": 0}, {"lost": 0, "back": 2}]
    assert not take(other)
    assert [stopped.refund(decision) for decision in old] == [True, True]


def test_a_place_that_nobody_can_hand_back_is_given_up_at_the_next_renewal(crew: Workers) -> None:
    holds, other = crew.hire(), crew.hire()
    kept = take(holds)
    take(holds)  # its decision is gone at once
    gc.collect()
    assert holds.places_held() == 1
    assert not take(other)
    holds.renew_places()
    assert take(other).allowed
    assert kept.allowed


def test_a_reset_leaves_places_taken(crew: Workers) -> None:
    store = crew.hire()
    held = [take(store), take(store)]
    store.reset("ann")
    assert not take(store)
    assert [store.refund(decision) for decision in held] == [True, True]
    assert take(store).remaining == 1


def test_a_child_holds_no_places_of_its_parent(crew: Workers) -> None:
    store = crew.hire()
    held = [take(store), take(store)]
    child = os.fork()
    if not child:
        code = 1
        try:
            mine = take(store)
            code = 10 + store.places_held() + 2 * bool(mine.allowed)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 10
    assert [store.refund(decision) for decision in held] == [True, True]


def test_a_full_file_hands_places_back_and_takes_them_again(tmp_path: Path) -> None:
    crew = Workers(tmp_path / "lmdb")
    store = LmdbStore(crew.path, clock=crew.clock, map_size=2**17, max_map_size=2**17)
    crew.stores.append(store)
    try:
        held = [take(store), take(store)]
        hour = Bucket("hour", parse_limits("1000/hour"))
        full, number = RecordingObserver(), 0
        store.observe(full)
        while not any(event.kind == "map_full" for event in full.events):
            store.hit(((hour, f"user:{number}", 1),))
            number += 1
            assert number < 20_000
        taken: list[Decision] = []
        with pytest.raises(StoreUnavailable, match="full") as failed:  # which the failure policy answers
            taken.extend(take(store, f"other:{number}") for number in range(50_000))
        assert failed.value.concerns == "key"
        store.renew_places()
        assert [store.refund(decision) for decision in (*held, *taken)] == [True] * (2 + len(taken))
        assert (crew.rows()[0], store.places_held()) == (0, 0)
        assert take(store).allowed
    finally:
        store.close()


@pytest.mark.parametrize("durability", ["fast", "safe"])
async def test_a_lease_is_renewed_without_being_asked(tmp_path: Path, durability: str) -> None:
    address = f"lmdb://{tmp_path / 'lmdb'}?place_lease=1s&durability={durability}"
    async with Limiter.from_url(address, deadline=10) as limiter:
        store = limiter.store
        assert isinstance(store, LmdbStore)
        answer = store.hit(((TWO, "ann", 1),))
        decision = answer if isinstance(answer, Decision) else await answer
        ended_us = store._places.ends_us
        async with asyncio.timeout(20):
            while store._places.ends_us == ended_us:  # noqa: ASYNC110 - a timer of the store changes it
                await asyncio.sleep(0.01)
        assert decision.allowed
        await limiter.refund(decision)


@pytest.mark.parametrize("lease", ["0.5s", "11m", "soon", 0, None])
def test_a_lease_that_cannot_work_is_refused(tmp_path: Path, lease: Any) -> None:
    with pytest.raises(ConfigurationError, match="place_lease"):
        LmdbStore(tmp_path / "lmdb", place_lease=lease)


def test_a_failed_transaction_takes_and_leaves_nothing(crew: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    store = crew.hire()
    held = take(store)

    def fail(txn: object) -> None:
        raise OSError("the disk is gone")

    for attempt in ("take", "leave", "lapse"):
        if attempt == "lapse":
            crew.clock.advance(us=LEASE_US)
        with monkeypatch.context() as patched:
            commit = store._env.commit
            patched.setattr(store._env, "commit", lambda txn: (store._env.abort(txn), fail(txn)))
            with pytest.raises(Exception, match="the disk is gone"):
                store.refund(held) if attempt == "leave" else take(store)
        assert store._env.commit == commit
        gc.collect()
        assert (store.places_held(), store._places.rows[next(iter(store._places.rows))].written) == (1, 1)
    second = take(store)
    assert second.allowed
    assert not take(store)
    assert [store.refund(held), store.refund(second)] == [True, True]
    assert crew.rows()[0] == 0
