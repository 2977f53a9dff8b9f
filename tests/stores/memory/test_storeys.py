"""The two storeys of a memory store: what is live, what is at rest, and that moving changes no answer."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable

import pytest

import slidegate.stores.memory.cold
import slidegate.stores.memory.store
from slidegate.core import BookedWindow, Bucket, parse_limits
from slidegate.core.kinds.any_limit import AnyLimit
from slidegate.core.kinds.concurrency import Concurrency
from slidegate.core.windows.packed import Row
from slidegate.stores.memory.cold import Rows
from slidegate.stores.memory.store import MemoryStore
from slidegate.stores.memory.tables import Table
from slidegate.testing import FakeClock
from slidegate.testing.contract import StoreContract
from slidegate.testing.contract.player import Player
from slidegate.testing.contract.programs import Dice


def bucket(limits: str, rule: str = "rule", *, wait_s: int = 0, places: int = 0) -> Bucket:
    return Bucket(rule, parse_limits(limits), wait_us=wait_s * 1_000_000, wait_max=places)


@pytest.fixture(params=[0, 1, 2])
def most(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Let stores hold so few live windows that they go down and come up between any two operations."""
    monkeypatch.setattr(slidegate.stores.memory.store, "HOT_WINDOWS", request.param)
    monkeypatch.setattr(slidegate.stores.memory.cold, "SHARD_ROWS", 2)
    return int(request.param)


def table_of(store: MemoryStore) -> Table:
    (table,) = store._tables.values()
    return table


@pytest.fixture
def _one_live_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slidegate.stores.memory.store, "HOT_WINDOWS", 1)
    monkeypatch.setattr(slidegate.stores.memory.cold, "SHARD_ROWS", 2)


@pytest.mark.usefixtures("_one_live_window")
class TestContractWhileWindowsMove(StoreContract):
    def make_store(self, clock: FakeClock) -> MemoryStore:
        return MemoryStore(clock=clock)


@pytest.mark.usefixtures("most")
def test_a_long_random_trace_over_moving_windows_is_answered_as_by_the_reference(rng: random.Random) -> None:
    rules = [parse_limits("5/10s; 100/minute @10"), parse_limits("70/7s @7"), parse_limits("3/second; 64/hour")]
    dice, clock = Dice(rng.randbytes(40_000)), FakeClock()
    moves = [move for _ in range(3_000) if (move := dice.move(rules))]
    asyncio.run(Player(MemoryStore(clock=clock), clock, rules).play(moves))


@pytest.mark.parametrize("limits", ["5/minute", "100/minute", "5/minute; 100/hour"])
def test_a_charge_is_handed_back_after_its_window_went_down_and_came_up(most: int, limits: str) -> None:
    store, asked = MemoryStore(clock=FakeClock()), bucket(limits)
    decision = store.hit(((asked, "ann", 3),))
    for number in range(200):
        store.hit(((asked, f"client-{number}", 1),))
        store.hit(((asked, "ann", 0),))
    assert sum(len(table.windows) for table in store._tables.values()) <= most
    assert store.refund(decision) is True
    assert store.refund(decision) is False
    assert store.peek(((asked, "ann", 0),)).remaining == asked.limits[0].amount


@pytest.mark.parametrize("limits", ["5/minute", "100/minute"])
def test_a_charge_from_before_a_reset_is_not_handed_back_whatever_moved_since(most: int, limits: str) -> None:
    store, asked = MemoryStore(clock=FakeClock()), bucket(limits)
    before = store.hit(((asked, "ann", 1),))
    assert store.reset("ann") is True
    after = store.hit(((asked, "ann", 1),))
    for number in range(most + 20):
        store.hit(((asked, f"client-{number}", 1),))
    assert store.refund(before) is False
    assert store.refund(after) is True


def test_a_window_with_bookings_stays_up_until_they_are_over(most: int) -> None:
    clock = FakeClock()
    store, asked = MemoryStore(clock=clock), bucket("2/minute", wait_s=120, places=5)
    store.hit(((asked, "ann", 2),))
    waited = store.hit(((asked, "ann", 1),))
    assert waited.wait_us == 60_000_000
    for number in range(100):
        store.hit(((asked, f"client-{number}", 1),))
    assert isinstance(table_of(store).windows["ann"], BookedWindow)
    clock.advance("61s")
    for _ in range(10):
        store.hit(((asked, "bob", 0),))
    assert len(table_of(store).windows) <= most
    assert store.peek(((asked, "ann", 0),)).remaining == 1


def test_the_first_hit_of_a_key_makes_no_live_window() -> None:
    store, asked = MemoryStore(), bucket("100/hour")
    store.hit(((asked, "first", 1),))  # the first hit of a bucket binds it to its tables, and goes the long way
    for number in range(1_000):
        store.hit(((asked, f"client-{number}", 1),))
    assert [*table_of(store).windows] == ["first"]
    assert store.stats().keys == 1_001
    assert not any(gc.is_tracked(shard) for shard in table_of(store).rows.shards), "the garbage collector walks these"
    store.hit(((asked, "client-7", 1),))
    assert [*table_of(store).windows] == ["first", "client-7"]


def test_a_flood_that_asks_everything_twice_holds_no_more_live_windows_than_there_may_be(most: int) -> None:
    store, one, two = MemoryStore(), bucket("100/hour"), bucket("100/hour; 5/minute")
    for number in range(300):
        for asked in (one, one, two):
            store.hit(((asked, f"client-{number}", 1),))
    assert sum(len(table.windows) for table in store._tables.values()) <= most


def test_ten_thousand_rules_have_one_dict_of_rows_each() -> None:
    store = MemoryStore()
    for number in range(10_000):
        store.hit(((bucket("5/minute", f"rule-{number}"), "ann", 1),))
    assert sum(len(table.rows.shards) for table in store._tables.values()) == 10_000


def test_rows_are_found_however_often_shards_were_split(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slidegate.stores.memory.cold, "SHARD_ROWS", 4)
    rows, held = Rows(), dict[str, Row]()
    for _ in range(20_000):
        key = f"client-{rng.randrange(3_000)}"
        if rng.random() < 0.3 and key in held:
            del held[key]
            rows.remove(key)
        else:
            held[key] = rng.randbytes(3)
            rows.put(key, held[key])
        assert (rows.get(key), key in rows) == (held.get(key), key in held)
    assert {key: row for shard in rows.shards for key, row in shard.items()} == held
    assert sum(map(len, rows.shards)) == len(held)
    assert len({id(shard) for shard in rows.shards}) == len(rows.shards) > 300
    assert max(map(len, rows.shards)) < 60


def test_keys_of_a_shard_do_not_meet_in_its_dict() -> None:
    rows = Rows()
    for number in range(100_000):
        rows.put(f"client-{number}", 0)
    shard = max(rows.shards, key=len)
    assert len({hash(key) % 4_096 for key in shard}) > len(shard) / 2


class Awaited(str):
    """A key that lets another thread do something first, when it is looked up for the first time."""

    __slots__ = ("before",)
    before: Callable[[], object] | None

    def __hash__(self) -> int:
        before, self.before = self.before, None
        if before is not None:
            before()
        return hash(str(self))

    __eq__ = str.__eq__


@pytest.mark.parametrize("limit", [*parse_limits("1/minute; 100/hour"), Concurrency(1)])
def test_nothing_is_counted_in_a_table_that_was_dropped_while_a_hit_came(limit: AnyLimit) -> None:
    store, asked = MemoryStore(), Bucket("rule", [limit])
    store.refund(store.hit(((asked, "first", 1),)))
    dropped, key = table_of(store), Awaited("ann")
    key.before = lambda: store._drop(dropped)
    assert store.hit(((asked, key, 1),))
    assert table_of(store) is not dropped
    assert store.peek(((asked, "ann", 0),)).remaining == limit.amount - 1


def test_a_step_back_of_the_clock_keeps_charges_apart_in_rows_too(most: int) -> None:
    for limits in ("2/60s", "20/60s @10"):
        clock = FakeClock(100_000_000)
        store, asked = MemoryStore(clock=clock), bucket(limits)
        early = store.hit(((asked, "ann", 1),))
        clock.set(50_000_000)
        for number in range(most + 5):
            store.hit(((asked, f"client-{number}", 1),))
        clock.set(100_000_000)
        late = store.hit(((asked, "ann", 1),))
        assert store.refund(early) is False
        assert store.refund(late) is True
