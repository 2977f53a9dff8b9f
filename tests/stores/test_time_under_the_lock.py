"""A store reads its clock once nobody else can decide: who was stopped before that never decides by an old time."""

import asyncio
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from slidegate import Limiter
from slidegate.core import Bucket, Decision, StoreUnavailable, parse_limits
from slidegate.testing import FakeClock

from ..hurry import PATIENCE_S
from ..remote_stores import SickStore
from .conftest import Opened

SECOND_US = 1_000_000
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
def test_who_is_stopped_with_the_time_it_has_read_lets_nobody_past_the_limit(
    opened: Opened, what: str, limits: str
) -> None:
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
