"""Bans in stores of every kind: how many are in force, without a look at each, and who is refused by which."""

import asyncio
import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slidegate import BanPolicy, MemoryStore
from slidegate.core import Ban, BanSubject, Reason
from slidegate.core.addresses import BITS, Address, format_network
from slidegate.core.bans.ban import ban_key, longest
from slidegate.core.bans.rows import to_rows
from slidegate.testing import FakeClock, RecordingObserver

from ..contract.harness import bucket
from ..contract.player import settle
from ..redis_servers import AT_REDIS, BOUND_S, needs_redis
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
async def test_where_there_is_no_room_bans_are_made_by_hand_and_imported_alone(opened: Opened) -> None:
    heard = RecordingObserver()
    store, full = (opened(place, max_bans=1, clock=FakeClock(10**15)) for place in ("store", "full"))
    store.observe(heard)
    assert await strike(store, AT_ONCE, "user:ann", "user:bob", "user:eve") == [True, False, False]
    await settle(store.bans.ban("user:bob", None, "", "ann"))
    assert sorted(ban.key for ban in await active(store)) == ["user:ann", "user:bob"]
    assert heard.kinds == ["banned", "bans_full", "banned"], "what goes on and on is told once"
    await settle(full.bans.ban("user:old", None, "", "ann"))
    assert await settle(full.bans.load([*to_rows(await active(store))])) == 2
    assert sorted(ban.key for ban in await active(full)) == ["user:ann", "user:bob", "user:old"]


@pytest.mark.parametrize("kind", ["lmdb", AT_REDIS])
async def test_sixteen_workers_that_strike_one_key_make_one_ban_and_an_unban_forgives_it(opened: Opened) -> None:
    policy, heard = BanPolicy("50/10m", "1h", factor=2, forgive="1h"), RecordingObserver()
    stores = [opened() for _ in range(16)]
    for store in stores:
        store.observe(heard)
    for _ in range(2):
        async with asyncio.timeout(BOUND_S):
            while not (in_force := await active(stores[0])):
                await asyncio.gather(*(settle(store.bans.strike(policy, "user:eve", 1, "why")) for store in stores))
        assert [ban.level for ban in in_force] == [1]
        assert [ban.key for ban in await active(stores[7])] == ["user:eve"]
        assert [await strike(store, policy, "user:eve") for store in stores] == [[False]] * 16
        assert await settle(stores[3].bans.unban("user:eve", "ann"))
        assert await active(stores[0]) == []
    assert heard.kinds == ["banned", "unbanned"] * 2


def test_bans_that_have_ended_are_forgotten_by_counting() -> None:
    clock = FakeClock(10**15)
    bans = MemoryStore(clock=clock).bans
    for number in range(2_500):
        bans.ban(f"user:{number}", SECOND_US, "why", "me")
    bans.ban("user:ever", None, "why", "me")
    clock.advance("2s")
    assert [bans.count() for _ in range(3)] == [2_437, 2_373, 2_309], "64 are forgotten at each look"
    assert [ban.key for ban in bans.active()] == ["user:ever"]


@ALL
async def test_bans_that_have_ended_hold_no_places(opened: Opened) -> None:
    clock = FakeClock(10**15)
    store = opened(max_bans=100, clock=clock)
    for number in range(400):
        await settle(store.bans.ban(f"user:{number}", SECOND_US, "why", "me"))
    clock.advance("2s")
    rows = [*to_rows(await active(store))]
    assert await strike(store, AT_ONCE, *(f"attacker:{number}" for number in range(102))) == [True] * 100 + [False] * 2
    clock.advance("1h")
    assert await settle(store.bans.load(rows)) == 0
    assert await strike(store, AT_ONCE, "attacker:0") == [True]


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
async def test_strikes_that_have_left_hold_no_places_for_those_of_other_policies(opened: Opened) -> None:
    clock, heard = FakeClock(10**15), RecordingObserver()
    store = opened(max_keys=10, clock=clock)
    store.observe(heard)
    old, new = (BanPolicy("3/minute", "10m", name=name) for name in ("old", "new"))
    await strike(store, old, *(f"user:{number}" for number in range(4)))
    for _ in range(3):  # in memory a window goes at most two windows after its last strike
        clock.advance("2m")
        await strike(store, old, "sweeps")
    clock.advance("2m")
    await strike(store, new, *(f"attacker:{number}" for number in range(8)), weight=2)
    assert "strikes_dropped" not in heard.kinds
    assert await strike(store, new, "attacker:0") == [True]


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
async def test_a_strike_without_room_for_a_window_is_not_counted_and_nobody_shares_one(opened: Opened) -> None:
    heard = RecordingObserver(without=["banned", "keys_shared"])
    store = opened(max_keys=4, clock=FakeClock(10**15))
    store.observe(heard)
    one, two = (BanPolicy("2/minute", "10m", name=name) for name in ("one", "two"))
    for policy in (one, two):
        await strike(store, policy, "user:ann", "user:bob")
    assert heard.kinds == []
    for number in range(5_000):
        assert await strike(store, one, f"user:{number}", weight=2) == [False]
    assert heard.kinds == ["strikes_dropped"]
    assert heard.events[-1].details == {"max_keys": 4}
    assert (await settle(store.hit(((bucket("5/minute"), "user:eve", 1),)))).allowed, "which a shared cell counts"
    assert await settle(store.bans.unban("user:bob", "ann"))
    assert await strike(store, two, "user:dan", "user:eve") == [False, False]
    assert heard.kinds == ["strikes_dropped"], "who is forgiven leaves room"
    assert await strike(store, one, "user:ann") == [True]
    assert await strike(store, two, "user:ann", "user:dan", "user:eve") == [False, True, True]


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
async def test_as_many_levels_are_kept_as_bans_and_others_are_forgotten(opened: Opened) -> None:
    clock = FakeClock(10**15)
    store = opened(max_bans=4, clock=clock)
    policy = BanPolicy("1/minute", "10m", forgive="1d")
    for number in range(12):
        assert await strike(store, policy, f"user:{number}") == [True]
        clock.advance("10m")
    assert await levels_of(store) == 4
    again = [await settle(store.bans.strike(policy, f"user:{number}", 1, "why")) for number in (11, 10, 9, 8)]
    levels = [ban.level for ban in again]
    assert 2 in levels
    if isinstance(store, MemoryStore):
        assert levels == [2, 2, 2, 2], "the oldest are forgotten first"


# -- who is refused: the longest of the bans that hold, whatever is banned beside it -----------------------------------


PLENTY = bucket("1000000/minute")
FOR_AN_HOUR = BanPolicy("1/hour", "1h", name="p")
KEYS = ("user:eve", "fade:42/7", "x" * 64, "\u00e9", "1.2.3")
GROUPS = st.lists(st.sampled_from((0, 0, 0, 1, 0xDB8)), min_size=8, max_size=8)
ADDRESSES = st.one_of(
    st.tuples(st.just(4), st.integers(0, 2**32 - 1)),
    st.tuples(st.just(6), st.integers(2**64, 2**128 - 1)),
    GROUPS.map(lambda groups: (6, sum(group << 16 * place for place, group in enumerate(groups)) | 1 << 127)),
)


@st.composite
def networks(draw: st.DrawFn) -> tuple[Address, str]:
    """Return an address, and a network that it lies in."""
    version, value = draw(ADDRESSES)
    return (version, value), format_network(version, value, draw(st.integers(1, 32 if version == 4 else 128)))


def refuses(ban: Ban, subject: BanSubject) -> bool:
    if isinstance(subject, str):
        return ban.key == subject
    version, value = subject
    if (network := ban.network()) is None or network[0] != version:
        return False
    return value >> BITS[version] - network[1] == int.from_bytes(network[2], "big")


class Banned:
    """A store in which networks and keys are banned, by hand and by strikes, and some of them lifted."""

    def __init__(self, store: Any, other: Any) -> None:
        self.store, self.other = store, other

    async def ban(self, drawn: list[tuple[Address, str]], keys: list[str]) -> None:
        bans = self.store.bans
        for place, (_, network) in enumerate(drawn):
            if place % 3:
                await settle(bans.ban(ban_key(network), (place + 1) * 60_000_000, "", "ann"))
            else:
                await settle(bans.strike(FOR_AN_HOUR, ban_key(network), 1, ""))
        for key in keys[::2]:
            await settle(bans.ban(key, None, "", "ann"))
        for _, network in drawn[2::4]:
            await settle(bans.unban(ban_key(network), "ann"))

    async def check(self, subjects: list[BanSubject]) -> None:
        listed = list(await settle(self.store.bans.active()))
        # After this other workers know networks; else they do within a second.
        assert sorted(await settle(self.other.bans.active())) == sorted(listed)
        for subject in subjects:
            expected = longest(ban for ban in listed if refuses(ban, subject))
            assert await settle(self.store.bans.find((subject,))) == expected
            answer = await settle(self.other.hit(((PLENTY, "user:ann", 1),), (subject,)))
            assert answer.ban == expected
            assert answer.reason is (Reason.OK if expected is None else Reason.BANNED)


@pytest.mark.parametrize("kind", ["memory", "lmdb", pytest.param("redis", marks=needs_redis)])
def test_a_request_is_refused_by_the_ban_that_a_list_of_all_bans_finds(kind: str, opened: Opened) -> None:
    numbers = itertools.count()

    async def play(drawn: list[tuple[Address, str]], keys: list[str], others: list[Address]) -> None:
        clock, place = FakeClock(1_900_000_000_000_000), str(next(numbers))
        stores = [opened(place, clock=clock) for _ in range(1 if kind == "memory" else 2)]
        banned = Banned(stores[0], stores[-1])
        await banned.ban(drawn, keys)
        subjects = [*(found for found, _ in drawn), *others, *keys, *(ban_key(network) for _, network in drawn)]
        await banned.check(subjects)
        clock.advance("150s")  # bans of two minutes are over
        await banned.check(subjects)
        for store in stores:
            await settle(store.close())

    with asyncio.Runner() as runner:

        @settings(deadline=None, max_examples=60)
        @given(
            st.lists(networks(), max_size=6),
            st.lists(st.sampled_from(KEYS), max_size=4, unique=True),
            st.lists(ADDRESSES, max_size=3),
        )
        def check(drawn: list[tuple[Address, str]], keys: list[str], others: list[Address]) -> None:
            runner.run(play(drawn, keys, others))

        check()
