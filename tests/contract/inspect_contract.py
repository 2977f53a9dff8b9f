"""The part of the store contract for inspecting windows and resetting all of them."""

from slidegate.core import Bucket, Concurrency

from .harness import StoreHarness, bucket, with_store
from .player import settle


class InspectContract:
    """The tests; see `StoreContract`. Random programs inspect and reset windows too."""

    @with_store()
    async def test_a_look_changes_nothing_and_finds_nothing_of_strangers(self, store: StoreHarness) -> None:
        asked = bucket("5/minute; 100/hour")
        assert [view.used for view in await store.views("ann", asked)] == [0, 0]
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
