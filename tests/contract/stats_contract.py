"""The part of the store contract for shared stats: rows that workers publish."""

from slidegate.core import StatsRow

from .harness import StoreHarness, with_store
from .player import settle
from .programs import SECOND_US

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
