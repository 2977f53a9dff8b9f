"""The part of the store contract about strikes, and the bans that policies make of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...core.bans.in_force import Ban
from ...core.bans.policy import BanPolicy
from ...core.bans.standing_view import PolicyStanding, policy_standing
from ...core.store import Store
from ..clock import FakeClock
from ..observers import RecordingObserver
from .ban_desk import POLICY, BanDesk
from .desk import SECOND_US, Desk, at_a_desk, bucket
from .player import settle


class StrikesContract:
    """The tests; see `StoreContract`."""

    make_store: Callable[[FakeClock], Any]

    @at_a_desk
    async def test_the_strike_that_is_one_too_many_bans(self, desk: Desk) -> None:
        bans = BanDesk(desk)
        assert await bans.strike("user:eve", 2) is None
        bans.clock.advance("1m")  # both have left
        assert await bans.strike("user:eve", 2) is None
        bans.clock.advance(us=60 * SECOND_US - 1)
        made = await bans.strike("user:eve")
        assert made is not None
        assert (made.key, made.by, made.reason, made.rung, made.prolong_us) == ("user:eve", "abuse", "refused", 1, 0)
        assert (await bans.hit("user:eve")).retry_after_us == POLICY.duration_us
        assert await bans.hit("user:ann")

    @at_a_desk
    async def test_strikes_while_banned_do_not_count_and_those_before_are_used_up(self, desk: Desk) -> None:
        bans = BanDesk(desk)
        await bans.strike("user:eve", 3)
        assert await bans.strike("user:eve", 50) is None
        bans.clock.advance("10m")
        assert await bans.strike("user:eve", 2) is None
        made = await bans.strike("user:eve")
        assert made is not None
        assert made.rung == 2

    @at_a_desk
    async def test_requests_while_banned_prolong_a_ban_only_where_the_policy_says_so(self, desk: Desk) -> None:
        bans = BanDesk(desk)
        prolongs = BanPolicy("3/minute", "10m", jitter=0, prolong=True, name="prolongs")
        await bans.strike("user:ann", 3)
        await bans.strike("user:eve", 3, prolongs)
        bans.clock.advance("4m")
        for key, left_us in (("user:ann", 360 * SECOND_US), ("user:eve", 600 * SECOND_US)):
            assert (await desk.peek((bucket("100/400d"), key, 1))).retry_after_us == 360 * SECOND_US
            assert [(await bans.hit(key)).retry_after_us for _ in range(1_000)] == [left_us] * 1_000
        assert [ban.rung for ban in await settle(desk.store.bans.active())] == [1, 1]

    @at_a_desk
    async def test_policies_count_apart(self, desk: Desk) -> None:
        bans = BanDesk(desk)
        scan = BanPolicy("3/minute", "1h", jitter=0, name="scan")
        await bans.strike("user:eve", 2)
        await bans.strike("user:eve", 2, scan)
        assert await bans.banned() == []
        made = await bans.strike("user:eve", 1, scan)
        assert made is not None
        assert made.by == "scan"

    @at_a_desk
    async def test_the_standing_of_a_key_is_shown_by_policy_and_stays_as_it_is(self, desk: Desk) -> None:
        bans = BanDesk(desk)
        scan = BanPolicy("5/minute", "10m", jitter=0, forgive="1h", name="scan")
        start_us = bans.clock.now_us
        await bans.strike("user:eve", 3)
        await bans.strike("user:ann", 2)
        bans.clock.advance("1s")
        await bans.strike("user:ann", 4, scan)
        known = {"abuse": POLICY, "scan": scan}

        async def stands(*keys: str) -> list[PolicyStanding | None]:
            now_us, kept = await settle(desk.store.bans.standings(keys))
            return [policy_standing(one, known[one.policy], now_us) for one in kept]

        ends_us, now_us = start_us + POLICY.duration_us, start_us + SECOND_US
        eve = PolicyStanding("abuse", "user:eve", 0, 3, 1, ends_us, ends_us + POLICY.forgive_us)
        ann = PolicyStanding("abuse", "user:ann", 2, 3, 0, start_us, None)
        scans = PolicyStanding("scan", "user:ann", 4, 5, 0, now_us, None)
        for _ in range(3):
            assert await stands("user:eve") == [eve]
            assert sorted(filter(None, await stands("user:ann", "user:eve", "user:bob"))) == [ann, eve, scans]
        assert await stands("user:bob") == []
        bans.clock.advance(us=59 * SECOND_US)  # the strikes of the first second have left
        assert list(filter(None, await stands("user:ann"))) == [scans]
        assert await bans.strike("user:ann", 1, scan) is not None
        assert (await stands("user:ann"))[-1:] != [scans]
        await bans.unban("user:eve")
        assert await stands("user:eve") == []

    @at_a_desk
    async def test_an_unban_forgives_strikes_and_rungs(self, desk: Desk) -> None:
        bans = BanDesk(desk)
        await bans.strike("user:eve", 3)
        assert await bans.unban("user:eve") is True
        await bans.strike("user:ann", 2)
        assert await bans.unban("user:ann") is True  # nothing but strikes
        assert await bans.strike("user:ann", 2) is None
        assert await bans.strike("user:eve", 2) is None
        made = await bans.strike("user:eve")
        assert made is not None
        assert made.rung == 1
        assert await bans.unban("user:bob") is False

    @at_a_desk
    async def test_a_prefix_is_banned_when_enough_of_its_addresses_are(self, desk: Desk) -> None:
        bans = BanDesk(desk)
        policy = BanPolicy("3/minute", "10m", factor=1, jitter=0, prefix_after="3/1h")
        for last in (7, 7, 8):  # one address counts once, however often it is banned
            assert await bans.strike(f"192.0.2.{last}", 3, policy, "192.0.2.0/24")
            bans.clock.advance("10m")
        assert await bans.hit("192.0.2.1")
        made = await bans.strike("192.0.2.9", 3, policy, "192.0.2.0/24")
        assert made is not None
        assert made.key == "192.0.2.9"
        assert await bans.banned() == ["192.0.2.0/24", "192.0.2.9"]
        refused = await bans.hit("192.0.2.1")
        assert (refused.by, refused.retry_after_us) == ("abuse/prefix", policy.duration_us)

    @at_a_desk
    async def test_a_policy_makes_no_more_bans_than_it_may(self, desk: Desk) -> None:
        bans = BanDesk(desk)
        policy = BanPolicy("1/minute", "10m", jitter=0, most="2/1m")
        made = [await bans.strike(f"user:{number}", 1, policy) for number in range(20)]
        assert [ban is not None for ban in made] == [True] * 2 + [False] * 18
        assert bans.heard.kinds.count("bans_capped") == 1
        assert bans.heard.kinds.count("banned") == 2
        bans.clock.advance("1m")
        assert await bans.strike("user:9", 1, policy)

    @at_a_desk
    async def test_a_policy_that_only_reports_bans_nobody(self, desk: Desk) -> None:
        bans = BanDesk(desk)
        policy = BanPolicy("3/minute", "10m", jitter=0, action="shadow", prefix_after="2/1h")
        for last in (7, 8):
            assert await bans.strike(f"192.0.2.{last}", 3, policy, "192.0.2.0/24") is None
        assert await bans.banned() == []
        assert await bans.hit("192.0.2.7")
        assert bans.heard.kinds == ["shadow_banned"] * 3
        assert [event.details["key"] for event in bans.heard.events] == ["192.0.2.7", "192.0.2.8", "192.0.2.0/24"]
        assert await settle(desk.store.bans.history()) == []

    @at_a_desk
    async def test_a_thousand_tasks_that_cross_the_threshold_make_one_ban(self, desk: Desk) -> None:
        bans = BanDesk(desk)
        made = await asyncio.gather(*(bans.strike("user:eve") for _ in range(1_000)))
        assert [ban.rung for ban in made if ban is not None] == [1]
        assert bans.heard.kinds == ["banned"]

    def test_threads_that_cross_the_threshold_make_one_ban(self) -> None:
        async def strike(store: Store) -> list[Ban]:
            made = [await settle(store.bans.strike(POLICY, "user:eve", 1, "", "")) for _ in range(200)]
            return [ban for ban in made if ban is not None]

        async def scene() -> tuple[list[Ban], list[str]]:
            store, heard = await settle(self.make_store(FakeClock())), RecordingObserver()
            store.observe(heard)
            loop = asyncio.get_running_loop()
            with ThreadPoolExecutor(8) as pool:
                jobs = [loop.run_in_executor(pool, lambda: asyncio.run(strike(store))) for _ in range(8)]
                made = [ban for bans in await asyncio.gather(*jobs) for ban in bans]
            await settle(store.close())
            return made, heard.kinds

        made, kinds = asyncio.run(scene())
        assert ([ban.rung for ban in made], kinds) == ([1], ["banned"])
