"""The part of the store contract about quotas, which start anew at moments of the calendar."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from ...core.decision import Bucket, Check, Decision, Reason
from ...core.limits import AnyLimit, Quota, parse_limits
from ..clock import FakeClock
from .desk import SECOND_US, Desk, at_a_desk
from .player import settle

HOUR_US = 3_600 * SECOND_US
DAY_US = 24 * HOUR_US

Place: TypeAlias = tuple[str, object, str]
"""The rule, the window and the key of a count."""
Asked: TypeAlias = tuple[Place, int, int, int]
"""A place, the amount, the cost, and the end of the period."""


def unix_us(text: str) -> int:
    """Return the Unix time of a moment that is written as in ISO 8601."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND_US


def held(*limits: str | AnyLimit, rule: str = "plan", **modes: int) -> Bucket:
    """Return a bucket of limits and quotas."""
    return Bucket(rule, parse_limits(limits), **modes)  # type: ignore[arg-type]


class QuotaModel:
    """Counts in dicts: one number for each rule, quota and key, and the end of its period."""

    def __init__(self) -> None:
        self.counts: dict[Place, tuple[int, int]] = {}

    def enter(self, checks: Sequence[Check], now_us: int) -> Sequence[Asked]:
        """Return (place, amount, cost, end of the period) of every quota of a demand, each in its period of now."""
        asked = []
        for bucket, key, cost in checks:
            for limit in bucket.limits:
                assert isinstance(limit, Quota)
                place = bucket.rule, limit.same_window, key
                end_us, spent = self.counts.get(place, (0, 0))
                new_end_us = limit.period_at(now_us).end_us
                if new_end_us > end_us:
                    end_us, spent = new_end_us, 0
                self.counts[place] = end_us, spent
                asked.append((place, limit.amount, cost, end_us))
        return asked

    def adopt(self, asked: Sequence[Asked], decision: Decision, now_us: int) -> Sequence[Asked]:
        """Return what was asked, with the period that the store has chosen where nothing was spent before.

        A store need not remember the period of a count without units, and a clock may have been set back since.
        """
        adopted: list[Asked] = []
        for (place, amount, cost, end_us), state in zip(asked, decision.states, strict=True):
            assert isinstance(state.limit, Quota)
            if self.counts[place][1] == 0 and cost:
                chosen_us = now_us + state.reset_after_us
                assert chosen_us in (end_us, state.limit.period_at(now_us).end_us)
                self.counts[place] = chosen_us, 0
            adopted.append((place, amount, cost, self.counts[place][0]))
        return adopted

    def forget(self, key: str) -> None:
        """Forget what a key has spent."""
        for place, (end_us, _) in self.counts.items():
            if place[2] == key:
                self.counts[place] = end_us, 0

    def add(self, places: Sequence[tuple[Place, int, int]]) -> bool:
        """Add units to the counts that are in the period still; return whether any was."""
        changed = False
        for place, units, of_end_us in places:
            end_us, spent = self.counts.get(place, (0, 0))
            if end_us == of_end_us and spent + units >= 0 and units:
                self.counts[place] = end_us, spent + units
                changed = True
        return changed


class QuotasContract:
    """The tests; see `StoreContract`."""

    @at_a_desk
    async def test_a_quota_starts_anew_where_its_period_ends_and_the_wait_is_exact(self, desk: Desk) -> None:
        desk.clock.set(unix_us("2101-02-10T12:00:00"))
        asked = (held(Quota("3/month", starts=15)), "ann", 1)
        for left in (2, 1, 0):
            assert (await desk.hit(asked)).remaining == left
        refused = await desk.hit(asked)
        assert (refused.reason, refused.remaining) == (Reason.LIMITED, 0)
        wait_us = unix_us("2101-02-15T00:00:00") - desk.clock.now_us
        assert (refused.retry_after_us, refused.more_after_us, refused.reset_after_us) == (wait_us,) * 3
        desk.clock.advance(us=wait_us - 1)
        assert (await desk.hit(asked)).retry_after_us == 1
        desk.clock.advance(us=1)
        again = await desk.hit(asked)
        assert (again.remaining, again.reset_after_us) == (2, 28 * DAY_US)
        assert (await desk.hit((asked[0], "ann", 4))).reason is Reason.TOO_LARGE

    @at_a_desk
    async def test_a_day_of_the_zone_has_23_hours_where_clocks_are_set_forward(self, desk: Desk) -> None:
        desk.clock.set(unix_us("2101-03-26T23:00:00"))  # midnight in Berlin
        asked = (held(Quota("1/day", zone="Europe/Berlin")), "ann", 1)
        assert (await desk.hit(asked)).reset_after_us == 23 * HOUR_US
        assert (await desk.hit(asked)).retry_after_us == 23 * HOUR_US

    @at_a_desk
    async def test_a_demand_is_charged_to_windows_and_quotas_or_to_none(self, desk: Desk) -> None:
        desk.clock.set(unix_us("2101-05-05T23:59:00"))
        both = held("2/second", Quota("3/day"))
        asked, quota, other = (
            (both, "ann", 1),
            (held(Quota("3/day")), "ann", 0),
            (held("1/hour", rule="other"), "ann", 1),
        )
        assert await desk.hit(asked, other)
        refused = await desk.hit(asked, other)
        assert [state.remaining for state in refused.states] == [1, 2, 0]
        assert await desk.hit(asked)
        assert [state.remaining for state in (await desk.peek((both, "ann", 0))).states] == [0, 1]
        assert (await desk.peek(quota)).remaining == 1
        desk.clock.advance("1s")
        assert await desk.hit(asked)
        desk.clock.advance("1s")
        refused = await desk.hit(asked)
        assert [state.retry_after_us for state in refused.states] == [0, 58 * SECOND_US]
        assert [state.remaining for state in refused.states] == [2, 0]
        desk.clock.advance("58s")
        assert await desk.hit(asked)

    @at_a_desk
    async def test_a_clock_that_is_set_back_goes_on_counting_in_the_newer_period(self, desk: Desk) -> None:
        desk.clock.set(unix_us("2101-05-06T00:00:01"))
        asked = (held(Quota("2/day")), "ann", 1)
        await desk.hit(asked)
        desk.clock.advance(us=-10 * SECOND_US)
        assert (await desk.hit(asked)).remaining == 0
        refused = await desk.hit(asked)
        assert refused.retry_after_us == DAY_US + 9 * SECOND_US
        desk.clock.advance(us=refused.retry_after_us)
        assert (await desk.hit(asked)).remaining == 1

    @at_a_desk
    async def test_units_are_handed_back_within_their_period_alone(self, desk: Desk) -> None:
        desk.clock.set(unix_us("2101-05-05T12:00:00"))
        asked, look = (held(Quota("5/day")), "ann", 2), (held(Quota("5/day")), "ann", 0)
        first, second = await desk.hit(asked), await desk.hit(asked)
        assert await desk.refund(first) is True
        assert await desk.refund(first) is False
        assert (await desk.peek(look)).remaining == 3
        desk.clock.advance("12h")
        assert await desk.refund(second) is False
        late = await desk.hit(asked)
        assert await desk.refund(second) is False
        assert await desk.reset("ann") is True
        again = await desk.hit(asked)
        assert (again.remaining, await desk.refund(late)) == (3, False)
        assert (await desk.peek(look)).remaining == 3

    @at_a_desk
    async def test_a_debt_lasts_until_the_period_ends(self, desk: Desk) -> None:
        desk.clock.set(unix_us("2101-05-05T12:00:00"))
        asked = (held(Quota("5/day")), "ann", 1)
        owed = await desk.charge((asked[0], "ann", 10**30))
        assert (owed.allowed, owed.remaining, owed.reset_after_us) == (True, 0, 12 * HOUR_US)
        await desk.charge((asked[0], "ann", 10**30))
        assert (await desk.hit(asked)).retry_after_us == 12 * HOUR_US
        desk.clock.advance("12h")
        assert (await desk.hit(asked)).remaining == 4

    @at_a_desk
    async def test_a_changed_amount_keeps_its_count_and_another_period_has_its_own(self, desk: Desk) -> None:
        desk.clock.set(unix_us("2101-05-05T12:00:00"))
        await desk.hit((held(Quota("100/month")), "ann", 40))
        assert (await desk.peek((held(Quota("50/month")), "ann", 0))).remaining == 10
        assert not await desk.hit((held(Quota("40/month")), "ann", 1))
        for other in (Quota("50/month", starts=2), Quota("50/month", zone="Asia/Tokyo"), Quota("50/week")):
            assert (await desk.peek((held(other), "ann", 0))).remaining == 50

    @at_a_desk
    async def test_refusals_that_count_are_charged_to_a_quota(self, desk: Desk) -> None:
        desk.clock.set(unix_us("2101-05-05T12:00:00"))
        strict = held("1/minute", Quota("5/day"), count_denied=True)
        for left in (4, 3, 2):
            assert [state.remaining for state in (await desk.hit((strict, "ann", 1))).states] == [0, left]

    def test_counts_of_quotas_are_those_of_a_slow_model(self) -> None:
        """Hits, debts, refunds, resets and steps of the clock, over several quotas at once."""
        with asyncio.Runner() as runner:

            @settings(deadline=None, max_examples=40)
            @given(st.integers(0, 2**32), st.sampled_from(("2101-03-26T20:00:00", "2104-02-28T12:00:00")))
            def check(seed: int, start: str) -> None:
                runner.run(self._play_quotas(Random(seed), unix_us(start)))

            check()

    async def _play_quotas(self, dice: Random, start_us: int) -> None:
        clock, model = FakeClock(start_us), QuotaModel()
        store = await settle(self.make_store(clock))  # type: ignore[attr-defined]
        desk = Desk(store, clock)
        buckets = [
            held(Quota("5/day", zone="Europe/Berlin"), Quota("12/week", starts="sunday"), rule="first"),
            held(Quota("7/day", starts="06:30", zone="America/New_York"), rule="second"),
            held(Quota("20/month", starts=31), rule="second"),
        ]
        charged: list[tuple[Decision, list[tuple[Place, int, int]]]] = []
        reset_us: dict[str, int] = {}
        try:
            for _ in range(30):
                key, move = dice.choice(("ann", "bob")), dice.random()
                checks = [(bucket, key, dice.randint(0, 3)) for bucket in dice.sample(buckets, dice.randint(1, 3))]
                if move < 0.25:
                    clock.advance(us=dice.choice((1, SECOND_US, HOUR_US, dice.randrange(3 * DAY_US))))
                    continue
                if move < 0.3:
                    clock.advance(us=-dice.choice((1, SECOND_US, HOUR_US // 2)))
                    continue
                if move < 0.4 and charged:
                    decision, units = charged.pop(dice.randrange(len(charged)))
                    if decision.now_us <= reset_us.get(decision.checks[0][1], -1):
                        continue  # the clock has stepped back behind a reset: whether it is handed back is not promised
                    model.enter(decision.checks, clock.now_us)
                    assert await desk.refund(decision) is model.add([(at, -cost, end) for at, cost, end in units])
                    continue
                if move < 0.43:
                    await desk.reset(key)
                    model.forget(key)
                    charged = [entry for entry in charged if entry[0].checks[0][1] != key]
                    reset_us[key] = clock.now_us
                    continue
                asked = model.enter(checks, clock.now_us)
                debt = move < 0.5
                decision = await (desk.charge(*checks) if debt else desk.hit(*checks))
                fits = all(model.counts[place][1] + max(cost, 1) <= amount for place, amount, cost, _ in asked)
                assert decision.allowed is (debt or fits)
                if decision.allowed:
                    asked = model.adopt(asked, decision, clock.now_us)
                    units = [(place, cost, end_us) for place, _, cost, end_us in asked]
                    model.add(units)
                    charged.append((decision, units))
                for state, (place, amount, cost, end_us) in zip(decision.states, asked, strict=True):
                    spent = model.counts[place][1]
                    assert state.remaining == max(amount - spent, 0)
                    assert state.reset_after_us == (end_us - clock.now_us if spent else 0)
                    lacks = not debt and not decision.allowed and spent + max(cost, 1) > amount
                    assert state.retry_after_us == (end_us - clock.now_us if lacks else 0)
        finally:
            await settle(store.close())
