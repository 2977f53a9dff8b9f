"""Windows as people look at them: slices against spends that are kept one by one."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from slidegate import Limit, Limiter, MemoryStore
from slidegate.core import WindowView
from slidegate.testing import FakeClock

START_US = 1_800_000_000_000_000


def view(limit: Limit, spends: list[tuple[int, int]], later_us: int) -> tuple[WindowView, int, list[tuple[int, int]]]:
    """Return the window after some spends, the time of the look, and when how much was spent."""
    clock, made = FakeClock(START_US), []
    limiter = Limiter(MemoryStore(clock=clock))

    async def play() -> WindowView:
        for step_us, units in spends:
            clock.advance(us=step_us)
            assert await limiter.hit("ann", limit, units)
            made.append((clock(), units))
        clock.advance(us=later_us)
        return (await limiter.inspect("ann", {"hit": limit})).windows[0]

    return asyncio.run(play()), clock(), made


SPENDS = st.lists(st.tuples(st.integers(0, 2_500), st.integers(0, 3)), max_size=30)


@given(SPENDS, st.integers(0, 12_000), st.sampled_from([1, 2, 7, 10, 64]))
def test_slices_are_the_spends_that_count_by_the_slice_of_each(
    spends: list[tuple[int, int]], later_us: int, resolution: int
) -> None:
    """Counts: in the slice of its moment each spend stands k + 1 slices long."""
    limit = Limit(1_000, timedelta(microseconds=10_000), resolution=resolution)
    shown, now_us, made = view(limit, spends, later_us)
    for start_us, end_us, leaves_us, units in shown.slices:
        assert units == sum(spent for at_us, spent in made if start_us <= at_us < end_us)
        assert (end_us - start_us, leaves_us - start_us) == (limit.slice_us, (limit.slices + 1) * limit.slice_us)
        assert leaves_us > now_us
    assert [part.end_us for part in shown.slices[:-1]] == [part.start_us for part in shown.slices[1:]]
    assert shown.used == sum(part.units for part in shown.slices)
    assert shown.used == sum(
        units for at_us, units in made if now_us < at_us - at_us % limit.slice_us + (limit.slices + 1) * limit.slice_us
    )


@given(SPENDS, st.integers(0, 12_000))
def test_moments_are_the_spends_that_count_each_by_itself(spends: list[tuple[int, int]], later_us: int) -> None:
    """Times: each spend stands for the length of the window."""
    limit = Limit(100, timedelta(microseconds=10_000), resolution=100)
    shown, now_us, made = view(limit, spends, later_us)
    counts: Counter[int] = Counter()
    for at_us, units in made:
        if units and at_us + limit.window_us > now_us:
            counts[at_us] += units
    assert {part.start_us: part.units for part in shown.slices} == counts
    assert all(part.end_us == part.start_us == part.leaves_us - limit.window_us for part in shown.slices)
    assert shown.remaining == 100 - sum(counts.values())
    if counts:
        assert (shown.more_after_us, shown.reset_after_us) == (
            min(counts) + limit.window_us - now_us,
            max(counts) + limit.window_us - now_us,
        )
