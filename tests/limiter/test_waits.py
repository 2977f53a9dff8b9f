"""Who waits is counted while it waits, and how long it has waited afterwards."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slidegate.limiter.waiting import OUTCOMES, Waits
from slidegate.testing import FakeClock


@given(st.lists(st.tuples(st.sampled_from(OUTCOMES), st.integers(-1_000, 10**8)), max_size=20))
def test_every_wait_is_counted_once_with_its_outcome_and_its_time(waited: list[tuple[str, int]]) -> None:
    clock = FakeClock(10**12)
    waits = Waits(clock)
    for outcome, took_us in waited:
        began_us = waits.begin()
        assert waits.waiting == 1
        clock.set(clock() + took_us)
        waits.end(began_us, outcome)
    assert waits.waiting == 0
    for outcome, times in waits.ever().items():
        times_us = [max(took_us, 0) for other, took_us in waited if other == outcome]
        assert (times.count, times.sum_us) == (len(times_us), sum(times_us))
