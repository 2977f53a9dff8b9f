"""What the script stores is, byte for byte, what the functions of the core return."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from slidegate.core.decide import decide, refund_all
from slidegate.core.decision import Decision, LimitSet
from slidegate.core.limits import Limit, parse_limits
from slidegate.core.quotas import PERIOD, Quota
from slidegate.core.ring import HEAD, entries
from slidegate.stores.redis import RedisStore
from slidegate.testing import FakeClock
from slidegate.testing.contract.player import settle
from slidegate.testing.contract.programs import YEAR_2100_US, Choices

from ...redis_servers import RedisServer, needs_redis
from .stores import store_at

pytestmark = needs_redis

EMPTY = b"", HEAD.pack(0, 0, 0, 0, -1)


class Golden:
    """Plays one program to a key in Redis and to bytes that the core changes, and compares them after each move."""

    def __init__(self, redis: Redis, store: RedisStore, clock: FakeClock, rolled: bytes) -> None:
        self.redis, self.store, self.clock, self.dice = redis, store, clock, Choices(rolled)
        resolution = self.dice.pick((1, 2, 3, 8))
        window_us = self.dice.pick((1_000, 4_001, 60_000_000))
        amounts = resolution, resolution * 3, 2**31 - 1  # exact, and in slices
        self.limits = [Limit(most, timedelta(microseconds=window_us), resolution=resolution) for most in amounts]
        self.limit = self.dice.pick(self.limits)
        self.window = b""
        self.latest_us = 0
        self.charged: list[tuple[Decision, Decision]] = []

    async def play(self) -> None:
        moves = self.hit, self.hit, self.go, self.go, self.charge, self.charge, self.refund, self.rare
        while self.dice:
            await self.dice.pick(moves)()
            self.compare()

    def compare(self) -> None:
        """Compare the bytes; where nothing was written since, nothing but time has changed them."""
        stored = b""
        for packed in self.redis.hvals(f"{self.store._prefix}:7:w:{{ann}}"):
            assert isinstance(packed, bytes)
            stored = packed
        ours, theirs = (self.limit.counter.settle(window, self.clock.now_us) for window in (stored, self.window))
        assert ours == theirs or (ours in EMPTY and theirs in EMPTY), (_shown(ours), _shown(theirs))

    async def hit(self) -> None:
        """Spend, once or twice in one question."""
        self.latest_us = max(self.latest_us, self.clock.now_us)
        twice = self.dice.below(6) == 0
        twice = twice and self.limit.counter.state(self.window)[0] < 2**31  # a ring that is full holds no second cost
        bucket = LimitSet("rule", (self.limit,), count_denied=self.dice.below(8) == 0)
        checks = [(bucket, "ann", self.dice.pick((1, 1, 2, 3, 0))) for _ in range(1 + twice)]
        ours = await settle(self.store.hit(checks))
        windows = {"ann": self.window}
        places: Any = [(self.limit.counter, cost, windows, "ann") for _, _, cost in checks]
        theirs = decide(checks, places, self.clock.now_us)
        self.window = windows["ann"]
        assert (ours.reason, list(ours.readings)) == (theirs.reason, list(theirs.readings))
        if ours.reservations:
            self.charged.append((ours, theirs))

    async def charge(self) -> None:
        """Spend whatever the limit, now and then in more moments than a ring remembers."""
        for _ in range(self.dice.pick((1, 1, 1, 2 * self.limit.resolution + 3))):
            await self._charge(self.dice.pick((1, 1, 1, 5, 2**31, 2**40)))
            self.clock.advance(us=self.dice.pick((0, 1, self.limit.counter.step_us)))

    async def _charge(self, units: int) -> None:
        self.latest_us = max(self.latest_us, self.clock.now_us)
        ours = await self.store.charge([(LimitSet("rule", (self.limit,)), "ann", units)])
        self.window, kept = self.limit.counter.charge(self.window, self.clock.now_us, min(units, 2**32 - 1))
        (charged,) = ours.reservations
        assert ([*charged.marks], [*charged.units]) == ([self.limit.counter.mark(self.window)], [kept])

    async def refund(self) -> None:
        if self.charged:
            ours, theirs = self.charged.pop(self.dice.below(len(self.charged)))
            back = ours.take_back()
            if back:  # else nobody is asked, and no time is seen
                self.latest_us = max(self.latest_us, self.clock.now_us)
            windows = {"ann": self.window}
            places: Any = [(bucket.limits[0].counter, cost, windows, "ann") for bucket, _, cost in theirs.checks]
            handed = refund_all(theirs.reservations, places, self.clock.now_us, latest_us=self.latest_us)
            assert await settle(self.store.refund(back)) is handed
            self.window = windows["ann"]

    async def go(self) -> None:
        span_us = self.dice.pick((1, 1, self.limit.slice_us, self.limit.slice_us // 2, self.limit.window_us))
        span_us *= self.dice.pick((1, 1, 1, 1, 1, 2, -1))
        self.clock.set(max(self.clock.now_us + span_us, 0))

    async def rare(self) -> None:
        """Forget the key, or set the amount."""
        if self.dice.below(2):
            await self.store.reset("ann")
            there, now_us = self.window not in EMPTY, self.clock.now_us
            self.window = self.limit.counter.reset(self.window, now_us, self.latest_us) if there else b""
        else:
            self.limit = self.dice.pick(self.limits)


def _shown(window: bytes) -> object:
    return window and (HEAD.unpack_from(window), *entries(window))


def test_rings_are_stored_in_the_bytes_of_the_core(server: RedisServer) -> None:
    async def play(rolled: bytes) -> None:
        clock = FakeClock(YEAR_2100_US)
        async with store_at(server, clock=clock, readable=True) as store:
            await Golden(redis, store, clock, rolled).play()

    with Redis.from_url(server.url) as redis, asyncio.Runner() as runner:

        @settings(deadline=None, max_examples=60)
        @given(st.one_of(st.binary(max_size=60), st.binary(min_size=200, max_size=600)))
        def check(rolled: bytes) -> None:
            runner.run(play(rolled))

        check()


async def test_counts_of_quotas_are_stored_in_the_bytes_of_the_core(server: RedisServer) -> None:
    clock = FakeClock(YEAR_2100_US)
    bucket = LimitSet("plan", parse_limits(Quota("10/day")))
    end_us = Quota("10/day").period_at(YEAR_2100_US).end_us
    async with store_at(server, clock=clock) as store:
        charged = [await settle(store.hit([(bucket, "ann", cost)])) for cost in (3, 4)]
        assert await settle(store.refund(charged[0].take_back()))
        (name,) = server.command("KEYS", f"{store._prefix}:7:w:*")
        assert server.command("HVALS", name) == [PERIOD.pack(end_us, 0, -1, 4)]
        assert (await store.inspect("ann", [bucket])).windows == [PERIOD.pack(end_us, 0, -1, 4)]
        assert await store.reset("ann")
        assert server.command("HVALS", name) == [PERIOD.pack(end_us, 0, YEAR_2100_US, 0)]
