"""The part of the store contract about debts, refusals that count, and reservations."""

from __future__ import annotations

import asyncio

from ...core.decision import Reason
from .desk import SECOND_US, Desk, at_a_desk, bucket
from .player import settle

RINGS = ("5/minute", "5/minute @4")  # the same amount in one ring each


class ModesContract:
    """The tests; see `StoreContract`."""

    @at_a_desk
    async def test_a_debt_is_recorded_beyond_the_limit_and_holds_the_next_requests(self, desk: Desk) -> None:
        for rule in RINGS:
            asked = (bucket(rule, rule), "ann", 1)
            owed = await desk.charge((asked[0], "ann", 12))
            assert (owed.allowed, owed.reason, owed.remaining) == (True, Reason.OK, 0)
            refused = await desk.hit(asked)
            assert refused.reason is Reason.LIMITED
            assert refused.retry_after_us == owed.reset_after_us
            desk.clock.advance(us=owed.reset_after_us - 1)
            assert not await desk.hit(asked)
            desk.clock.advance(us=1)
            assert (await desk.hit(asked)).remaining == 4

    @at_a_desk
    async def test_a_debt_can_be_handed_back_and_leaves_the_rest(self, desk: Desk) -> None:
        for rule in RINGS:
            asked = (bucket(rule, rule), "ann", 1)
            await desk.hit((asked[0], "ann", 3))
            owed = await desk.charge((asked[0], "ann", 9))
            assert await desk.refund(owed) is True
            assert await desk.refund(owed) is False
            assert (await desk.hit(asked)).remaining == 1

    @at_a_desk
    async def test_a_debt_beyond_all_measure_lasts_no_longer_than_any_other(self, desk: Desk) -> None:
        for rule in (*RINGS, "1000000/minute"):
            asked = (bucket(rule, rule), "ann", 1)
            for _ in range(3):
                owed = await desk.charge((asked[0], "ann", 10**30))
            assert not await desk.hit(asked)
            desk.clock.advance(us=owed.reset_after_us)
            assert await desk.hit(asked)

    @at_a_desk
    async def test_what_comes_free_is_kept_for_the_first_of_a_line(self, desk: Desk) -> None:
        for rule in ("1/500ms", "2/500ms @1"):
            asked = ((bucket(rule, rule), "ann", 1),)
            await desk.hit((asked[0][0], "ann", asked[0][0].limits[0].amount))
            waits_us = (await settle(desk.store.hit(asked, first_in_line=True))).retry_after_us
            assert waits_us
            desk.clock.advance(us=waits_us)
            assert not await desk.hit(*asked), "others find that nothing is theirs"
            assert await settle(desk.store.hit(asked, first_in_line=True))

    @at_a_desk
    async def test_refusals_that_count_prolong_the_refusal(self, desk: Desk) -> None:
        asked = (bucket("3/minute", count_denied=True), "ann", 1)
        await desk.hit((asked[0], "ann", 3))
        for pause in ("20s", "20s", "19s"):
            desk.clock.advance(pause)
            refused = await desk.hit(asked)
        assert (refused.reason, refused.remaining) == (Reason.LIMITED, 0)
        assert refused.retry_after_us == 21 * SECOND_US  # the refused ones of 0:20, 0:40 and 0:59 hold it until 1:20
        assert await desk.refund(refused) is False
        desk.clock.advance(us=21 * SECOND_US - 1)
        assert (await desk.peek(asked)).retry_after_us == 20 * SECOND_US + 1  # asking would count
        desk.clock.advance(us=1)
        assert await desk.hit(asked)

    @at_a_desk
    async def test_what_can_never_pass_is_not_counted(self, desk: Desk) -> None:
        counting = bucket("3/minute", count_denied=True)
        assert (await desk.hit((counting, "ann", 4))).reason is Reason.TOO_LARGE
        assert (await desk.hit((counting, "ann", 1))).remaining == 2

    @at_a_desk
    async def test_no_more_than_the_amount_is_reserved_at_a_time(self, desk: Desk) -> None:
        inside: list[int] = []
        most = 0
        asked = (bucket("5/hour"), "ann", 1)

        async def work(turn: int) -> bool:
            nonlocal most
            await asyncio.sleep(0)
            decision = await desk.hit(asked)
            if not decision:
                return False
            inside.append(turn)
            most = max(most, len(inside))
            await asyncio.sleep(0)
            inside.remove(turn)
            assert await desk.refund(decision) is True
            return True

        passed = sum(await asyncio.gather(*(work(turn) for turn in range(500))))
        assert most == 5
        assert passed >= 5
        assert (await desk.hit((asked[0], "ann", 5))).allowed
