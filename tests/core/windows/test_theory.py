"""The two rings, on traffic that can be worked out by hand. Seconds where nothing else is said."""

from __future__ import annotations

from datetime import timedelta

import pytest

from slidegate.core import NEVER, CounterWindow, Limit, TimestampWindow, convert, new_window
from slidegate.core.decision import ceil_s
from slidegate.core.limits import MAX_RESOLUTION
from slidegate.core.windows.counters import MAX_SLICE_COUNT

SECOND_US = 1_000_000


def us(seconds: float) -> int:
    return round(seconds * SECOND_US)


def counters(k: int, slice_s: float = 10) -> CounterWindow:
    return CounterWindow(k, us(slice_s))


def wait_s(window: CounterWindow | TimestampWindow, at_s: float, amount: int, cost: int = 1) -> float:
    """Spend if it fits, and return the seconds to wait: 0 where it did."""
    *_, wait_us = window.spend(us(at_s), amount, cost)
    return wait_us if wait_us == NEVER else wait_us / SECOND_US


# -- counters: rows of the reliability table -------------------------------------------------------------------------


def test_the_wait_reaches_to_the_moment_when_the_slice_has_left_the_window() -> None:
    window = counters(6)
    assert [wait_s(window, 59.999, 10) for _ in range(10)] == [0] * 10
    assert wait_s(window, 60, 10) == 60
    assert wait_s(window, 119.999, 10) == 0.001
    assert wait_s(window, 119.999999, 10) == 0.000001
    assert wait_s(window, 120, 10) == 0


def test_steady_traffic_gets_its_slices_back_one_by_one() -> None:
    window = counters(6)
    assert [wait_s(window, at_s, 10) for at_s in range(0, 64, 7)] == [0] * 10
    waits = [wait_s(window, at_s, 10) for at_s in (63, 69, 69.999999, 70, 76, 77, 80)]
    assert waits == [7, 1, 0.000001, 0, 0, 3, 0]


def test_a_larger_cost_waits_for_more_slices_and_one_above_the_amount_for_ever() -> None:
    window = counters(6)
    window.add(us(5), 3)
    window.add(us(25), 7)
    assert [wait_s(window, 30, 10, cost) for cost in (1, 3, 4, 10, 11)] == [40, 40, 60, 60, NEVER]
    assert window.total(us(30)) == 10


def test_a_counted_unit_leaves_a_slice_after_the_window_and_a_timed_one_with_it() -> None:
    window = counters(60, 1)
    waits = [wait_s(window, at_s, 1) for at_s in (0, 59.999, 60, 60.999999, 61)]
    assert waits == [0, 1.001, 1, 0.000001, 0]
    exact = TimestampWindow(us(60))
    assert [wait_s(exact, at_s, 1) for at_s in (0, 59.999, 59.999999, 60)] == [0, 0.001, 0.000001, 0]


def test_one_slice_as_long_as_the_window_waits_two_of_them_at_worst() -> None:
    window = counters(1)
    assert [wait_s(window, at_s, 1) for at_s in (0, 10, 19.999, 20)] == [0, 10, 0.001, 0]
    exact = TimestampWindow(us(10))
    assert [wait_s(exact, at_s, 1) for at_s in (0, 9.999, 10)] == [0, 0.001, 0]


def test_a_lowered_amount_waits_until_the_old_spending_has_left() -> None:
    window = counters(6)
    window.add(0, 80)
    assert wait_s(window, 30, 10) == 40
    assert window.spent == 80


def test_slices_are_found_in_whole_numbers() -> None:
    window = counters(3, 0.1)
    window.add(us(0.3))
    window.add(us(0.7))
    # In floating point both would lie one slice lower: int(0.3 / 0.1) is 2 and int(0.7 / 0.1) is 6.
    assert window.slices() == [(400_000, 0), (500_000, 0), (600_000, 0), (700_000, 1)]
    assert window.slices(us(0.7))[-1] == (700_000, 1)


@pytest.mark.parametrize("at_s", [70, 140, 700, 70_000_000])
def test_a_slot_of_an_older_lap_is_not_added_to(at_s: float) -> None:
    window = counters(6)
    window.add(0, 10)
    assert wait_s(window, at_s, 10) == 0
    assert window.spent == 1


def test_a_wait_below_a_second_is_exact_in_microseconds_and_a_whole_second_in_the_header() -> None:
    window = counters(5, 0.01)
    window.add(0, 2)
    wait = wait_s(window, 0.01, 2)
    assert (wait, ceil_s(us(wait))) == (0.05, 1)
    exact = TimestampWindow(us(0.05))
    exact.add(0, 2)
    assert wait_s(exact, 0.01, 2) == 0.04


@pytest.mark.parametrize("start_us", [0, 2**62 // 1000, 2**53 + 1])
@pytest.mark.parametrize("amount", [50, 5_000])
def test_a_clock_that_stands_still_admits_exactly_the_amount(amount: int, start_us: int) -> None:
    window = new_window(Limit(amount, "1m"))
    assert sum(window.spend(start_us, amount, 1)[3] == 0 for _ in range(100_000)) == amount


# -- counters: the three readings ------------------------------------------------------------------------------------


def test_the_classic_reading_of_ten_slices_of_100_ms() -> None:
    window = CounterWindow(slices=10, slice_us=100_000)
    sums = []
    for now_ms in (1694749689568, 1694749691250, 1694749692007, 1694749692083):
        window.add(now_ms * 1000)
        sums.append(window.classic(now_ms * 1000))
    assert sums == [1, 1, 2, 3]


def test_the_three_readings_differ_by_the_oldest_and_the_running_slice() -> None:
    window = CounterWindow(slices=3, slice_us=100)
    for now_us, units in ((50, 1), (150, 10), (250, 100), (350, 1000)):
        window.add(now_us, units)
    assert window.total(350) == 1111
    assert window.classic(350) == 1110
    assert window.completed(350) == 111
    assert window.slices() == [(0, 1), (100, 10), (200, 100), (300, 1000)]


def test_looking_later_moves_all_three_readings_on_and_changes_nothing() -> None:
    window = CounterWindow(slices=3, slice_us=100)
    window.add(50)
    readings = [(window.total(at_us), window.classic(at_us), window.completed(at_us)) for at_us in range(0, 500, 100)]
    assert readings == [(1, 1, 0), (1, 1, 1), (1, 1, 1), (1, 0, 1), (0, 0, 0)]
    assert window.slices(310) == [(0, 1), (100, 0), (200, 0), (300, 0)]
    assert window.slices() == [(-300, 0), (-200, 0), (-100, 0), (0, 1)]
    assert window.slices(10**15)[-1] == (10**15, 0)
    assert window.spent == 1


def test_slices_start_at_multiples_of_their_length() -> None:
    window = CounterWindow(slices=2, slice_us=100)
    window.add(12_345)
    assert window.slices() == [(12_100, 0), (12_200, 0), (12_300, 1)]


def test_an_empty_ring_reads_nothing() -> None:
    window = CounterWindow(slices=2, slice_us=100)
    assert (window.total(12_345), window.classic(12_345), window.completed(12_345)) == (0, 0, 0)
    assert window.slices(12_345) == [(12_100, 0), (12_200, 0), (12_300, 0)]


def test_a_clock_that_runs_back_adds_to_the_newest_slice_and_revives_nothing() -> None:
    window = CounterWindow(slices=3, slice_us=100)
    window.add(120, 1)
    window.add(350, 10)
    window.add(320, 100)  # back within the newest slice
    assert window.slices() == [(0, 0), (100, 1), (200, 0), (300, 110)]
    window.add(210, 1000)  # what lies ahead moves back into this slice
    assert window.slices() == [(-100, 0), (0, 0), (100, 1), (200, 1110)]
    window.add(50, 10_000)
    assert window.slices()[-1] == (0, 11_111)
    assert (window.total(50), window.classic(50), window.total(400)) == (11_111, 11_111, 0)


def test_looking_at_a_moment_in_the_past_shows_the_newest_slice() -> None:
    window = CounterWindow(slices=3, slice_us=100)
    window.add(350, 7)
    assert (window.total(50), window.classic(50), window.slices(50)) == (7, 7, window.slices())


@pytest.mark.parametrize("jump_us", [400, 401, 10**6, 10**15])
def test_a_jump_beyond_the_window_leaves_one_slice(jump_us: int) -> None:
    window = CounterWindow(slices=3, slice_us=100)
    window.add(0, 5)
    window.add(150, 5)
    window.add(150 + jump_us, 1)
    assert window.total(150 + jump_us) == 1


def test_adding_nothing_changes_nothing_not_even_time() -> None:
    for window in (CounterWindow(slices=3, slice_us=100), TimestampWindow(300)):
        window.add(50, 2)
        window.add(310, 0)
        assert (window.spent, window.total(50), window.total(310)) == (2, 2, 2)


def test_a_negative_count_is_an_error() -> None:
    for window in (CounterWindow(slices=3, slice_us=100), TimestampWindow(300)):
        with pytest.raises(ValueError, match=r"units: expected 0 or more, not -1"):
            window.add(0, -1)


def test_a_slice_that_would_overflow_is_an_error_and_stays_as_it_is() -> None:
    window = CounterWindow(slices=2, slice_us=100)
    window.add(0, MAX_SLICE_COUNT)
    with pytest.raises(ValueError, match=f"at most {MAX_SLICE_COUNT} units, not {MAX_SLICE_COUNT + 1}"):
        window.add(50, 1)
    window.add(100, MAX_SLICE_COUNT)
    with pytest.raises(ValueError, match="at most"):
        window.add(200, MAX_SLICE_COUNT + 1)
    assert window.total(100) == 2 * MAX_SLICE_COUNT


def test_more_than_fits_into_one_slice_stays_at_the_most_when_the_clock_steps_back() -> None:
    window = CounterWindow(slices=2, slice_us=100)
    window.add(100, MAX_SLICE_COUNT)
    window.add(200, MAX_SLICE_COUNT)
    assert window.wait_us(0, MAX_SLICE_COUNT - 1) == 300
    assert window.spent == MAX_SLICE_COUNT


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "10", None])
@pytest.mark.parametrize("what", ["slices", "slice_us", "window_us"])
def test_a_ring_without_a_length_is_an_error(what: str, bad: object) -> None:
    make = TimestampWindow if what == "window_us" else CounterWindow
    lengths = {"window_us": 10} if what == "window_us" else {"slices": 10, "slice_us": 10}
    with pytest.raises(ValueError, match=f"{what}: expected a whole number above 0, for example 10, not {bad!r}"):
        make(**{**lengths, what: bad})


# -- a spent key -----------------------------------------------------------------------------------------------------


def test_a_refusal_is_remembered_for_the_cost_that_was_refused() -> None:
    window = CounterWindow(slices=3, slice_us=100)
    window.add(0, 5)
    window.add(150, 5)
    assert (window.wait_us(160, 4), window.refusal) == (500 - 160, (4, 500, 10, 400, 200))
    assert (window.wait_us(170, 9), window.refusal) == (400 - 170, (9, 400, 10, 400, 200))
    assert window.wait_us(180, 4) == 500 - 180
    assert window.wait_us(400, 4) == 100


def test_a_refund_clears_what_is_remembered() -> None:
    window = CounterWindow(slices=3, slice_us=100)
    window.add(0, 5)
    window.add(150, 5)
    assert window.wait_us(160, 4) == 340
    assert window.remove(160, 150, 5) is True
    assert window.wait_us(160, 4) == 400 - 160


# -- times -----------------------------------------------------------------------------------------------------------


def test_each_timed_unit_leaves_on_its_own() -> None:
    window = TimestampWindow(100)
    for now_us in (0, 10, 10, 30):
        window.add(now_us)
    assert [window.total(at_us) for at_us in (30, 99, 100, 109, 110, 129, 130)] == [4, 4, 3, 3, 1, 1, 0]
    assert [window.wait_us(30, room) for room in (4, 3, 2, 1, 0, -1)] == [0, 70, 80, 80, 100, NEVER]


def test_a_larger_cost_waits_for_as_many_units_as_it_needs() -> None:
    window = TimestampWindow(100)
    for now_us in (0, 10, 20):
        assert window.spend(now_us, 3, 1)[3] == 0
    assert [window.spend(50, 3, cost)[3] for cost in (1, 2, 3, 4)] == [50, 60, 70, NEVER]


def test_times_ahead_of_a_clock_that_steps_back_are_moved_to_now() -> None:
    window = TimestampWindow(100)
    for now_us in (10, 500, 510):
        window.add(now_us)
    window.add(40)
    assert (window.spent, window.newest_us, window.leaves_us) == (3, 40, 140)
    assert window.wait_us(20, 2) == 100


def test_times_beyond_the_highest_resolution_push_out_the_oldest() -> None:
    window = TimestampWindow(100)
    window.add(0, 10)
    window.add(1, MAX_RESOLUTION - 5)
    assert (window.spent, window.total(99), window.total(100)) == (MAX_RESOLUTION, MAX_RESOLUTION, MAX_RESOLUTION - 5)
    window.add(2, 2 * MAX_RESOLUTION)
    assert (window.spent, window.total(101)) == (MAX_RESOLUTION, MAX_RESOLUTION)


def test_an_emptied_ring_of_times_starts_anew() -> None:
    window = TimestampWindow(100)
    window.add(5, 3)
    window.add(200, 2)
    assert (window.spent, window.newest_us, window.leaves_us, window.total(200)) == (2, 200, 300, 2)


# -- handing back ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: TimestampWindow(1_000), lambda: CounterWindow(10, 100)])
class TestRemove:
    def test_units_come_back_where_they_were_spent(self, make) -> None:
        window = make()
        for now_us in (0, 150, 150, 320):
            window.add(now_us)
        assert window.remove(330, 150, 2) is True
        assert (window.spent, window.total(330)) == (2, 2)
        assert window.wait_us(330, 0) == (320 if isinstance(window, TimestampWindow) else 400) + 1_000 - 330

    def test_the_newest_units_come_back_too(self, make) -> None:
        window = make()
        window.add(0)
        window.add(150)
        assert window.remove(150, 150, 1) is True
        window.add(160, 4)
        assert window.total(160) == 5

    def test_the_last_unit_leaves_an_empty_window(self, make) -> None:
        window = make()
        window.add(50, 3)
        assert window.remove(60, 50, 3) is True
        assert (window.spent, window.total(60), window.wait_us(60, 0)) == (0, 0, 0)
        window.add(70)
        assert window.total(70) == 1

    def test_the_newest_units_come_back_one_by_one_from_any_depth(self, make) -> None:
        window = make()
        spent = [(0, 1), (150, 300), (150, 2), (420, 1), (650, 256), (660, 1)]
        for at_us, units in spent:
            window.add(at_us, units)
        for at_us, units in reversed(spent):
            assert window.remove(670, at_us, units) is True
            left = make()
            for other_us, others in spent[: spent.index((at_us, units))]:
                left.add(other_us, others)
            assert window.spend(670, 3_000, 1) == left.spend(670, 3_000, 1)
            assert window.remove(670, 670, 1) is True
        assert (window.spent, window.total(670)) == (0, 0)

    def test_what_is_not_there_is_not_handed_back(self, make) -> None:
        window = make()
        assert window.remove(0, 0, 1) is False
        window.add(150, 2)
        for spent_us, units in ((150, 3), (50, 1), (150, 0), (150, -1), (350, 1)):
            assert window.remove(160, spent_us, units) is False
        assert window.total(160) == 2

    def test_units_of_two_moments_are_not_handed_back_as_one(self, make) -> None:
        window = make()
        window.add(0)
        window.add(150)
        assert window.remove(160, 150, 2) is False
        assert window.total(160) == 2

    def test_what_has_left_is_not_handed_back(self, make) -> None:
        window = make()
        window.add(0)
        window.add(300)
        assert window.remove(1_100, 0, 1) is False
        assert window.total(1_100) == 1


# -- debts -----------------------------------------------------------------------------------------------------------


def test_a_debt_of_counts_goes_no_further_than_a_slice_can_count() -> None:
    window = CounterWindow(slices=2, slice_us=100)
    window.add(50, 7)
    assert window.charge(60, 10**30, 1) == MAX_SLICE_COUNT - 7
    assert window.charge(70, 1, 1) == 0
    assert window.charge(150, 5, 1) == 5
    assert window.spent == MAX_SLICE_COUNT + 5
    assert window.remove(160, 60, MAX_SLICE_COUNT - 7) is True
    assert window.spent == 12
    assert window.charge(300, 0, 1) == 0
    assert window.spent == 5


def test_a_debt_of_times_is_kept_as_far_as_it_can_hold_anybody() -> None:
    window = TimestampWindow(100)
    window.add(0, 3)
    assert window.charge(10, 10**30, 10) == 7  # three of the ten were there before
    assert (window.spent, window.newest_us, window.leaves_us) == (10, 10, 110)
    assert window.remove(20, 10, 7) is True
    assert (window.spent, window.leaves_us) == (3, 110)
    assert window.charge(30, 2, 10) == 2
    assert [window.wait_us(40, room) for room in (4, 2, 1, 0)] == [70, 70, 90, 90]


def test_debts_one_after_the_other_need_no_more_room_than_one() -> None:
    window = TimestampWindow(10**9)
    for now_us in range(5_000):
        window.charge(now_us, 1, 10)
    assert (window.spent, len(window._older)) == (10, 72)
    assert window.leaves_us == 4_990 + 10**9


def test_a_debt_after_a_step_back_of_the_clock_counts_from_there() -> None:
    for window in (TimestampWindow(1_000), CounterWindow(10, 100)):
        window.add(5_000, 2)
        assert window.charge(3_000, 4, 10) == 4
        assert (window.spent, window.total(3_000)) == (6, 6)


def test_debts_that_were_set_aside_fit_into_counts_again() -> None:
    window = new_window(WIDE)
    for at_s in (1, 2):
        window.charge(us(at_s), 10**30, WIDE.resolution)
    lowered = convert(window, NARROW, us(3))
    assert convert(lowered, WIDE, us(4)).spent == MAX_SLICE_COUNT


# -- a changed amount ------------------------------------------------------------------------------------------------

WIDE, NARROW = Limit(1_000, "1m", resolution=60), Limit(10, "1m", resolution=60)


def test_counts_become_times_at_the_end_of_their_slice() -> None:
    window = new_window(WIDE)
    window.add(us(0.2), 3)
    window.add(us(30.5), 2)
    times = convert(window, NARROW, us(30.6))
    assert isinstance(times, TimestampWindow)
    assert times.total(us(30.6)) == 5
    assert times.wait_us(us(30.6), 4) == us(60.999999) - us(30.6)
    assert times.wait_us(us(30.6), 0) == us(60)  # the running slice has not ended: its units were spent by now


def test_times_become_counts_in_their_slice() -> None:
    window = new_window(NARROW)
    for at_s in (0.2, 0.9, 30.5):
        window.add(us(at_s))
    counts = convert(window, WIDE, us(31))
    assert isinstance(counts, CounterWindow)
    assert [pair for pair in counts.slices() if pair[1]] == [(0, 2), (us(30), 1)]


def test_the_ring_that_is_needed_already_keeps_what_it_holds() -> None:
    for limit in (WIDE, NARROW):
        window = new_window(limit)
        window.add(us(1), 3)
        assert convert(window, limit, us(2)).total(us(2)) == 3


def test_neither_change_of_ring_frees_a_unit_early() -> None:
    window = new_window(WIDE)
    window.add(us(10.5), 7)
    now_us = us(10.7)
    for limit in (NARROW, WIDE, NARROW, WIDE):
        window = convert(window, limit, now_us)
    assert window.total(us(10.5) + us(60) - 1) == 7


def test_more_counts_than_times_can_be_kept_count_again_when_the_amount_is_raised_again() -> None:
    window = new_window(WIDE)
    window.add(us(1), 400)
    window.add(us(20), 100)
    lowered = convert(window, NARROW, us(21))
    assert lowered.total(us(21)) == NARROW.resolution
    assert lowered.wait_us(us(21), 9) == us(20.999999) + us(60) - us(21)
    assert convert(lowered, WIDE, us(22)).total(us(22)) == 500


def test_what_had_left_before_the_change_does_not_come_back_with_it() -> None:
    counts = new_window(WIDE)
    counts.add(us(1), 900)
    counts.add(us(59), 90)
    lowered = convert(counts, NARROW, us(63))
    assert convert(lowered, WIDE, us(64)).total(us(64)) == 90
    times = new_window(NARROW)
    times.add(us(1.5), 5)
    assert convert(times, WIDE, us(61.5)).total(us(61.5)) == 0


def test_what_was_set_aside_leaves_with_the_window() -> None:
    window = new_window(WIDE)
    window.add(us(1), 500)
    lowered = convert(window, NARROW, us(2))
    assert convert(lowered, WIDE, us(62)).total(us(62)) == 0


def test_what_was_set_aside_moves_with_a_clock_that_steps_back() -> None:
    window = new_window(WIDE)
    window.add(us(500), 400)
    lowered = convert(window, NARROW, us(500))
    lowered.wait_us(us(100), 0)
    assert convert(lowered, WIDE, us(170)).total(us(170)) == 0


def test_changing_the_ring_leaves_the_old_one_as_it_was() -> None:
    for limit, other in ((WIDE, NARROW), (NARROW, WIDE)):
        window = new_window(limit)
        window.add(us(1), 5)
        convert(window, other, us(100))
        assert window.spent == 5


def test_the_limit_decides_which_ring_it_gets() -> None:
    for resolution in (1, 2, 64, 3600):
        window = timedelta(days=1)
        assert isinstance(new_window(Limit(resolution, window, resolution=resolution)), TimestampWindow)
        counting = new_window(Limit(resolution + 1, window, resolution=resolution))
        assert isinstance(counting, CounterWindow)
        assert (counting.slice_count, counting.slice_us) == (resolution, 86_400_000_000 // resolution)
