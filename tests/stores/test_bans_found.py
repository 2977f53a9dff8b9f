"""A request is refused by the longest of the bans that hold it, whatever networks and keys are banned beside it."""

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slidegate import BanPolicy
from slidegate.core import Ban, BanSubject, Reason
from slidegate.core.addresses import BITS, Address, format_network
from slidegate.core.bans.ban import ban_key, longest
from slidegate.testing import FakeClock

from ..contract.harness import bucket
from ..contract.player import settle
from ..redis_servers import needs_redis
from .conftest import Opened

PLENTY = bucket("1000000/minute")
AT_ONCE = BanPolicy("1/hour", "1h", name="p")
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
                await settle(bans.strike(AT_ONCE, ban_key(network), 1, ""))
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
