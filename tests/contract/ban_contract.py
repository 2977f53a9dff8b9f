"""The part of the store contract for bans: refusing, making, removing, exporting and importing them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from slidegate import BanPolicy
from slidegate.core import Ban, ConfigurationError, Reason
from slidegate.testing import FakeClock

from .ban_player import BanPlayer
from .harness import StoreHarness, bucket, in_threads, with_store
from .player import settle
from .programs import HOUR_US, SECOND_US, Choices, drawn

UNREADABLE: tuple[list[Any], ...] = ([], [{"slidegate": "bans", "version": 99}], [{}])


class BansContract:
    """The tests; see `StoreContract`."""

    make_store: Callable[[FakeClock], Any]

    def test_bans_are_those_of_the_reference(self) -> None:
        """Levels, ends and strikes match for any order of strikes, requests, bans, waits and restarts."""
        with asyncio.Runner() as runner:

            @settings(deadline=None)
            @given(drawn(150, 600))
            def check(choices: Choices) -> None:
                runner.run(BanPlayer(self.make_store, choices).play())

            check()

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
    async def test_a_strike_that_bans_ends_what_was_known_of_earlier_refusals(self, store: StoreHarness) -> None:
        own = (bucket("1/400d"), "203.0.113.7", 1)
        await store.hit(own)
        assert (await store.hit(own)).reason is Reason.LIMITED
        ban = await store.strike("203.0.113.7", 3)
        assert (await store.hit(own)).ban == ban is not None
        await store.unban("203.0.113.7")
        shorter = await store.ban("203.0.113.0/24", SECOND_US)
        assert (await store.request("203.0.113.7")).ban == shorter
        ban = await store.strike("203.0.113.7", 3)
        assert (await store.request("203.0.113.7")).ban == ban is not None

    @with_store()
    async def test_what_cannot_be_read_changes_nothing(self, store: StoreHarness) -> None:
        await store.ban("user:eve")
        rows = await store.export()
        await store.unban("user:eve")
        for bad in (*UNREADABLE, [*rows, {"key": "user:ann"}], [*rows, {"ban": "user:ann"}]):
            with pytest.raises(ConfigurationError, match=r"^bans"):
                await settle(store.raw.bans.load(bad))
        assert await store.banned() == []

    @with_store()
    async def test_nothing_is_left_of_strikes_after_their_window(self, store: StoreHarness) -> None:
        for after in ("3/minute", "100/minute", "100/7s"):
            policy = BanPolicy(after, name=after)
            await store.strike("user:eve", policy=policy)
            store.clock.advance(us=policy.after.window_us)
            assert not await store.unban("user:eve"), f"they are counted {after}"

    @with_store()
    async def test_a_clock_that_is_set_moves_the_ends_of_bans(self, store: StoreHarness) -> None:
        until_us = store.clock.now_us + HOUR_US
        await store.ban("user:eve")
        for step_us in (-86_400 * SECOND_US, 86_400 * SECOND_US, HOUR_US - 1):
            store.clock.advance(us=step_us)
            (ban,) = await settle(store.raw.bans.active())
            assert ban.until_us == until_us
            assert (await store.request("user:eve")).retry_after_us == until_us - store.clock.now_us
        store.clock.advance(us=1)
        assert await store.request("user:eve")

    @with_store()
    async def test_a_thousand_networks_are_banned_and_no_more(self, store: StoreHarness) -> None:
        networks = [f"10.{number // 256}.{number % 256}.0/24" for number in range(1_001)]
        await store.ban(networks[0])
        head, row = await store.export()
        await settle(store.raw.bans.load([head, *({**row, "key": network} for network in networks[1:-9])]))
        for network in networks[-9:-1]:
            await store.ban(network)
        with pytest.raises(ConfigurationError, match="blocklist"):
            await store.ban(networks[-1])
        assert await store.request("10.3.232.7")
        await store.ban(networks[5], None)  # one that is banned already
        await store.ban("203.0.113.7")  # one client is no network
        rows = await store.export()
        await store.unban(networks[0])
        await store.ban(networks[-1])
        assert not await store.request("10.3.232.7")
        before = await store.banned()
        with pytest.raises(ConfigurationError, match="blocklist"):
            await settle(store.raw.bans.load([*rows[:1], *reversed(rows[1:])]))
        assert await store.banned() == before

    @with_store()
    async def test_a_thousand_tasks_that_cross_the_threshold_make_one_ban(self, store: StoreHarness) -> None:
        made = await asyncio.gather(*(store.strike("user:eve") for _ in range(1_000)))
        assert [ban.level for ban in made if ban is not None] == [1]
        assert store.observer.kinds == ["banned"]

    @with_store()
    async def test_threads_that_cross_the_threshold_make_one_ban(self, store: StoreHarness) -> None:
        async def strike() -> list[Ban]:
            made = [await store.strike("user:eve") for _ in range(200)]
            return [ban for ban in made if ban is not None]

        made = [ban for bans in await in_threads(strike) for ban in bans]
        assert store.observer.kinds == ["banned"]
        assert [ban.level for ban in made] == [1]
