"""The part of the store contract about quotas, which start anew at moments of the calendar."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from random import Random
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from ...core.decision import Check, Decision, LimitSet, Reason
from ...core.limits import AnyLimit, parse_limits
from ...core.quotas import Quota
from .harness import StoreHarness, play_to, with_store
from .programs import SECOND_US

HOUR_US = 3_600 * SECOND_US
DAY_US = 24 * HOUR_US


def unix_us(text: str) -> int:
    """Return the Unix time of a moment that is written as in ISO 8601."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND_US


def held(*limits: str | AnyLimit, rule: str = "plan", **modes: int) -> LimitSet:
    """Return a bucket of limits and quotas."""
    return LimitSet(rule, parse_limits(limits), **modes)  # type: ignore[arg-type]


class _Count:
    """What one key has spent under one quota.

    A store need not remember the period of a count without units, which matters where the clock is set back.
    """

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.end_us = self.spent = 0

    def begin(self, now_us: int) -> None:
        """Begin another period, if that is what the calendar says."""
        end_us = self.quota.period_at(now_us).end_us
        if end_us > self.end_us:
            self.end_us, self.spent = end_us, 0

    def charge(self, cost: int, now_us: int, ends_us: int) -> None:
        """Charge units; the store says when they leave, which may be with the new period where there were none."""
        if cost and not self.spent:
            assert ends_us in (self.end_us, self.quota.period_at(now_us).end_us)
            self.end_us = ends_us
        self.spent += cost


Charged: TypeAlias = list[tuple[_Count, int, int]]
"""Counts, the units, and the end of the period."""


class QuotaPlayer:
    """Plays random moves to a store, and to one count for each rule, quota and key.

    Args:
        store: The store.
        dice: What chooses the moves.
    """

    buckets = (
        held(Quota("5/day", zone="Europe/Berlin"), Quota("12/week", starts="sunday"), rule="first"),
        held(Quota("7/day", starts="06:30", zone="America/New_York"), rule="second"),
        held(Quota("20/month", starts=31), rule="second"),
    )

    def __init__(self, store: StoreHarness, dice: Random) -> None:
        self.store = store
        self.dice = dice
        self.counts: dict[tuple[str, AnyLimit, str], _Count] = {}
        self.charged: list[tuple[Decision, Charged]] = []
        self.reset_us: dict[str, int] = {}
        self.latest_us = 0

    async def play(self) -> None:
        """Play thirty moves: hits, debts, refunds, resets and steps of the clock, over several quotas at once."""
        for _ in range(30):
            self.latest_us = max(self.latest_us, self.store.clock.now_us)
            move, key = self.dice.random(), self.dice.choice(("ann", "bob"))
            if move < 0.25:
                self.store.clock.advance(us=self.dice.choice((1, SECOND_US, HOUR_US, self.dice.randrange(3 * DAY_US))))
            elif move < 0.3:
                self.store.clock.advance(us=-self.dice.choice((1, SECOND_US, HOUR_US // 2)))
            elif move < 0.4 and self.charged:
                await self._refund(*self.charged.pop(self.dice.randrange(len(self.charged))))
            elif move < 0.43:
                await self._reset(key)
            else:
                some = self.dice.sample(self.buckets, self.dice.randint(1, 3))
                await self._hit([(bucket, key, self.dice.randint(0, 3)) for bucket in some], is_debt=move < 0.5)

    async def _hit(self, checks: list[Check], is_debt: bool) -> None:
        now_us = self.store.clock.now_us
        asked = [(self._count(bucket, limit, key), cost) for bucket, key, cost in checks for limit in bucket.limits]
        fits = all(count.spent + max(cost, 1) <= count.quota.amount for count, cost in asked)
        decision = await (self.store.charge(*checks) if is_debt else self.store.hit(*checks))
        assert decision.allowed is (is_debt or fits)
        for (count, cost), state in zip(asked, decision.states, strict=True):
            if decision.allowed:
                count.charge(cost, now_us, now_us + state.reset_after_us)
            lacks = not decision.allowed and count.spent + max(cost, 1) > count.quota.amount
            left_us = count.end_us - now_us
            assert state.remaining == max(count.quota.amount - count.spent, 0)
            assert (state.reset_after_us, state.retry_after_us) == (count.spent and left_us, left_us if lacks else 0)
        if decision.allowed:
            self.charged.append((decision, [(count, cost, count.end_us) for count, cost in asked]))

    async def _refund(self, decision: Decision, charged: Charged) -> None:
        if decision.now_us <= self.reset_us.get(decision.checks[0][1], -1):
            return  # the clock has been set back since before the reset: a refund is not promised until it catches up
        changed = False
        for count, units, end_us in charged:
            count.begin(self.store.clock.now_us)
            if count.end_us == end_us and 0 < units <= count.spent:
                count.spent -= units
                changed = True
        assert await self.store.refund(decision) is changed

    async def _reset(self, key: str) -> None:
        await self.store.reset(key)
        for (_, _, whose), count in self.counts.items():
            count.spent = 0 if whose == key else count.spent
        self.charged = [entry for entry in self.charged if entry[0].checks[0][1] != key]
        self.reset_us[key] = self.latest_us

    def _count(self, bucket: LimitSet, quota: AnyLimit, key: str) -> _Count:
        assert isinstance(quota, Quota)
        count = self.counts.setdefault((bucket.rule, quota, key), _Count(quota))
        count.begin(self.store.clock.now_us)
        return count


class QuotasContract:
    """The tests; see `StoreContract`."""

    @with_store()
    async def test_a_quota_starts_anew_where_its_period_ends_and_the_wait_is_exact(self, store: StoreHarness) -> None:
        store.clock.set(unix_us("2101-02-10T12:00:00"))
        asked = (held(Quota("3/month", starts=15)), "ann", 1)
        for left in (2, 1, 0):
            assert (await store.hit(asked)).remaining == left
        refused = await store.hit(asked)
        assert (refused.reason, refused.remaining) == (Reason.LIMITED, 0)
        wait_us = unix_us("2101-02-15T00:00:00") - store.clock.now_us
        assert (refused.retry_after_us, refused.more_after_us, refused.reset_after_us) == (wait_us,) * 3
        store.clock.advance(us=wait_us - 1)
        assert (await store.hit(asked)).retry_after_us == 1
        store.clock.advance(us=1)
        again = await store.hit(asked)
        assert (again.remaining, again.reset_after_us) == (2, 28 * DAY_US)
        assert (await store.hit((asked[0], "ann", 4))).reason is Reason.TOO_LARGE

    @with_store()
    async def test_a_day_of_the_zone_has_23_hours_where_clocks_are_set_forward(self, store: StoreHarness) -> None:
        store.clock.set(unix_us("2101-03-26T23:00:00"))  # midnight in Berlin
        asked = (held(Quota("1/day", zone="Europe/Berlin")), "ann", 1)
        assert (await store.hit(asked)).reset_after_us == 23 * HOUR_US
        assert (await store.hit(asked)).retry_after_us == 23 * HOUR_US

    @with_store()
    async def test_a_question_is_charged_to_windows_and_quotas_or_to_none(self, store: StoreHarness) -> None:
        store.clock.set(unix_us("2101-05-05T23:59:00"))
        both = held("2/second", Quota("3/day"))
        asked, quota, other = (
            (both, "ann", 1),
            (held(Quota("3/day")), "ann", 0),
            (held("1/hour", rule="other"), "ann", 1),
        )
        assert await store.hit(asked, other)
        refused = await store.hit(asked, other)
        assert [state.remaining for state in refused.states] == [1, 2, 0]
        assert await store.hit(asked)
        assert [state.remaining for state in (await store.peek((both, "ann", 0))).states] == [0, 1]
        assert (await store.peek(quota)).remaining == 1
        store.clock.advance("1s")
        assert await store.hit(asked)
        store.clock.advance("1s")
        refused = await store.hit(asked)
        assert [state.retry_after_us for state in refused.states] == [0, 58 * SECOND_US]
        assert [state.remaining for state in refused.states] == [2, 0]
        store.clock.advance("58s")
        assert await store.hit(asked)

    @with_store()
    async def test_a_clock_that_is_set_back_goes_on_counting_in_the_newer_period(self, store: StoreHarness) -> None:
        store.clock.set(unix_us("2101-05-06T00:00:01"))
        asked = (held(Quota("2/day")), "ann", 1)
        await store.hit(asked)
        store.clock.advance(us=-10 * SECOND_US)
        assert (await store.hit(asked)).remaining == 0
        refused = await store.hit(asked)
        assert refused.retry_after_us == DAY_US + 9 * SECOND_US
        store.clock.advance(us=refused.retry_after_us)
        assert (await store.hit(asked)).remaining == 1

    @with_store()
    async def test_a_changed_amount_keeps_its_count_and_another_period_has_its_own(self, store: StoreHarness) -> None:
        store.clock.set(unix_us("2101-05-05T12:00:00"))
        await store.hit((held(Quota("100/month")), "ann", 40))
        assert (await store.peek((held(Quota("50/month")), "ann", 0))).remaining == 10
        assert not await store.hit((held(Quota("40/month")), "ann", 1))
        for other in (Quota("50/month", starts=2), Quota("50/month", zone="Asia/Tokyo"), Quota("50/week")):
            assert (await store.peek((held(other), "ann", 0))).remaining == 50

    @with_store()
    async def test_refusals_that_count_are_charged_to_a_quota(self, store: StoreHarness) -> None:
        store.clock.set(unix_us("2101-05-05T12:00:00"))
        strict = held("1/minute", Quota("5/day"), count_denied=True)
        for left in (4, 3, 2):
            assert [state.remaining for state in (await store.hit((strict, "ann", 1))).states] == [0, left]

    def test_counts_of_quotas_are_those_of_a_slow_model(self) -> None:
        """Hits, debts, refunds, resets and steps of the clock, over several quotas at once."""
        with asyncio.Runner() as runner:

            @settings(deadline=None, max_examples=40)
            @given(st.integers(0, 2**32), st.sampled_from(("2101-03-26T20:00:00", "2104-02-28T12:00:00")))
            def check(seed: int, start: str) -> None:
                runner.run(play_to(self, unix_us(start), lambda store: QuotaPlayer(store, Random(seed)).play()))

            check()
