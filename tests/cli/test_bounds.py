"""The bounds that `slidegate explain` prints, against clients that try to pass them on the real windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate.cli.explain import back_after_us, most_units, steady_us
from slidegate.core.limits import Limit, parse_limits

ORIGIN_US = 10**15
LIMITS = st.builds(
    lambda amount, window_us, resolution: Limit(amount, timedelta(microseconds=window_us), resolution=resolution),
    st.integers(1, 40),
    st.integers(1_000, 100_000),
    st.integers(1, 12),
)
SEVERAL = st.lists(LIMITS, min_size=1, max_size=3)


class Spent(NamedTuple):
    """Units that a client got at one moment."""

    at_us: int
    units: int


def greedy(limits: Sequence[Limit], start_us: int, span_us: int) -> Iterator[Spent]:
    """Yield the units of a client that takes each as soon as it is there."""
    windows = [b""] * len(limits)
    now_us = start_us
    while now_us < start_us + span_us:
        windows = [limit.counter.settle(window, now_us) for limit, window in zip(limits, windows, strict=True)]
        units = min(
            limit.amount - limit.counter.state(window)[0] for limit, window in zip(limits, windows, strict=True)
        )
        windows = [
            limit.counter.charge(window, now_us, units)[0] for limit, window in zip(limits, windows, strict=True)
        ]
        yield Spent(now_us, units)
        now_us += max(
            limit.counter.spend(window, now_us, 1)[1][3] for limit, window in zip(limits, windows, strict=True)
        )


def steady(limits: Sequence[Limit], start_us: int, span_us: int) -> Iterator[bool]:
    """Yield whether each request passes of a client that keeps the even pace which is never refused."""
    windows = [b""] * len(limits)
    for now_us in range(start_us, start_us + span_us, steady_us(limits)):
        spent = [limit.counter.spend(window, now_us, 1) for limit, window in zip(limits, windows, strict=True)]
        windows = [window for window, _ in spent]
        yield not any(state[3] for _, state in spent)


def most_in_any_span(course: Sequence[Spent], span_us: int) -> int:
    """Return the largest sum of units in a half-open span; one that holds most begins with a unit."""
    return max(sum(other.units for other in course if one.at_us <= other.at_us < one.at_us + span_us) for one in course)


@given(SEVERAL, st.integers(0, 10**6), st.integers(1, 400_000))
def test_no_greedy_client_passes_the_bound(limits: list[Limit], phase_us: int, span_us: int) -> None:
    course = list(greedy(limits, ORIGIN_US + phase_us, 500_000))[:300]
    assert most_in_any_span(course, span_us) <= most_units(limits, span_us)


@given(LIMITS, st.integers(1, 400_000))
def test_one_limit_is_used_up_to_its_bound(limit: Limit, span_us: int) -> None:
    # With the last microsecond of a slice, or anywhere where there are none.
    start_us = ORIGIN_US - ORIGIN_US % limit.slice_us - 1
    got = sum(spent.units for spent in greedy([limit], start_us, span_us))
    assert got == most_units([limit], span_us)


@pytest.mark.parametrize(
    ("text", "span_s", "most"),
    [
        ("5/minute; 50/hour", 1, 5),
        ("5/minute; 50/hour", 60, 5),
        ("5/minute; 50/hour", 3_600, 50),
        ("5/minute; 50/hour", 3_660, 55),
        ("5/minute; 50/hour", 86_400, 1_200),
        ("1/s", 60, 60),
        ("100/minute", 60, 100),
        # Slices: the first burst ends its slice, so that a second one follows within the minute and a bit.
        ("100/minute", 61, 200),
        ("2147483647/400d", 1, 2_147_483_647),
    ],
)
def test_bounds_of_limits_as_people_write_them(text: str, span_s: int, most: int) -> None:
    limits = parse_limits(text)
    assert most_units(limits, span_s * 1_000_000) == most


@given(SEVERAL, st.integers(0, 10**6))
def test_a_burst_waits_as_long_as_is_said_and_not_longer(limits: list[Limit], phase_us: int) -> None:
    first, *rest = list(greedy(limits, ORIGIN_US + phase_us, 400_000))[:2]
    soonest_us, latest_us = back_after_us(limits)
    assert first.units == min(limit.amount for limit in limits)
    assert all(soonest_us <= spent.at_us - first.at_us <= latest_us for spent in rest)


@given(SEVERAL, st.integers(0, 10**6))
def test_the_steady_client_is_never_refused(limits: list[Limit], phase_us: int) -> None:
    assert all(steady(limits, ORIGIN_US + phase_us, 400_000))


@given(LIMITS)
def test_a_client_that_is_quicker_than_steady_is_refused(limit: Limit) -> None:
    pace_us = steady_us([limit]) - 1
    window = b""
    start_us = ORIGIN_US - ORIGIN_US % limit.slice_us
    for step in range(limit.amount):
        window, state = limit.counter.spend(window, start_us + step * pace_us, 1)
        assert state[3] == 0
    assert limit.counter.spend(window, start_us + limit.amount * pace_us, 1)[1][3] > 0
