"""The event loop whose time is a fake clock's: timers end when the clock says so, whatever that said at first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from slidegate.testing import FakeClock

from ..virtual_time import VirtualTime

SLEEPS_US = (1, 37, 1_000, 250_000, 1_500_001)


def bound(loop: Any, most: int) -> None:
    """Have an event loop fail that goes round without an end."""
    select, turns = loop._selector.select, 0

    def counted(timeout: float | None = None) -> Any:
        nonlocal turns
        turns += 1
        assert turns < most, "the event loop goes round, and no timer ends"
        return select(timeout)

    loop._selector.select = counted


@pytest.mark.parametrize("start_us", [0, 10**9, 10**14, 10**15, 10**18, 2**62])
def test_timers_end_at_their_microsecond_whatever_the_clock_said_at_first(start_us: int) -> None:
    async def sleep() -> list[int]:
        bound(asyncio.get_running_loop(), 1_000)
        virtual, ends = VirtualTime(FakeClock(start_us)), []
        for span_us in SLEEPS_US:
            await asyncio.sleep(span_us / 1_000_000)
            ends.append(virtual.clock() - start_us)
        assert round(virtual.passed_s * 1_000_000) == sum(SLEEPS_US)
        return ends

    assert asyncio.run(sleep()) == [sum(SLEEPS_US[: place + 1]) for place in range(len(SLEEPS_US))]
