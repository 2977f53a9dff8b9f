"""Who waits is counted while it waits, and how long it has waited afterwards."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate.limiter.waits import OUTCOMES, Waits
from slidegate.testing import FakeClock


@given(st.lists(st.tuples(st.sampled_from(OUTCOMES), st.integers(-1_000, 10**8)), max_size=20))
def test_every_wait_is_counted_once_with_its_outcome_and_its_time(waited: list[tuple[str, int]]) -> None:
    clock = FakeClock(10**12)
    waits = Waits(clock)
    for outcome, took_us in waited:
        with waits.one() as wait:
            assert waits.waiting == 1
            clock.set(clock() + took_us)
            wait.outcome = outcome
    assert waits.waiting == 0
    for outcome, times in waits.ever().items():
        times_us = [max(took_us, 0) for other, took_us in waited if other == outcome]
        assert (times.count, times.sum_us) == (len(times_us), sum(times_us))


async def test_one_that_is_cancelled_or_fails_has_left() -> None:
    waits = Waits()

    async def stand() -> None:
        with waits.one():
            await anyio.sleep_forever()

    async with asyncio.TaskGroup() as tasks:
        standing = [tasks.create_task(stand()) for _ in range(5)]
        await asyncio.sleep(0)
        assert waits.waiting == 5
        for task in standing:
            task.cancel()
    with pytest.raises(OSError, match="gone"), waits.one():
        raise OSError("gone")
    assert waits.waiting == 0
    assert {outcome: times.count for outcome, times in waits.ever().items()} == {
        "passed": 0,
        "refused": 0,
        "left": 6,
    }
