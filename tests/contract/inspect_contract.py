"""The part of the store contract for inspecting windows and resetting all of them."""

from __future__ import annotations

from slidegate.core import Bucket, Concurrency

from .harness import StoreHarness, bucket, with_store
from .player import settle
from .programs import SECOND_US


class InspectContract:
    """The tests; see `StoreContract`. Random programs inspect and reset windows too."""

    @with_store()
    async def test_slices_of_counts_and_moments_of_times_are_where_units_were_spent(self, store: StoreHarness) -> None:
        start_us = store.clock.now_us - store.clock.now_us % (60 * SECOND_US)
        counted, timed = bucket("100/minute @6", "counted"), bucket("5/minute", "timed")
        for second, cost in ((0, 1), (9, 2), (10, 1), (35, 1)):
            store.clock.set(start_us + 60 * SECOND_US + second * SECOND_US)
            await store.hit((counted, "ann", cost), (timed, "ann", cost))
        counts, times = [(await store.views("ann", rule))[0] for rule in (counted, timed)]
        at = [(part.start_us - start_us) // SECOND_US for part in counts.slices]
        assert at == [30, 40, 50, 60, 70, 80, 90]
        assert [part.units for part in counts.slices] == [0, 0, 0, 3, 1, 0, 1]
        assert {part.end_us - part.start_us for part in counts.slices} == {10 * SECOND_US}
        assert {part.leaves_us - part.start_us for part in counts.slices} == {70 * SECOND_US}
        moments = [((part.start_us - start_us) // SECOND_US - 60, part.units) for part in times.slices]
        assert moments == [(0, 1), (9, 2), (10, 1), (35, 1)]
        assert all(part.end_us == part.start_us for part in times.slices)
        assert (times.used, times.remaining, times.retry_after_us) == (5, 0, 25 * SECOND_US)
        assert (counts.used, counts.remaining, counts.retry_after_us) == (5, 95, 0)

    @with_store()
    async def test_a_look_changes_nothing_and_finds_nothing_of_strangers(self, store: StoreHarness) -> None:
        asked = bucket("5/minute; 100/hour")
        assert [(view.used, view.slices) for view in await store.views("ann", asked)] == [(0, ())] * 2
        decision = await store.hit((asked, "ann", 3))
        assert await store.views("ann", asked) == await store.views("ann", asked)
        assert [view.used for view in await store.views("bob", asked)] == [0, 0]
        assert await store.refund(decision) is True
        assert await settle(store.raw.inspect("ann", ())) == (store.clock.now_us, store.clock.now_us, [])

    @with_store()
    async def test_reset_all_lets_bans_stay(self, store: StoreHarness) -> None:
        await store.ban("eve", None)
        await store.hit((bucket("5/minute"), "ann", 5))
        assert await store.reset_all() is True
        assert (await store.hit((bucket("5/minute"), "eve", 1))).ban is not None

    @with_store(ability="permits_held")
    async def test_reset_all_lets_permits_stay(self, store: StoreHarness) -> None:
        held = Bucket("held", (Concurrency(1),))
        permit = await store.hit((held, "ann", 1))
        await store.hit((bucket("5/minute"), "ann", 5))
        assert await store.reset_all() is True
        assert not await store.hit((held, "ann", 1))
        assert await store.refund(permit) is True
        assert await store.hit((held, "ann", 1))
