"""Windows as people look at them: slices against spends that are kept one by one."""

from __future__ import annotations

from copy import copy
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate import Quota
from slidegate.core import BookedWindow, Limit, PeriodCount, Places, WindowView, new_window
from slidegate.core.kinds.any_limit import AnyLimit
from slidegate.core.kinds.concurrency import Concurrency
from slidegate.core.windows.bookings import Entry
from slidegate.core.windows.views import view_of

START_US = 1_800_000_000_000_000
DAY_US = 86_400_000_000


def view(limit: AnyLimit, window: Entry, now_us: int) -> WindowView:
    return view_of("rule", "label", "name", limit, window, now_us)


SPENDS = st.lists(st.tuples(st.integers(0, 2_500), st.integers(0, 3)), max_size=30)


@given(SPENDS, st.integers(0, 12_000), st.sampled_from([1, 2, 7, 10, 64]))
def test_slices_are_the_spends_that_count_by_the_slice_of_each(
    spends: list[tuple[int, int]], later_us: int, resolution: int
) -> None:
    """Counts: in the slice of its moment each spend stands k + 1 slices long."""
    limit = Limit(1_000, timedelta(microseconds=10_000), resolution=resolution)
    window, now_us, made = new_window(limit), START_US, []
    for step_us, units in spends:
        now_us += step_us
        window.add(now_us, units)
        made.append((now_us, units))
    now_us += later_us
    shown = view(limit, window, now_us)
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
    window, now_us, made = new_window(limit), START_US, {}
    for step_us, units in spends:
        now_us += step_us
        window.add(now_us, units)
        made[now_us] = made.get(now_us, 0) + units
    now_us += later_us
    counts = {at_us: units for at_us, units in made.items() if units and at_us + limit.window_us > now_us}
    shown = view(limit, window, now_us)
    assert {part.start_us: part.units for part in shown.slices} == counts
    assert all(part.end_us == part.start_us == part.leaves_us - limit.window_us for part in shown.slices)
    assert shown.remaining == 100 - sum(counts.values())
    if counts:
        assert (shown.more_after_us, shown.reset_after_us) == (
            min(counts) + limit.window_us - now_us,
            max(counts) + limit.window_us - now_us,
        )


@pytest.mark.parametrize("resolution", [10, 100])
def test_bookings_lie_ahead_of_what_was_spent(resolution: int) -> None:
    limit = Limit(20, "10s", resolution=resolution)
    window = BookedWindow(new_window(limit), limit, START_US)
    window.ring.add(START_US, 20)
    booked_us = START_US + 12_000_000
    window.book(START_US, booked_us, 3, waits=True)
    shown = view(limit, copy(window), START_US)
    assert (shown.used, shown.remaining) == (23, 0)
    *spent, last = shown.slices
    assert (sum(part.units for part in spent), last.units) == (20, 3)
    assert last.start_us == booked_us
    assert (last.end_us > last.start_us) is (not limit.exact)
    after = view(limit, copy(window), booked_us)
    assert (after.used, after.slices[-1].units) == (3, 3)


def test_a_quota_is_one_slice_from_one_start_to_the_next() -> None:
    (limit,) = (Quota("100/day"),)
    unix_us = int(datetime(2026, 11, 20, 15, tzinfo=UTC).timestamp()) * 1_000_000
    ahead_us = -unix_us + 5_000_000  # the store's time is another one
    count = PeriodCount()
    count.enter(limit.period_at(unix_us).end_us, ahead_us)
    now_us = unix_us + ahead_us
    assert view(limit, copy(count), now_us).slices == ()
    count.add(now_us, 100)
    shown = view(limit, count, now_us)
    (part,) = shown.slices
    assert part.start_us == now_us - 15 * 3_600_000_000
    assert part.end_us == part.leaves_us == part.start_us + DAY_US
    assert (part.units, shown.remaining, shown.retry_after_us) == (100, 0, 9 * 3_600_000_000)


def test_places_have_no_slices_and_no_moment() -> None:
    limit = Concurrency(2)
    assert view(limit, Places(1), START_US)[4:] == (1, 1, 0, 0, 0, ())
    assert view(limit, Places(2), START_US)[4:] == (2, 0, None, 0, 0, ())


def test_nothing_is_shown_of_an_empty_window() -> None:
    for amount in (5, 500):
        limit = Limit(amount, "1m")
        assert view(limit, new_window(limit), START_US)[4:] == (0, amount, 0, 0, 0, ())
