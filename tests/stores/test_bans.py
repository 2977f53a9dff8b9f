"""Bans in stores of every kind: how many are in force, without a look at each, and how many may be."""

import asyncio
import random
from typing import Any

import pytest

from slidegate import BanPolicy, MemoryStore
from slidegate.core import parse_address
from slidegate.core.bans.rows import to_rows
from slidegate.testing import FakeClock, RecordingObserver

from ..contract.harness import bucket
from ..contract.player import settle
from ..redis_servers import AT_REDIS, BOUND_S
from .conftest import Opened

SECOND_US = 1_000_000
AT_ONCE = BanPolicy("1/minute", "10m")
ALL = pytest.mark.parametrize("kind", ["memory", "lmdb", AT_REDIS])


async def strike(store: Any, policy: BanPolicy, *keys: str, weight: int = 1) -> list[bool]:
    return [await settle(store.bans.strike(policy, key, weight, "why")) is not None for key in keys]


async def levels_of(store: Any) -> int:
    """Return how many levels a store in memory or in a file keeps."""
    if isinstance(store, MemoryStore):
        return store.bans.rows.level_count()
    return int(await settle(store._batcher.look(lambda transaction: transaction.ban_rows.level_count())))


async def active(store: Any) -> list[Any]:
    return list(await settle(store.bans.active()))


@ALL
async def test_bans_in_force_are_counted(opened: Opened) -> None:
    store = opened(clock=FakeClock(10**15))
    for number in range(5):
        await settle(store.bans.ban(f"user:{number}", 10 * SECOND_US, "why", "me"))
    await settle(store.bans.ban("user:ever", None, "why", "me"))
    await settle(store.bans.unban("user:3", "me"))
    await active(store)
    assert store.bans.count() == 5


async def fill(store: Any, policy: BanPolicy, most: int, keys: list[str]) -> int:
    """Strike each key, which bans it where there is room; return how many were not banned."""
    full = 0
    for key in keys:
        before = len(await active(store))
        (made,) = await strike(store, policy, key)
        assert made == (before < most), (key, before, most)
        full += not made
    return full


@ALL
async def test_max_bans_is_how_many_automatic_bans_are_in_force(opened: Opened, rng: random.Random) -> None:
    """Whatever was banned by hand, again or for ever, and however many bans end at once."""
    clock, wall = FakeClock(10**15), FakeClock(2 * 10**15)
    most = rng.choice((1, 10, 100))
    store = opened(max_bans=most, clock=clock, wall_clock=wall)
    for turn in range(60):
        many = rng.choice((1, 3, most, 2 * most))
        match rng.choice(("strike", "strike", "strike", "hand", "again", "unban", "wait", "wait", "suspend")):
            case "strike":
                policy = BanPolicy("1/minute", rng.choice(("10s", "1m")), name=f"p{turn % 3}")
                await fill(store, policy, most, [f"user:{turn}:{number}" for number in range(min(many, 20))])
            case "hand":
                for number in range(many):
                    await settle(store.bans.ban(f"hand:{number}", rng.choice((1, 30, 90)) * SECOND_US, "why", "me"))
            case "again":
                for number in range(30):
                    await settle(store.bans.ban("again", (30 - number) * SECOND_US, "why", "me"))
            case "unban":
                for ban in (await active(store))[:many]:
                    await settle(store.bans.unban(ban.key, "me"))
            case moved:
                span_us = rng.choice((1, 15, 70)) * SECOND_US
                wall.advance(us=span_us)
                clock.advance(us=span_us if moved == "wait" else 0)
    assert await fill(store, AT_ONCE, most, [f"last:{number}" for number in range(most + 1)])


@ALL
async def test_an_imported_network_whose_ban_begins_in_the_future_lifts_no_other(opened: Opened) -> None:
    clock = FakeClock(2 * 10**15)
    ahead, store = opened("ahead", clock=clock), opened("store", clock=FakeClock(10**15))
    await settle(ahead.bans.ban("192.0.0.0/8", None, "", "ann"))
    await settle(store.bans.ban("14.0.0.0/9", 4 * SECOND_US, "", "ann"))
    await settle(store.bans.load([*to_rows(await active(ahead))]))
    for address in ("14.17.48.66", "192.0.2.9"):
        assert await settle(store.bans.find([parse_address(address)])), address


@ALL
async def test_where_there_is_no_room_bans_are_made_by_hand_and_imported_alone(opened: Opened) -> None:
    observer = RecordingObserver()
    store, full = (opened(which, max_bans=1, clock=FakeClock(10**15)) for which in ("store", "full"))
    store.observe(observer)
    assert await strike(store, AT_ONCE, "user:ann", "user:bob", "user:eve") == [True, False, False]
    await settle(store.bans.ban("user:bob", None, "", "ann"))
    assert sorted(ban.key for ban in await active(store)) == ["user:ann", "user:bob"]
    assert observer.kinds == ["banned", "bans_full", "banned"], "what goes on and on is told once"
    await settle(full.bans.ban("user:old", None, "", "ann"))
    assert await settle(full.bans.load([*to_rows(await active(store))])) == 2
    assert sorted(ban.key for ban in await active(full)) == ["user:ann", "user:bob", "user:old"]


@pytest.mark.parametrize("kind", ["lmdb", AT_REDIS])
async def test_sixteen_workers_that_strike_one_key_make_one_ban_and_an_unban_forgives_it(opened: Opened) -> None:
    policy, observer = BanPolicy("50/10m", "1h", factor=2, forgive="1h"), RecordingObserver()
    stores = [opened() for _ in range(16)]
    for store in stores:
        store.observe(observer)
    for _ in range(2):
        async with asyncio.timeout(BOUND_S):
            while not (in_force := await active(stores[0])):
                await asyncio.gather(*(settle(store.bans.strike(policy, "user:eve", 1, "why")) for store in stores))
        assert [ban.level for ban in in_force] == [1]
        assert [ban.key for ban in await active(stores[7])] == ["user:eve"]
        assert [await strike(store, policy, "user:eve") for store in stores] == [[False]] * 16
        assert await settle(stores[3].bans.unban("user:eve", "ann"))
        assert await active(stores[0]) == []
    assert observer.kinds == ["banned", "unbanned"] * 2


def test_bans_that_have_ended_are_forgotten_by_counting() -> None:
    clock = FakeClock(10**15)
    bans = MemoryStore(clock=clock).bans
    for number in range(2_500):
        bans.ban(f"user:{number}", SECOND_US, "why", "me")
    bans.ban("user:ever", None, "why", "me")
    clock.advance("2s")
    assert [bans.count() for _ in range(3)] == [2_437, 2_373, 2_309], "64 are forgotten at each look"
    assert [ban.key for ban in bans.active()] == ["user:ever"]


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
async def test_strikes_that_have_left_hold_no_room_for_those_of_other_policies(opened: Opened) -> None:
    clock, observer = FakeClock(10**15), RecordingObserver()
    store = opened(max_keys=10, clock=clock)
    store.observe(observer)
    old, new = (BanPolicy("3/minute", "10m", name=name) for name in ("old", "new"))
    await strike(store, old, *(f"user:{number}" for number in range(4)))
    for _ in range(3):  # in memory a window goes at most two windows after its last strike
        clock.advance("2m")
        await strike(store, old, "sweeps")
    clock.advance("2m")
    await strike(store, new, *(f"attacker:{number}" for number in range(8)), weight=2)
    assert "strikes_dropped" not in observer.kinds
    assert await strike(store, new, "attacker:0") == [True]


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
async def test_a_strike_without_room_for_a_window_is_not_counted_and_nobody_shares_one(opened: Opened) -> None:
    observer = RecordingObserver(without=["banned", "keys_shared"])
    store = opened(max_keys=4, clock=FakeClock(10**15))
    store.observe(observer)
    one, two = (BanPolicy("2/minute", "10m", name=name) for name in ("one", "two"))
    for policy in (one, two):
        await strike(store, policy, "user:ann", "user:bob")
    assert observer.kinds == []
    for number in range(5_000):
        assert await strike(store, one, f"user:{number}", weight=2) == [False]
    assert observer.kinds == ["strikes_dropped"]
    assert observer.events[-1].details == {"max_keys": 4}
    assert (await settle(store.hit(((bucket("5/minute"), "user:eve", 1),)))).allowed, "which a shared cell counts"
    assert await settle(store.bans.unban("user:bob", "ann"))
    assert await strike(store, two, "user:dan", "user:eve") == [False, False]
    assert observer.kinds == ["strikes_dropped"], "who is forgiven leaves room"
    assert await strike(store, one, "user:ann") == [True]
    assert await strike(store, two, "user:ann", "user:dan", "user:eve") == [False, True, True]


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
async def test_as_many_levels_are_kept_as_bans_and_no_others(opened: Opened) -> None:
    clock = FakeClock(10**15)
    store = opened(max_bans=4, clock=clock)
    policy = BanPolicy("1/minute", "10m", factor=1, forgive="1d")
    for levels in ([1, 1, 1, 1, 1, 1], [2, 2, 2, 2, 1, 1], [3, 3, 3, 3, 1, 1]):
        for number, level in enumerate(levels):
            ban = await settle(store.bans.strike(policy, f"user:{number}", 1, "why"))
            assert ban.level == level
            clock.advance("10m")
        assert await levels_of(store) == 4
    clock.advance("4d")
    assert await strike(store, policy, "user:5") == [True]
    clock.advance("10m")
    assert (await settle(store.bans.strike(policy, "user:5", 1, "why"))).level == 2, "those that have fallen leave room"
