"""The part of the store contract for permits beside random programs, which take them, too."""

from slidegate.core import Bucket, Concurrency

from .harness import StoreHarness, bucket, with_store


class PermitsContract:
    """The tests; see `StoreContract`. They are skipped for a store without permits."""

    @with_store(ability="permits_held")
    async def test_the_units_of_a_decision_stay_when_its_permits_are_released_and_return_alone(
        self, store: StoreHarness
    ) -> None:
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
