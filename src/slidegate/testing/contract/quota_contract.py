"""The part of the store contract about quotas, which start anew at moments of the calendar."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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

Place: TypeAlias = tuple[str, object, str]
"""The rule, the window and the key of a count."""
Asked: TypeAlias = tuple[Place, int, int, int]
"""A place, the amount, the cost, and the end of the period."""


def unix_us(text: str) -> int:
    """Return the Unix time of a moment that is written as in ISO 8601."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND_US


def held(*limits: str | AnyLimit, rule: str = "plan", **modes: int) -> LimitSet:
    """Return a bucket of limits and quotas."""
    return LimitSet(rule, parse_limits(limits), **modes)  # type: ignore[arg-type]


class QuotaPlayer:
    """Plays random moves to a store, and to counts in a dict: the units of each rule, quota and key, and their period.

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
        self.counts: dict[Place, tuple[int, int]] = {}
        self.charged: list[tuple[Decision, list[Asked]]] = []
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
        now_us, asked = self.store.clock.now_us, self._enter(checks)
        decision = await (self.store.charge(*checks) if is_debt else self.store.hit(*checks))
        fits = all(self.counts[place][1] + max(cost, 1) <= amount for place, amount, cost, _ in asked)
        assert decision.allowed is (is_debt or fits)
        if decision.allowed:
            asked = self._chosen(asked, decision)
            for place, _, cost, end_us in asked:
                self.counts[place] = end_us, self.counts[place][1] + cost
            self.charged.append((decision, asked))
        for state, (place, amount, cost, end_us) in zip(decision.states, asked, strict=True):
            spent = self.counts[place][1]
            assert state.remaining == max(amount - spent, 0)
            assert state.reset_after_us == (end_us - now_us if spent else 0)
            lacks = not decision.allowed and spent + max(cost, 1) > amount
            assert state.retry_after_us == (end_us - now_us if lacks else 0)

    async def _refund(self, decision: Decision, charged: list[Asked]) -> None:
        if decision.now_us <= self.reset_us.get(decision.checks[0][1], -1):
            return  # the clock has been set back since before the reset: a refund is not promised until it catches up
        self._enter(decision.checks)
        changed = False
        for place, _, units, end_us in charged:
            now_end_us, spent = self.counts[place]
            if now_end_us == end_us and 0 < units <= spent:
                self.counts[place] = end_us, spent - units
                changed = True
        assert await self.store.refund(decision) is changed

    async def _reset(self, key: str) -> None:
        await self.store.reset(key)
        self.counts = {place: (end_us, 0 if place[2] == key else n) for place, (end_us, n) in self.counts.items()}
        self.charged = [entry for entry in self.charged if entry[0].checks[0][1] != key]
        self.reset_us[key] = self.latest_us

    def _enter(self, checks: Sequence[Check]) -> list[Asked]:
        """Return what is asked of each count, and begin the periods that are new."""
        asked: list[Asked] = []
        for bucket, key, cost in checks:
            for limit in bucket.limits:
                assert isinstance(limit, Quota)
                place = bucket.rule, limit.same_window, key
                end_us, spent = self.counts.get(place, (0, 0))
                new_end_us = limit.period_at(self.store.clock.now_us).end_us
                if new_end_us > end_us:
                    end_us, spent = new_end_us, 0
                self.counts[place] = end_us, spent
                asked.append((place, limit.amount, cost, end_us))
        return asked

    def _chosen(self, asked: Sequence[Asked], decision: Decision) -> list[Asked]:
        """Return what was asked, with the period that the store has chosen where nothing was spent before.

        A store need not remember the period of a count without units, and a clock may have been set back since.
        """
        chosen: list[Asked] = []
        for (place, amount, cost, end_us), state in zip(asked, decision.states, strict=True):
            assert isinstance(state.limit, Quota)
            if self.counts[place][1] == 0 and cost:
                new_end_us = state.limit.period_at(decision.now_us).end_us
                assert decision.now_us + state.reset_after_us in (end_us, new_end_us)
                end_us = decision.now_us + state.reset_after_us
            chosen.append((place, amount, cost, end_us))
        return chosen


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
