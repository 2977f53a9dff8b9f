"""What every store has to do, as tests.

    class TestMyStore(StoreContract):
        def make_store(self, clock):
            return MyStore(clock=clock)

`clock` is a `FakeClock`: the store must tell the time by it and by nothing else. Each example gets a new store, and
closes it. A method may answer at once or return an awaitable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings

from ...core.decision import Bucket, Reason
from ...core.limits import parse_limits
from ...core.store import Store
from ..clock import FakeClock
from .ban_contract import BansContract
from .desk import SECOND_US, Desk, at_a_desk, bucket
from .figures_contract import FiguresContract
from .inspect_contract import InspectContract
from .mode_contract import ModesContract
from .places_contract import PlacesContract
from .player import settle
from .programs import Program, programs
from .quota_contract import QuotasContract


class StoreContract(ModesContract, PlacesContract, QuotasContract, FiguresContract, InspectContract, BansContract):
    """The tests. A subclass whose name starts with `Test` provides `make_store`."""

    def make_store(self, clock: FakeClock) -> Store | Awaitable[Store]:
        """Return an empty store that tells the time by `clock`."""
        raise NotImplementedError("make_store(clock) has to return an empty store that tells the time by `clock`")

    def test_answers_are_those_of_the_reference(self) -> None:
        """Same demands and times in, same decisions out."""
        with asyncio.Runner() as runner:

            @settings(deadline=None)
            @given(programs())
            def check(program: Program) -> None:
                runner.run(self.play(program))

            check()

    @at_a_desk
    async def test_no_more_than_the_amount_passes_and_the_wait_is_exact(self, desk: Desk) -> None:
        for rule in ("5/minute", "100/minute"):  # one ring each
            asked = (bucket(rule, rule), "ann", 1)
            amount = asked[0].limits[0].amount
            decisions = [await desk.hit(asked) for _ in range(amount + 1)]
            assert [decision.allowed for decision in decisions] == [True] * amount + [False]
            wait_us = decisions[-1].retry_after_us
            assert wait_us is not None
            desk.clock.advance(us=wait_us - 1)
            assert not await desk.hit(asked)
            desk.clock.advance(us=1)
            assert await desk.hit(asked)

    @at_a_desk
    async def test_windows_slide(self, desk: Desk) -> None:
        asked = (bucket("2/minute"), "ann", 1)
        await desk.hit(asked)
        desk.clock.advance("30s")
        await desk.hit(asked)
        desk.clock.advance("30s")
        assert (await desk.hit(asked)).remaining == 0
        desk.clock.advance(us=1)
        assert (await desk.hit(asked)).retry_after_us == 30 * SECOND_US - 1

    @at_a_desk
    async def test_keys_rules_windows_and_resolutions_are_counted_apart(self, desk: Desk) -> None:
        await desk.hit((bucket("3/minute"), "ann", 3))
        for limits, rule, key in (
            ("3/minute", "rule", "bob"),
            ("3/minute", "other", "ann"),
            ("3/61s", "rule", "ann"),
            ("3/minute @10", "rule", "ann"),
        ):
            assert (await desk.hit((bucket(limits, rule), key, 1))).remaining == 2
        assert not await desk.hit((bucket("3/minute"), "ann", 1))

    @at_a_desk
    async def test_peek_says_what_hit_would_and_changes_nothing(self, desk: Desk) -> None:
        asked = (bucket("3/minute; 100/hour"), "ann", 2)
        peeked = [await desk.peek(asked) for _ in range(5)]
        decision = await desk.hit(asked)
        assert {(peek.allowed, peek.states) for peek in peeked} == {(True, decision.states)}
        assert not await desk.peek(asked)
        assert await desk.hit((asked[0], "ann", 1))

    @at_a_desk
    async def test_a_peek_cannot_be_refunded(self, desk: Desk) -> None:
        asked = (bucket("3/minute"), "ann", 1)
        await desk.hit(asked)
        assert await desk.refund(await desk.peek(asked)) is False
        assert (await desk.hit(asked)).remaining == 1

    @at_a_desk
    async def test_a_refund_hands_back_once(self, desk: Desk) -> None:
        for rule in ("5/minute", "100/minute; 500/hour"):
            amount = bucket(rule).limits[0].amount
            decision = await desk.hit((bucket(rule, rule), "ann", amount))
            assert await desk.refund(decision) is True
            assert await desk.refund(decision) is False
            assert (await desk.hit((bucket(rule, rule), "ann", amount))).allowed

    @at_a_desk
    async def test_a_refusal_or_a_cost_of_nothing_has_nothing_to_refund(self, desk: Desk) -> None:
        full = bucket("5/minute")
        free = await desk.hit((full, "ann", 0))
        await desk.hit((full, "ann", 5))
        assert await desk.refund(free) is False
        assert await desk.refund(await desk.hit((full, "ann", 1))) is False
        assert not await desk.hit((full, "ann", 1))

    @at_a_desk
    async def test_a_charge_that_has_left_is_not_refunded(self, desk: Desk) -> None:
        for rule in ("5/minute", "100/minute"):
            asked = (bucket(rule, rule), "ann", 3)
            late, early = await desk.hit(asked), await desk.hit((asked[0], "bob", 3))
            desk.clock.advance(us=early.reset_after_us - 1)
            assert await desk.refund(early) is True
            desk.clock.advance(us=1)
            await desk.hit(asked)
            assert await desk.refund(late) is False
            assert (await desk.peek((asked[0], "ann", 1))).remaining == asked[0].limits[0].amount - 4

    @at_a_desk
    async def test_reset_forgets_a_key_under_every_rule_and_no_other(self, desk: Desk) -> None:
        first, second = bucket("5/minute", "first"), bucket("100/minute", "second")
        await desk.hit((first, "ann", 5), (second, "ann", 100), (first, "bob", 5))
        assert await desk.reset("ann") is True
        assert await desk.hit((first, "ann", 5), (second, "ann", 100))
        assert not await desk.hit((first, "bob", 1))
        assert await desk.reset("eve") is False

    @at_a_desk
    async def test_a_charge_that_was_reset_is_not_refunded(self, desk: Desk) -> None:
        asked = (bucket("5/minute"), "ann", 3)
        decision = await desk.hit(asked)
        await desk.reset("ann")
        assert await desk.refund(decision) is False
        assert (await desk.hit(asked)).remaining == 2

    @at_a_desk
    async def test_a_charge_after_a_reset_is_refunded_also_where_the_amount_was_changed(self, desk: Desk) -> None:
        exact, sliced = bucket("1/10s @2"), bucket("100/10s @2")
        await desk.hit((exact, "bob", 1))  # the store may remember the windows of both by this limit
        await desk.hit((sliced, "ann", 1))
        desk.clock.advance(us=SECOND_US)
        await desk.reset("ann")
        desk.clock.advance(us=1)
        decision = await desk.hit((sliced, "ann", 2))
        assert (await desk.hit((sliced, "ann", 1))).remaining == 97
        assert await desk.refund(decision) is True
        assert (await desk.peek((sliced, "ann", 1))).remaining == 98

    @at_a_desk
    async def test_a_look_before_the_clock_steps_back_changes_no_refund(self, desk: Desk) -> None:
        asked = (bucket("1/10s"), "ann", 1)
        await desk.peek(asked)
        desk.clock.advance(us=-10 * SECOND_US)
        assert await desk.refund(await desk.hit(asked)) is True

    @at_a_desk
    async def test_a_reset_of_nothing_is_not_remembered(self, desk: Desk) -> None:
        asked = (bucket("1/10s"), "ann", 1)
        assert await desk.refund(await desk.hit(asked)) is True
        await desk.reset("ann")
        desk.clock.advance(us=-1)
        assert await desk.refund(await desk.hit(asked)) is True
        assert await desk.hit(asked)

    @at_a_desk
    async def test_a_demand_is_charged_on_all_or_on_none(self, desk: Desk) -> None:
        tight, wide = bucket("5/10s", "tight"), bucket("100/hour", "wide")
        both = ((tight, "ann", 1), (wide, "everyone", 1))
        assert sum([bool(await desk.hit(*both)) for _ in range(50)]) == 5
        assert (await desk.peek((wide, "everyone", 0))).remaining == 95
        refused = await desk.hit(*both)
        assert [state.rule for state in refused.violated] == ["tight"]
        assert (refused.reason, refused.binding) == (Reason.LIMITED, refused.states[0])

    @at_a_desk
    async def test_the_longest_wait_counts(self, desk: Desk) -> None:
        both = (bucket("1/3s; 1/40s"), "ann", 1)
        await desk.hit(both)
        refused = await desk.hit(both)
        assert [state.retry_after_us for state in refused.states] == [3 * SECOND_US, 40 * SECOND_US]
        assert refused.retry_after == 40

    @at_a_desk
    async def test_a_cost_of_nothing_passes_while_anything_is_left(self, desk: Desk) -> None:
        for rule in ("5/minute", "100/minute"):
            asked = bucket(rule, rule)
            amount = asked.limits[0].amount
            assert (await desk.hit((asked, "ann", 0))).remaining == amount
            await desk.hit((asked, "ann", amount - 1))
            assert (await desk.hit((asked, "ann", 0))).remaining == 1
            await desk.hit((asked, "ann", 1))
            assert not await desk.hit((asked, "ann", 0))

    @at_a_desk
    async def test_a_cost_above_the_amount_never_passes(self, desk: Desk) -> None:
        for rule in ("5/minute", "100/minute"):
            asked = bucket(rule, rule)
            refused = await desk.hit((asked, "ann", asked.limits[0].amount + 1))
            assert (refused.allowed, refused.reason, refused.retry_after) == (False, Reason.TOO_LARGE, None)
            assert refused.remaining == asked.limits[0].amount

    @at_a_desk
    async def test_one_key_that_is_asked_twice_has_to_hold_both_costs(self, desk: Desk) -> None:
        for rule in ("5/minute", "100/minute"):
            asked = bucket(rule, rule)
            amount = asked.limits[0].amount
            for costs in ((amount, 0), (amount, 1), (amount - 2, 3)):
                together = [(asked, "ann", cost) for cost in costs]
                for refused in (await desk.peek(*together), await desk.hit(*together)):
                    assert (refused.allowed, refused.reason) == (False, Reason.TOO_LARGE)
                    assert refused.retry_after_us is None
            assert await desk.hit((asked, "ann", 0), (asked, "ann", amount))
            waiting = await desk.hit((asked, "ann", amount), (asked, "bob", 1))
            assert (waiting.reason, waiting.states[1].retry_after_us) == (Reason.LIMITED, 0)

    @at_a_desk
    async def test_a_clock_that_steps_back_frees_nothing_and_freezes_nobody(self, desk: Desk) -> None:
        for rule in ("5/minute", "100/minute"):
            asked = (bucket(rule, rule), "ann", 1)
            (limit,) = parse_limits(rule)
            await desk.hit((asked[0], "ann", limit.amount))
            desk.clock.advance(us=-86_400 * SECOND_US)
            refused = await desk.hit(asked)
            assert not refused
            assert refused.retry_after_us is not None
            assert refused.retry_after_us <= limit.window_us + limit.slice_us
            desk.clock.advance(us=refused.retry_after_us)
            assert await desk.hit(asked)

    @at_a_desk
    async def test_a_refund_after_the_clock_stepped_back_frees_nobody_elses_units(self, desk: Desk) -> None:
        for rule, step_us in (("2/minute", -17 * SECOND_US), ("20/minute @10", -50 * SECOND_US)):
            asked, amount = bucket(rule, rule), bucket(rule).limits[0].amount
            early = await desk.hit((asked, "ann", amount // 2))
            desk.clock.advance(us=step_us)
            await desk.hit((asked, "ann", 0))  # here the store moves the units that lie ahead of now
            desk.clock.advance(us=6 * SECOND_US - step_us)  # beyond the slice of what was moved
            late = await desk.hit((asked, "ann", amount // 2))
            assert late.remaining == 0
            assert await desk.refund(early) is False
            assert not await desk.hit((asked, "ann", 1))
            assert await desk.refund(late) is True
            assert (await desk.hit((asked, "ann", 0))).remaining == amount // 2

    @at_a_desk
    async def test_what_does_not_lie_ahead_of_a_clock_that_stepped_back_is_refunded(self, desk: Desk) -> None:
        for rule in ("2/minute", "20/minute @10"):
            asked = bucket(rule, rule)
            decision = await desk.hit((asked, "ann", 2))
            desk.clock.advance(us=40 * SECOND_US)
            await desk.hit((asked, "ann", 0), (asked, "bob", 1))
            desk.clock.advance(us=-20 * SECOND_US)
            await desk.hit((asked, "ann", 0), (asked, "bob", 0))
            assert await desk.refund(decision) is True
            desk.clock.advance(us=40 * SECOND_US)

    @at_a_desk
    async def test_whoever_may_wait_is_refused_like_anybody(self, desk: Desk) -> None:
        waiting = Bucket("rule", parse_limits("2/minute"), wait_us=90 * SECOND_US, wait_max=5)
        await desk.hit((waiting, "ann", 2))
        refused = await desk.hit((waiting, "ann", 1))
        assert (refused.reason, refused.retry_after_us) == (Reason.LIMITED, 60 * SECOND_US)
        assert await desk.refund(refused) is False
        desk.clock.advance("60s")
        assert (await desk.hit((waiting, "ann", 1))).remaining == 1

    @at_a_desk
    async def test_a_changed_amount_keeps_its_counts(self, desk: Desk) -> None:
        for amounts in ((1000, 100), (30, 10), (1000, 10), (1000, 64)):
            before, after = (bucket(f"{amount}/minute", str(amounts)) for amount in amounts)
            await desk.hit((before, "ann", before.limits[0].amount - 5))
            lowered = await desk.hit((after, "ann", 1))
            assert (lowered.allowed, lowered.remaining) == (False, 0)
            raised = await desk.hit((before, "ann", 0))
            assert raised.remaining == 5

    @at_a_desk
    async def test_a_refund_from_before_a_changed_amount_lengthens_no_wait(self, desk: Desk) -> None:
        for amounts in ((100, 10), (100, 90), (10, 5), (10, 100)):  # each kind of ring, and from one to the other
            before, after = (bucket(f"{amount}/minute", str(amounts)) for amount in amounts)
            desk.clock.set(desk.clock.now_us // (60 * SECOND_US) * 60 * SECOND_US)  # where a slice begins
            early = await desk.hit((before, "ann", 2))
            await desk.charge((before, "ann", amounts[0] - 2))
            await desk.charge((after, "ann", max(amounts[1] - amounts[0], 0)))
            refused = await desk.hit((after, "ann", 1))
            assert refused.retry_after_us
            await desk.refund(early)
            again = await desk.peek((after, "ann", 1))
            assert (again.retry_after_us or 0) <= refused.retry_after_us
            desk.clock.advance(us=refused.retry_after_us)
            assert await desk.hit((after, "ann", 1))

    @pytest.mark.parametrize("rule", ["50/hour", "500/hour"])
    def test_threads_with_event_loops_of_their_own_admit_exactly_the_amount(self, rule: str) -> None:
        threads, hits_each = 8, 250
        asked = ((bucket(rule), "ann", 1),)

        async def hammer(store: Store) -> int:
            return sum([bool(await settle(store.hit(asked))) for _ in range(hits_each)])

        async def scene() -> int:
            store = await settle(self.make_store(FakeClock()))
            loop = asyncio.get_running_loop()
            with ThreadPoolExecutor(threads) as pool:
                jobs = [loop.run_in_executor(pool, lambda: asyncio.run(hammer(store))) for _ in range(threads)]
                admitted = sum(await asyncio.gather(*jobs))
            await settle(store.close())
            return admitted

        assert asyncio.run(scene()) == asked[0][0].limits[0].amount

    @at_a_desk
    async def test_tasks_admit_exactly_the_amount(self, desk: Desk) -> None:
        asked = (bucket("50/hour; 70/day"), "ann", 1)
        decisions = await asyncio.gather(*(desk.hit(asked) for _ in range(200)))
        assert sum(map(bool, decisions)) == 50

    @at_a_desk
    async def test_closing_twice_is_harmless(self, desk: Desk) -> None:
        await settle(desk.store.close())
