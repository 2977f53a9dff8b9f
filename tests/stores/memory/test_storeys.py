"""The two storeys of a memory store: what is live, what is at rest, and that moving changes no answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import slidegate.stores.memory.cold
import slidegate.stores.memory.store
from slidegate.core import Bucket, parse_limits
from slidegate.core.limits import AnyLimit, Concurrency
from slidegate.stores.memory.store import MemoryStore
from slidegate.stores.memory.tables import Table
from slidegate.testing import FakeClock

from ..transports import RandomContract


def table_of(store: MemoryStore) -> Table:
    (table,) = store._tables.values()
    return table


@pytest.fixture
def _one_live_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slidegate.stores.memory.store, "HOT_WINDOWS", 1)
    monkeypatch.setattr(slidegate.stores.memory.cold, "SHARD_ROWS", 2)


@pytest.mark.usefixtures("_one_live_window")
class TestContractWhileWindowsMove(RandomContract):
    def make_store(self, clock: FakeClock) -> MemoryStore:
        return MemoryStore(clock=clock)


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
