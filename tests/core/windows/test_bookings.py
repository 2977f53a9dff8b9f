"""Places in the future beside a ring, on traffic that can be worked out by hand."""

from __future__ import annotations

from copy import copy
from datetime import timedelta

import pytest

from slidegate.core import NEVER, BookedWindow, CounterWindow, Limit, Note, TimestampWindow, new_window


def times(now_us: int, *spent_us: int) -> BookedWindow:
    """Return a window of 100 us that keeps times, with a unit spent at each moment."""
    limit = Limit(5, timedelta(milliseconds=1), resolution=10)
    ring = new_window(limit)
    for at_us in spent_us:
        ring.add(at_us)
    return BookedWindow(ring, limit, now_us)


def counts(now_us: int, *spent_us: int) -> BookedWindow:
    """Return a window of ten slices of 100 us, with a unit spent at each moment."""
    limit = Limit(50, timedelta(milliseconds=1), resolution=10)
    ring = new_window(limit)
    for at_us in spent_us:
        ring.add(at_us)
    return BookedWindow(ring, limit, now_us)


def test_a_window_without_bookings_answers_as_its_ring_does() -> None:
    window = times(300, 0, 100, 200)
    assert [window.room_us(300, 3, cost) for cost in (0, 1, 2, 3, 4)] == [1_000, 1_000, 1_100, 1_200, NEVER]
    assert (window.spent, window.leaves_us, window.newest_us) == (3, 1_000, 200)


def test_a_later_place_has_to_fit_behind_an_earlier_one() -> None:
    window = times(300, 0, 100, 200)
    window.book(300, 1_000, 1, waits=True)
    assert window.room_us(300, 3, 1) == 1_100
    assert window.room_us(300, 3, 2) == 1_200
    assert window.room_us(300, 3, 3) == 2_000
    assert (window.spent, window.newest_us, window.waiting()) == (4, 1_000, 1)


def test_an_arrival_has_to_fit_beside_what_is_booked_while_it_counts() -> None:
    window = times(300, 0)
    window.book(300, 1_200, 2, waits=True)
    assert window.room_us(300, 3, 1) == 300  # one now, two then
    assert window.room_us(300, 3, 2) == 2_200  # it would still be there; the first moment is when both have left
    assert window.room_us(300, 4, 2) == 300
    assert times(300).room_us(300, 3, 3) == 300


def test_an_arrival_that_has_left_before_is_not_in_the_way() -> None:
    window = times(0)
    window.book(0, 1_500, 3, waits=True)
    assert window.room_us(0, 3, 3) == 0
    assert window.room_us(500, 3, 3) == 500
    assert window.room_us(501, 3, 3) == 2_500


def test_a_cost_of_nothing_needs_room_only_now() -> None:
    window = times(300, 0)
    window.book(300, 400, 1, waits=True)
    assert window.room_us(300, 2, 0) == 300
    assert window.room_us(400, 2, 0) == 1_000


def test_a_booking_of_counts_counts_with_its_slice() -> None:
    window = counts(50, *[10] * 50)
    note = window.book(50, 1_130, 2, waits=True)
    assert note == Note(window, 1_130, 2, True)
    assert window.room_us(50, 50, 1) == 1_100
    assert [window.settle(at_us) for at_us in (1_099, 1_100, 1_129, 1_130)] == [True, True, True, False]
    assert [pair for pair in window.ring.slices(1_130) if pair[1]] == [(1_100, 2)]  # type: ignore[union-attr]


def test_a_booking_within_the_running_slice_is_spent_at_once() -> None:
    window = counts(50)
    window.book(50, 90, 3, waits=False)
    assert (window.ring.spent, window.settle(50)) == (3, False)
    assert window.remove(60, 90, 3) is True
    assert window.spent == 0


@pytest.mark.parametrize("make", [times, counts])
def test_what_is_due_moves_into_the_ring(make) -> None:
    window = make(0)
    window.book(0, 500, 2, waits=True)
    window.book(0, 700, 1, waits=True)
    assert window.settle(499) is True
    assert window.ring.spent == 0
    assert window.settle(500) is True
    assert (window.ring.spent, window.spent, window.waiting()) == (2, 3, 1)
    assert window.settle(10_000) is False
    assert (window.ring.spent, window.spent) == (0, 0)


@pytest.mark.parametrize("make", [times, counts])
def test_places_are_handed_back_before_and_after_their_moment(make) -> None:
    window = make(0)
    window.book(0, 500, 2, waits=True)
    window.book(0, 500, 1, waits=True)
    assert window.remove(0, 500, 4) is False
    assert window.remove(0, 400, 1) is False
    assert window.remove(0, 500, 2) is True
    assert (window.leave(500), window.waiting()) == (True, 1)
    assert window.spent == 1
    assert window.remove(500, 500, 1) is True
    assert window.leave(500) is False
    assert window.spent == 0


def test_a_place_for_nothing_is_a_place_nevertheless() -> None:
    window = times(0)
    window.book(0, 500, 0, waits=True)
    assert (window.spent, window.waiting(), window.settle(499), window.settle(500)) == (0, 1, True, False)


@pytest.mark.parametrize("make", [times, counts])
def test_only_bookings_tell_when_they_will_have_left(make) -> None:
    window = make(0)
    window.book(0, 500, 1, waits=True)
    limit = window.limit
    assert window.leaves_us == limit.leaves_us(500) == 500 + (1_000 if limit.exact else 1_100)
    assert window.newest_us + limit.span_us == limit.leaves_us(500)


@pytest.mark.parametrize("make", [times, counts])
def test_a_copy_is_independent(make) -> None:
    window = make(0, 0)
    window.book(0, 500, 1, waits=True)
    twin = copy(window)
    twin.settle(600)
    twin.spend(600, 5, 2)
    assert (window.spent, window.ring.spent, window.waiting()) == (2, 1, 1)


def test_a_clock_that_steps_back_leaves_every_wait_as_long_as_it_was() -> None:
    window = times(5_000, 4_900)
    window.book(5_000, 5_700, 1, waits=True)
    assert window.settle(3_000) is True
    assert [window.settle(at_us) for at_us in (3_699, 3_700)] == [True, False]
    assert window.ring.spent == 2


def test_bookings_stay_when_the_ring_changes() -> None:
    few, many = Limit(5, timedelta(milliseconds=1), resolution=10), Limit(50, timedelta(milliseconds=1), resolution=10)
    window = times(50, 40)
    window.book(50, 870, 2, waits=True)
    counted = window.converted(many, 60)
    assert isinstance(counted.ring, CounterWindow)
    assert (counted.spent, counted.waiting(), counted.settle(800), counted.ring.spent) == (3, 1, True, 3)
    timed = counted.converted(few, 800)
    assert isinstance(timed.ring, TimestampWindow)
    assert (timed.spent, timed.waiting()) == (3, 1)


def test_more_than_fits_into_a_ring_of_times_is_kept_as_far_as_it_can_matter() -> None:
    window = counts(50).converted(counts(0).limit, 50)
    window.book(50, 870, 50, waits=True)
    timed = window.converted(times(0).limit, 60)
    timed.settle(900)
    assert timed.spent == 10


def test_a_debt_pushes_no_booking_out_and_a_booking_no_debt() -> None:
    window = times(0, *[0] * 5)
    window.book(0, 500, 1, waits=True)
    assert window.charge(100, 20, 10) == 5  # five of the ten were there before
    assert window.spent == 11
    window.settle(500)
    assert window.ring.spent == 11
    assert window.charge(600, 3, 10) == 0
    assert window.ring.spent == 11


def test_spending_says_what_is_seen() -> None:
    window = times(0, 0, 0)
    window.book(0, 1_000, 2, waits=True)
    assert window.spend(10, 2, 1) == (4, 1_000, 1_000, 2_000 - 10)
    assert window.spend(10, 3, 1) == (5, 1_000, 1_000, 0)
    assert window.spend(10, 4, 5) == (5, 1_000, 1_000, NEVER)
