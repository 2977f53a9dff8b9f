"""The clocks of a store: read once nobody else can decide; the wall clock for bans and quotas, another for windows."""

import asyncio
import random
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from slidegate import Decision, Limiter, Quota, parse_limits
from slidegate.core import Bucket, StoreUnavailable
from slidegate.testing import FakeClock

from ..contract.harness import bucket
from ..contract.player import settle
from ..contract.programs import DAY_US, HOUR_US, SECOND_US
from ..hurry import PATIENCE_S
from ..redis_servers import AT_REDIS
from ..remote_stores import SickStore
from .conftest import Opened

START_US = 10**12
PAUSE_S = 0.2
"""How long the others may take if nothing keeps them out; with a lock around the clock they cannot be done by then."""
HERE = pytest.mark.parametrize("kind", ["memory", "lmdb"])


class StoppingClock(FakeClock):
    """A clock of which one reader is stopped, with the time that it has read, until it is let go on.

    Attributes:
        stops_at: The reading at which that is so, counted from the next one; 0 for none.
    """

    def __init__(self) -> None:
        super().__init__(START_US)
        self.stops_at = 0
        self.was_read, self.goes_on = threading.Event(), threading.Event()

    def __call__(self) -> int:
        now_us = self.now_us
        if self.stops_at:
            self.stops_at -= 1
            if not self.stops_at:
                self.was_read.set()
                assert self.goes_on.wait(PATIENCE_S)
        return now_us

    def stop(self, reading: int, act: Callable[[], object], pass_by: Callable[[], object]) -> None:
        """Let a thread act and stop at a reading, if it has so many, and another one pass by before it goes on."""
        self.stops_at = reading
        stopped, others = threading.Thread(target=act), threading.Thread(target=pass_by)
        stopped.start()
        while stopped.is_alive() and not self.was_read.wait(0.01):
            pass
        self.stops_at = 0
        others.start()
        others.join(PAUSE_S)
        self.goes_on.set()
        stopped.join()
        others.join()


@HERE
@pytest.mark.parametrize("limits", ["5/s", "40/s @10", "5/s; 100/minute"])
@pytest.mark.parametrize("what", ["hit", "charge"])
def test_who_is_stopped_with_an_old_time_lets_nobody_past_the_limit(opened: Opened, what: str, limits: str) -> None:
    """Its old time moves units that others have spent since back to it, so that they leave too early."""
    clock = StoppingClock()
    store, limited = opened(clock=clock), Bucket("rule", parse_limits(limits))
    amount = limited.limits[0].amount
    one = ((limited, "ann", 1),)
    admitted: list[Decision] = []

    def pass_by() -> None:
        clock.advance("500ms")
        admitted.append(store.hit(((limited, "ann", amount - 1),)))

    clock.stop(1, lambda: getattr(store, what)(one), pass_by)
    assert clock.was_read.is_set()
    assert admitted[0].allowed
    clock.advance("600ms")
    later = 0
    while store.hit(one):
        later += 1
    assert amount - 1 + later <= amount, "the window that began when the others hit"


@pytest.mark.parametrize("reading", [1, 2, 3, 4])
def test_who_is_stopped_while_the_store_is_away_is_counted_for_a_whole_window_all_the_same(reading: int) -> None:
    """Under `on_error="local"`: the counts of this process are kept until the last of them has left its window."""
    clock = StoppingClock()
    store: Any = SickStore(clock, inline=True)
    limiter = Limiter(store)
    limiter.engine.failover._clock = clock  # type: ignore[union-attr]
    admitted: list[int] = []

    def ask() -> None:
        decision = asyncio.run(limiter.hit("user:ann", "1/10s"))
        admitted.extend([decision.now_us] if decision.allowed else [])

    def pass_by() -> None:
        store.error = None  # it answers again
        clock.advance("1m")
        asyncio.run(limiter.hit("user:bob", "1/10s"))

    store.error = StoreUnavailable("away")
    clock.stop(reading, ask, pass_by)
    store.error = StoreUnavailable("away")
    ask()
    assert all(later - first >= 10 * SECOND_US for first, later in pairwise(admitted)), admitted


NOW_US = 4_102_444_800_000_000
KINDS = ("memory", "lmdb", AT_REDIS)


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
async def test_a_ban_ends_by_the_wall_clock_alone(opened: Opened) -> None:
    """That it is the same in any store that imports it is in the random bans of the contract."""
    clock, wall = FakeClock(7), FakeClock(NOW_US)
    store = opened(clock=clock, wall_clock=wall)
    await settle(store.bans.ban("user:eve", HOUR_US, "why", "ann"))
    for left_us in (HOUR_US, 1, 0):
        wall.set(NOW_US + HOUR_US - left_us)
        clock.advance("2h")
        decision = await settle(store.hit(((bucket("100/hour"), "user:eve", 1),)))
        assert (decision.allowed, decision.retry_after_us) == (not left_us, left_us)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_step_of_the_wall_clock_moves_the_end_of_a_quota_alone(opened: Opened, rng: random.Random) -> None:
    quota, wall = Quota("50/year"), FakeClock(NOW_US + 100 * DAY_US)
    store, limited = opened(clock=FakeClock(7), wall_clock=wall), Bucket("plan", parse_limits(quota))
    end_us = quota.period_at(wall.now_us).end_us
    for spent in range(1, 51):
        decision = await settle(store.hit(((limited, "ann", 1),)))
        assert (decision.remaining, decision.reset_after_us) == (50 - spent, end_us - wall.now_us)
        wall.set(end_us - rng.choice((1, HOUR_US, rng.randrange(1, 1_000 * DAY_US))))
    refused = await settle(store.hit(((limited, "ann", 1),)))
    assert refused.retry_after_us == end_us - wall.now_us
    wall.set(end_us)
    assert (await settle(store.hit(((limited, "ann", 1),)))).remaining == 49


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
async def test_a_step_of_the_wall_clock_moves_no_window(opened: Opened, rng: random.Random) -> None:
    clocks = [FakeClock(), FakeClock()]
    walls = [FakeClock(NOW_US), FakeClock(NOW_US)]
    stores = [opened(f"store-{at}", clock=clocks[at], wall_clock=walls[at]) for at in range(2)]
    checks = ((bucket("5/minute"), "ann", 1), (bucket("100/10m", "other"), "ann", 7))
    for _ in range(100):
        span_us = rng.choice((1, SECOND_US, 20 * SECOND_US))
        for clock, wall in zip(clocks, walls, strict=True):
            clock.advance(us=span_us)
            wall.advance(us=span_us)
        walls[1].advance(us=rng.choice((-DAY_US, -1, 0, HOUR_US, DAY_US)))
        steady, stepped = [await settle(store.hit(checks)) for store in stores]
        assert (steady.reason, steady.states) == (stepped.reason, stepped.states)
