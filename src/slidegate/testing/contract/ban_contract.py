"""The part of the store contract about bans: how they refuse, and how they are made, lifted and moved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from ...core.bans.ban import Ban
from ...core.bans.policy import BanPolicy
from ...core.bans.strikes import PolicyStrikes, policy_strikes
from ...core.decision import Reason
from ...core.errors import ConfigurationError
from ..clock import FakeClock
from .ban_player import BanPlayer
from .harness import HOUR_US, POLICY, StoreHarness, bucket, in_threads, with_store
from .player import settle
from .programs import SECOND_US, Choices, drawn

UNREADABLE: tuple[list[Any], ...] = ([], [{"slidegate": "bans", "version": 99, "written_us": 0}], [{}])


class BansContract:
    """The tests; see `StoreContract`."""

    make_store: Callable[[FakeClock], Any]

    def test_bans_are_those_of_the_reference(self) -> None:
        """Any order of strikes, requests, bans, time and restarts: the same levels, ends and strikes."""
        with asyncio.Runner() as runner:

            @settings(deadline=None)
            @given(drawn(150, 600))
            def check(choices: Choices) -> None:
                runner.run(BanPlayer(self.make_store, choices).play())

            check()

    @with_store()
    async def test_a_ban_refuses_until_its_last_microsecond(self, store: StoreHarness) -> None:
        made = await store.ban("192.0.2.7")
        assert made.ends_us == made.made_us + HOUR_US
        refused = await store.request("192.0.2.7")
        assert (refused.reason, refused.retry_after_us, refused.by) == (Reason.BANNED, HOUR_US, "ann")
        assert refused.ban == made
        assert refused.states == ()
        store.clock.advance(us=HOUR_US - 1)
        refused = await store.request("192.0.2.7")
        assert (refused.reason, refused.retry_after_us, refused.retry_after) == (Reason.BANNED, 1, 1)
        store.clock.advance(us=1)
        assert await store.request("192.0.2.7")
        assert await store.banned() == []

    @with_store()
    async def test_nothing_is_charged_while_banned(self, store: StoreHarness) -> None:
        assert (await store.request("user:eve", 40)).remaining == 60
        await store.ban("user:eve")
        refused = await store.request("user:eve", 40)
        assert await store.refund(refused) is False
        both = ((bucket("100/400d"), "user:eve", 1), (bucket("100/400d"), "user:ann", 1))
        assert (await store.hit(*both)).reason is Reason.BANNED
        assert (await store.peek(*both)).reason is Reason.BANNED
        await store.unban("user:eve")
        assert (await store.request("user:eve", 0)).remaining == 60
        assert (await store.request("user:ann", 0)).remaining == 100

    @with_store()
    async def test_a_network_holds_its_addresses_and_no_others(self, store: StoreHarness) -> None:
        for network in ("192.0.2.128/25", "2001:db8:1::/48", "2001:db8:2::7/128"):
            await store.ban(network)
        held = (
            "192.0.2.128",
            "192.0.2.255",
            "::ffff:192.0.2.200",
            "2001:db8:1::",
            "2001:db8:1:ffff::1",
            "2001:db8:2::7",
        )
        free = ("192.0.2.127", "192.0.3.0", "2001:db8:0:ffff::1", "2001:db8:2::1", "2001:db8:2::8", "192.0.2.128/26")
        assert [(await store.request(client)).reason for client in held] == [Reason.BANNED] * len(held)
        assert [(await store.request(client)).reason for client in free] == [Reason.OK] * len(free)

    @with_store()
    async def test_each_change_is_told_once_and_remembered(self, store: StoreHarness) -> None:
        await store.strike("user:eve", 5)
        await store.ban("192.0.2.7", None)
        store.clock.advance("1s")
        await store.unban("user:eve")
        await store.unban("user:eve")
        history = await settle(store.raw.bans.history())
        rows = [(change.kind, change.ban.key, change.ban.by, change.by) for change in history]
        assert rows == [
            ("banned", "user:eve", "abuse", "abuse"),
            ("banned", "192.0.2.7", "ann", "ann"),
            ("unbanned", "user:eve", "abuse", "bob"),
        ]
        assert (history[2].at - history[0].at).total_seconds() == 1
        assert store.heard.kinds == [kind for kind, *_ in rows]
        first = store.heard.events[0].details
        assert (first["key"], first["by"], first["reason"], first["ban_level"]) == ("user:eve", "abuse", "refused", 1)

    @with_store()
    async def test_what_cannot_be_read_changes_nothing(self, store: StoreHarness) -> None:
        await store.ban("user:eve")
        rows = await store.dump()
        await store.unban("user:eve")
        for bad in (*UNREADABLE, [*rows, {"ban": "user:ann"}], [*rows, {"standing": "user:ann", "policy": "abuse"}]):
            with pytest.raises(ConfigurationError, match=r"^bans"):
                await settle(store.raw.bans.load(bad))
        assert await store.banned() == []

    @with_store()
    async def test_of_two_bans_of_a_key_the_longer_stays(self, store: StoreHarness) -> None:
        await store.ban("user:ann", HOUR_US)
        await store.ban("user:eve", 2 * HOUR_US)
        rows = await store.dump()
        await store.ban("user:ann", 2 * HOUR_US)
        await store.ban("user:eve", HOUR_US)
        assert await settle(store.raw.bans.load(rows)) == 2
        for key in ("user:ann", "user:eve"):
            assert (await store.request(key)).retry_after_us == 2 * HOUR_US

    @with_store()
    async def test_a_clock_that_steps_prolongs_no_ban(self, store: StoreHarness) -> None:
        await store.ban("user:eve")
        for step in (-86_400, 86_400, -86_400):
            store.clock.advance(us=step * SECOND_US)
            refused = await store.request("user:eve")
            assert refused or (refused.retry_after_us or 0) <= HOUR_US
        store.clock.advance(us=HOUR_US)
        assert await store.request("user:eve")

    @with_store()
    async def test_the_strike_that_is_one_too_many_bans(self, store: StoreHarness) -> None:
        assert await store.strike("user:eve", 2) is None
        store.clock.advance("1m")  # both have left
        assert await store.strike("user:eve", 2) is None
        store.clock.advance(us=60 * SECOND_US - 1)
        made = await store.strike("user:eve")
        assert made is not None
        assert (made.key, made.by, made.reason, made.level, made.prolong_us) == ("user:eve", "abuse", "refused", 1, 0)
        assert (await store.request("user:eve")).retry_after_us == POLICY.duration_us
        assert await store.request("user:ann")

    @with_store()
    async def test_the_standing_of_a_key_is_shown_by_policy_and_stays_as_it_is(self, store: StoreHarness) -> None:
        scan = BanPolicy("5/minute", "10m", jitter=0, forgive="1h", name="scan")
        start_us = store.clock.now_us
        await store.strike("user:eve", 3)
        await store.strike("user:ann", 2)
        store.clock.advance("1s")
        await store.strike("user:ann", 4, scan)
        known = {"abuse": POLICY, "scan": scan}

        async def stands(*keys: str) -> list[PolicyStrikes | None]:
            now_us, kept = await settle(store.raw.bans.strike_records(keys))
            return [policy_strikes(one, known[one.policy], now_us) for one in kept]

        ends_us, now_us = start_us + POLICY.duration_us, start_us + SECOND_US
        eve = PolicyStrikes("abuse", "user:eve", 0, 3, 1, ends_us, ends_us + POLICY.forgive_us)
        ann = PolicyStrikes("abuse", "user:ann", 2, 3, 0, start_us, None)
        scans = PolicyStrikes("scan", "user:ann", 4, 5, 0, now_us, None)
        for _ in range(3):
            assert await stands("user:eve") == [eve]
            assert sorted(filter(None, await stands("user:ann", "user:eve", "user:bob"))) == [ann, eve, scans]
        assert await stands("user:bob") == []
        store.clock.advance(us=59 * SECOND_US)  # the strikes of the first second have left
        assert list(filter(None, await stands("user:ann"))) == [scans]
        assert await store.strike("user:ann", 1, scan) is not None
        assert (await stands("user:ann"))[-1:] != [scans]
        await store.unban("user:eve")
        assert await stands("user:eve") == []

    @with_store()
    async def test_a_policy_makes_no_more_bans_than_it_may(self, store: StoreHarness) -> None:
        policy = BanPolicy("1/minute", "10m", jitter=0, max_rate="2/1m")
        made = [await store.strike(f"user:{number}", 1, policy) for number in range(20)]
        assert [ban is not None for ban in made] == [True] * 2 + [False] * 18
        assert store.heard.kinds.count("bans_capped") == 1
        assert store.heard.kinds.count("banned") == 2
        store.clock.advance("1m")
        assert await store.strike("user:9", 1, policy)

    @with_store()
    async def test_a_thousand_tasks_that_cross_the_threshold_make_one_ban(self, store: StoreHarness) -> None:
        made = await asyncio.gather(*(store.strike("user:eve") for _ in range(1_000)))
        assert [ban.level for ban in made if ban is not None] == [1]
        assert store.heard.kinds == ["banned"]

    @with_store()
    async def test_threads_that_cross_the_threshold_make_one_ban(self, store: StoreHarness) -> None:
        async def strike() -> list[Ban]:
            made = [await store.strike("user:eve") for _ in range(200)]
            return [ban for ban in made if ban is not None]

        made = [ban for bans in await in_threads(strike) for ban in bans]
        assert ([ban.level for ban in made], store.heard.kinds) == ([1], ["banned"])
