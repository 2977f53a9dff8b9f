"""The part of the store contract for quotas, which reset at calendar boundaries.

Random programs include quotas too; these tests cover cases that programs exclude or rarely reach.
"""

from datetime import UTC, datetime

from slidegate.core import Bucket, Quota, parse_limits

from .harness import StoreHarness, with_store
from .programs import DAY_US, SECOND_US


def plan(quota: Quota) -> Bucket:
    """Return the limit set of one quota."""
    return Bucket("plan", parse_limits(quota))


class QuotasContract:
    """The tests; see `StoreContract`."""

    @with_store()
    async def test_a_clock_that_is_set_back_goes_on_counting_in_the_newer_period(self, store: StoreHarness) -> None:
        store.clock.set(datetime(2101, 5, 6, 0, 0, 1, tzinfo=UTC))
        asked = (plan(Quota("2/day")), "ann", 1)
        await store.hit(asked)
        store.clock.advance(us=-10 * SECOND_US)
        assert (await store.hit(asked)).remaining == 0
        refused = await store.hit(asked)
        assert refused.retry_after_us == DAY_US + 9 * SECOND_US
        store.clock.advance(us=refused.retry_after_us)
        assert (await store.hit(asked)).remaining == 1

    @with_store()
    async def test_a_changed_amount_keeps_its_count_and_another_period_has_its_own(self, store: StoreHarness) -> None:
        store.clock.set(datetime(2101, 5, 5, 12, tzinfo=UTC))
        await store.hit((plan(Quota("100/month")), "ann", 40))
        assert (await store.peek((plan(Quota("50/month")), "ann", 0))).remaining == 10
        assert not await store.hit((plan(Quota("40/month")), "ann", 1))
        for other in (Quota("50/month", starts=2), Quota("50/month", zone="Asia/Tokyo"), Quota("50/week")):
            assert (await store.peek((plan(other), "ann", 0))).remaining == 50
