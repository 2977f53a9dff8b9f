"""What `slidegate explain LIMITS` says of limits, against greedy clients on real windows."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from slidegate import Limit
from slidegate.ops.cli.bounds import most_units, steady_us, wait_after_burst_us

ORIGIN_US = 10**15
LIMITS = st.builds(
    lambda amount, window_us, resolution: Limit(amount, timedelta(microseconds=window_us), resolution=resolution),
    st.integers(1, 40),
    st.integers(1_000, 100_000),
    st.integers(1, 12),
)
SEVERAL = st.lists(LIMITS, min_size=1, max_size=3)


def greedy(limits: Sequence[Limit], start_us: int, span_us: int) -> Iterator[tuple[int, int]]:
    """Yield (time, units) for a client that takes each unit as soon as it is available."""
    windows = [b""] * len(limits)
    now_us = start_us
    while now_us < start_us + span_us:
        windows = [limit.counter.settle(window, now_us) for limit, window in zip(limits, windows, strict=True)]
        units = min(
            limit.amount - limit.counter.state(window, now_us)[0] for limit, window in zip(limits, windows, strict=True)
        )
        windows = [
            limit.counter.charge(window, now_us, units)[0] for limit, window in zip(limits, windows, strict=True)
        ]
        yield now_us, units
        now_us += max(
            limit.counter.spend(window, now_us, 1)[1][3] for limit, window in zip(limits, windows, strict=True)
        )


@given(SEVERAL, st.integers(0, 10**6), st.integers(1, 400_000))
def test_greedy_client_stays_within_the_bound_and_the_wait(limits: list[Limit], phase_us: int, span_us: int) -> None:
    taken = list(greedy(limits, ORIGIN_US + phase_us, 500_000))[:300]
    # The span with the most units begins with a unit.
    most = max(sum(units for at_us, units in taken if first <= at_us < first + span_us) for first, _ in taken)
    assert most <= most_units(limits, span_us)
    soonest_us, latest_us = wait_after_burst_us(limits)
    assert taken[0][1] == min(limit.amount for limit in limits)
    assert all(soonest_us <= at_us - taken[0][0] <= latest_us for at_us, _ in taken[1:2])


@given(LIMITS, st.integers(1, 400_000))
def test_bound_of_one_limit_is_reached(limit: Limit, span_us: int) -> None:
    # Begin with the last microsecond of a slice; for an exact limit any time will do.
    start_us = ORIGIN_US - ORIGIN_US % limit.slice_us - 1
    assert sum(units for _, units in greedy([limit], start_us, span_us)) == most_units([limit], span_us)


@given(SEVERAL, st.integers(0, 10**6))
def test_steady_client_is_never_refused(limits: list[Limit], phase_us: int) -> None:
    windows = [b""] * len(limits)
    for now_us in range(ORIGIN_US + phase_us, ORIGIN_US + phase_us + 400_000, steady_us(limits)):
        spent = [limit.counter.spend(window, now_us, 1) for limit, window in zip(limits, windows, strict=True)]
        windows = [window for window, _ in spent]
        assert not any(state[3] for _, state in spent)


@given(LIMITS)
def test_client_faster_than_steady_is_refused(limit: Limit) -> None:
    pace_us = steady_us([limit]) - 1
    window, start_us = b"", ORIGIN_US - ORIGIN_US % limit.slice_us
    for step in range(limit.amount):
        window, state = limit.counter.spend(window, start_us + step * pace_us, 1)
        assert state[3] == 0
    assert limit.counter.spend(window, start_us + limit.amount * pace_us, 1)[1][3] > 0
