"""The part of the store contract for inspecting windows."""

from .harness import StoreHarness, bucket, with_store
from .player import settle


class InspectContract:
    """The tests; see `StoreContract`. Random programs inspect windows too."""

    @with_store()
    async def test_a_look_changes_nothing_and_finds_nothing_of_strangers(self, store: StoreHarness) -> None:
        asked = bucket("5/minute; 100/hour")
        assert [view.used for view in await store.views("ann", asked)] == [0, 0]
        decision = await store.hit((asked, "ann", 3))
        assert await store.views("ann", asked) == await store.views("ann", asked)
        assert [view.used for view in await store.views("bob", asked)] == [0, 0]
        assert await store.refund(decision) is True
        assert await settle(store.raw.inspect("ann", ())) == (store.clock.now_us, store.clock.now_us, [])
