"""The part of the store contract about bans: how they refuse, and how they are made, lifted and moved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from ...core.addresses import parse_address
from ...core.decision import Reason
from ...core.errors import ConfigurationError
from ...core.store import Store
from ..clock import FakeClock
from .ban_desk import HOUR_US, BanDesk
from .ban_player import BanPlayer
from .ban_programs import BanProgram, ban_programs
from .desk import SECOND_US, Desk, at_a_desk, bucket
from .player import settle
from .strike_contract import StrikesContract

UNREADABLE: tuple[list[Any], ...] = ([], [{"slidegate": "bans", "version": 99, "written_us": 0}], [{}])


class BansContract(StrikesContract):
    """The tests; see `StoreContract`."""

    make_store: Callable[[FakeClock], Any]

    def test_bans_are_those_of_the_reference(self) -> None:
        """Any order of strikes, requests, bans, time and restarts: the same rungs, ends and strikes."""
        with asyncio.Runner() as runner:

            @settings(deadline=None)
            @given(ban_programs())
            def check(program: BanProgram) -> None:
                player = BanPlayer(self.make_store, program.start_us, program.policies)
                runner.run(player.play(program.moves))

            check()

    @at_a_desk
    async def test_a_ban_refuses_until_its_last_microsecond(self, desk: Desk) -> None:
        bans = BanDesk(desk)
        made = await bans.ban("192.0.2.7")
        assert made.ends_us == made.made_us + HOUR_US
        refused = await bans.hit("192.0.2.7")
        assert (refused.reason, refused.retry_after_us, refused.by) == (Reason.BANNED, HOUR_US, "ann")
        assert refused.ban == made
        assert refused.states == ()
        bans.clock.advance(us=HOUR_US - 1)
        refused = await bans.hit("192.0.2.7")
        assert (refused.reason, refused.retry_after_us, refused.retry_after) == (Reason.BANNED, 1, 1)
        bans.clock.advance(us=1)
        assert await bans.hit("192.0.2.7")
        assert await bans.banned() == []

    @at_a_desk
    async def test_nothing_is_charged_while_banned(self, desk: Desk) -> None:
        bans = BanDesk(desk)
        assert (await bans.hit("user:eve", 40)).remaining == 60
        await bans.ban("user:eve")
        refused = await bans.hit("user:eve", 40)
        assert await desk.refund(refused) is False
        both = ((bucket("100/400d"), "user:eve", 1), (bucket("100/400d"), "user:ann", 1))
        assert (await desk.hit(*both)).reason is Reason.BANNED
        assert (await desk.peek(*both)).reason is Reason.BANNED
        await bans.unban("user:eve")
        assert (await bans.hit("user:eve", 0)).remaining == 60
        assert (await bans.hit("user:ann", 0)).remaining == 100

    @at_a_desk
    async def test_a_network_holds_its_addresses_and_no_others(self, desk: Desk) -> None:
        bans = BanDesk(desk)
        for network in ("192.0.2.128/25", "2001:db8:1::/48", "2001:db8:2::7/128"):
            await bans.ban(network)
        held = (
            "192.0.2.128",
            "192.0.2.255",
            "::ffff:192.0.2.200",
            "2001:db8:1::",
            "2001:db8:1:ffff::1",
            "2001:db8:2::7",
        )
        free = ("192.0.2.127", "192.0.3.0", "2001:db8:0:ffff::1", "2001:db8:2::1", "2001:db8:2::8", "192.0.2.128/26")
        assert [(await bans.hit(client)).reason for client in held] == [Reason.BANNED] * len(held)
        assert [(await bans.hit(client)).reason for client in free] == [Reason.OK] * len(free)

    @at_a_desk
    async def test_of_several_bans_the_longest_is_named(self, desk: Desk) -> None:
        bans = BanDesk(desk)
        await bans.ban("192.0.2.7", HOUR_US)
        assert (await bans.hit("192.0.2.7")).retry_after_us == HOUR_US
        wide = await bans.ban("192.0.2.0/24", 2 * HOUR_US)
        assert (await bans.hit("192.0.2.7")).ban == wide
        for_ever = await bans.ban("192.0.2.0/30", None)
        assert (await bans.hit("192.0.2.3")).ban == for_ever
        assert (await bans.hit("192.0.2.4")).ban == wide
        address = parse_address("192.0.2.3")
        assert address is not None
        assert await settle(desk.store.bans.find([address])) == for_ever
        assert await settle(desk.store.bans.find(["192.0.2.3", "user:ann"])) is None

    @at_a_desk
    async def test_a_permanent_ban_has_no_end_until_it_is_taken_back(self, desk: Desk) -> None:
        bans = BanDesk(desk)
        assert (await bans.ban("user:eve", None)).until is None
        bans.clock.advance("400d")
        refused = await bans.hit("user:eve")
        assert (refused.reason, refused.retry_after_us, refused.retry_after) == (Reason.BANNED, None, None)
        assert await bans.unban("user:eve") is True
        assert await bans.hit("user:eve")

    @at_a_desk
    async def test_a_ban_by_hand_takes_the_place_of_another(self, desk: Desk) -> None:
        bans = BanDesk(desk)
        for length_us in (None, 2 * HOUR_US, HOUR_US, HOUR_US):
            await bans.ban("user:eve", length_us)
        assert await bans.banned() == ["user:eve"]
        assert (await bans.hit("user:eve")).retry_after_us == HOUR_US
        assert [await bans.unban("user:eve") for _ in range(2)] == [True, False]

    @at_a_desk
    async def test_each_change_is_told_once_and_remembered(self, desk: Desk) -> None:
        bans = BanDesk(desk)
        await bans.strike("user:eve", 5)
        await bans.ban("192.0.2.7", None)
        bans.clock.advance("1s")
        await bans.unban("user:eve")
        await bans.unban("user:eve")
        history = await settle(desk.store.bans.history())
        rows = [(change.kind, change.ban.key, change.ban.by, change.by) for change in history]
        assert rows == [
            ("banned", "user:eve", "abuse", "abuse"),
            ("banned", "192.0.2.7", "ann", "ann"),
            ("unbanned", "user:eve", "abuse", "bob"),
        ]
        assert (history[2].at - history[0].at).total_seconds() == 1
        assert bans.heard.kinds == [kind for kind, *_ in rows]
        first = bans.heard.events[0].details
        assert (first["key"], first["by"], first["reason"], first["rung"]) == ("user:eve", "abuse", "refused", 1)

    @at_a_desk
    async def test_a_ban_that_is_over_is_not_taken_back(self, desk: Desk) -> None:
        bans = BanDesk(desk)
        await bans.ban("user:eve", SECOND_US)
        bans.clock.advance("1s")
        assert await bans.unban("user:eve") is False
        assert bans.heard.kinds == ["banned"]

    @at_a_desk
    async def test_bans_move_to_a_store_whose_clock_stands_elsewhere(self, desk: Desk) -> None:
        old = BanDesk(desk)
        await old.strike("user:eve", 3)
        await old.strike("user:bob", 2)
        await old.ban("192.0.2.0/24", None)
        old.clock.advance("5m")
        rows = await old.dump()
        clock = FakeClock(7 * SECOND_US)
        store: Store = await settle(self.make_store(clock))
        new = BanDesk(Desk(store, clock))
        assert [await settle(store.bans.load(rows)) for _ in range(2)] == [2, 2]
        assert (await new.hit("user:eve")).retry_after_us == 300 * SECOND_US
        assert (await new.hit("192.0.2.9")).retry_after_us is None
        assert new.heard.kinds == []
        clock.advance(us=300 * SECOND_US - 1)
        assert not await new.hit("user:eve")
        clock.advance(us=1)
        assert await new.hit("user:eve")
        made = await new.strike("user:eve", 3)
        assert made is not None
        assert made.rung == 2
        await settle(store.close())

    @at_a_desk
    async def test_what_cannot_be_read_changes_nothing(self, desk: Desk) -> None:
        bans = BanDesk(desk)
        await bans.ban("user:eve")
        rows = await bans.dump()
        await bans.unban("user:eve")
        for bad in (*UNREADABLE, [*rows, {"ban": "user:ann"}], [*rows, {"standing": "user:ann", "policy": "abuse"}]):
            with pytest.raises(ConfigurationError, match=r"^bans"):
                await settle(desk.store.bans.load(bad))
        assert await bans.banned() == []

    @at_a_desk
    async def test_of_two_bans_of_a_key_the_longer_stays(self, desk: Desk) -> None:
        bans = BanDesk(desk)
        await bans.ban("user:ann", HOUR_US)
        await bans.ban("user:eve", 2 * HOUR_US)
        rows = await bans.dump()
        await bans.ban("user:ann", 2 * HOUR_US)
        await bans.ban("user:eve", HOUR_US)
        assert await settle(desk.store.bans.load(rows)) == 2
        for key in ("user:ann", "user:eve"):
            assert (await bans.hit(key)).retry_after_us == 2 * HOUR_US

    @at_a_desk
    async def test_a_clock_that_steps_prolongs_no_ban(self, desk: Desk) -> None:
        bans = BanDesk(desk)
        await bans.ban("user:eve")
        for step in (-86_400, 86_400, -86_400):
            bans.clock.advance(us=step * SECOND_US)
            refused = await bans.hit("user:eve")
            assert refused or (refused.retry_after_us or 0) <= HOUR_US
        bans.clock.advance(us=HOUR_US)
        assert await bans.hit("user:eve")
