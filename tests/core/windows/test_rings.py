"""When units leave a window, worked out by hand: exactly where the amount is small, slice by slice where it is not."""

from __future__ import annotations

import pytest

from slidegate import Limit, MemoryStore, parse_limits
from slidegate.core import Bucket, Decision, TimestampWindow
from slidegate.testing import FakeClock


class Key:
    """One key under one limit, in a store whose clock shows seconds."""

    def __init__(self, limit: str | Limit, start_us: int = 0) -> None:
        self.clock = FakeClock(start_us)
        self.store = MemoryStore(clock=self.clock)
        self.bucket = Bucket("rule", parse_limits(limit))

    def hit(self, at_s: float, cost: int = 1) -> Decision:
        self.clock.set(round(at_s * 1_000_000))
        return self.store.hit(((self.bucket, "ann", cost),))

    def wait_s(self, at_s: float, cost: int = 1) -> float | None:
        """Spend if it fits, and return the seconds to wait: 0 where it did, None where it never will."""
        wait_us = self.hit(at_s, cost).retry_after_us
        return None if wait_us is None else wait_us / 1_000_000

    def waits_s(self, *at_s: float, cost: int = 1) -> list[float | None]:
        return [self.wait_s(moment_s, cost) for moment_s in at_s]


# -- slices ----------------------------------------------------------------------------------------------------------


def test_the_wait_reaches_to_the_moment_when_the_slice_has_left_the_window() -> None:
    key = Key("10/1m @6")
    assert key.waits_s(*[59.999] * 10) == [0] * 10
    assert key.waits_s(60, 119.999, 119.999999, 120) == [60, 0.001, 0.000001, 0]


def test_steady_traffic_gets_its_slices_back_one_by_one() -> None:
    key = Key("10/1m @6")
    assert key.waits_s(*range(0, 64, 7)) == [0] * 10
    assert key.waits_s(63, 69, 69.999999, 70, 76, 77, 80) == [7, 1, 0.000001, 0, 0, 3, 0]


def test_a_larger_cost_waits_for_more_slices_and_one_above_the_amount_for_ever() -> None:
    key = Key("10/1m @6")
    assert (key.wait_s(5, 3), key.wait_s(25, 7)) == (0, 0)
    assert [key.wait_s(30, cost) for cost in (1, 3, 4, 10, 11)] == [40, 40, 60, 60, None]
    assert key.hit(30).remaining == 0


def test_a_counted_unit_leaves_a_slice_after_the_window_and_a_timed_one_with_it() -> None:
    assert Key("61/1m @60").waits_s(0, 59.999, 60, 60.999999, 61, cost=61) == [0, 1.001, 1, 0.000001, 0]
    assert Key("60/1m @60").waits_s(0, 59.999, 59.999999, 60, cost=60) == [0, 0.001, 0.000001, 0]


def test_one_slice_as_long_as_the_window_waits_two_of_them_at_worst() -> None:
    assert Key("2/10s @1").waits_s(0, 10, 19.999, 20, cost=2) == [0, 10, 0.001, 0]
    assert Key("1/10s @1").waits_s(0, 9.999, 10) == [0, 0.001, 0]


@pytest.mark.parametrize("at_s", [70, 140, 700, 70_000_000])
def test_nothing_is_left_of_an_older_lap(at_s: float) -> None:
    key = Key("10/1m @6")
    key.hit(0, 10)
    assert key.hit(at_s).remaining == 9


def test_a_wait_below_a_second_is_exact_in_microseconds_and_a_whole_second_in_the_header() -> None:
    counted, exact = Key("6/50ms @5"), Key("5/50ms @5")
    counted.hit(0, 6)
    exact.hit(0, 5)
    waits = [(refused.retry_after_us, refused.retry_after) for refused in (counted.hit(0.01, 6), exact.hit(0.01, 5))]
    assert waits == [(50_000, 1), (40_000, 1)]


@pytest.mark.parametrize("start_us", [0, 2**62 // 1000, 2**53 + 1])
@pytest.mark.parametrize("amount", [50, 5_000])
def test_a_clock_that_stands_still_admits_exactly_the_amount(amount: int, start_us: int) -> None:
    key = Key(Limit(amount, "1m"), start_us)
    checks = ((key.bucket, "ann", 1),)
    assert sum(bool(key.store.hit(checks)) for _ in range(2 * amount)) == amount


# -- moments ---------------------------------------------------------------------------------------------------------


def test_each_timed_unit_leaves_on_its_own() -> None:
    key = Key("4/100s")
    assert key.waits_s(0, 10, 10, 30) == [0] * 4
    assert [key.wait_s(30, cost) for cost in (1, 2, 3, 4, 5)] == [70, 80, 80, 100, None]
    assert [key.hit(at_s, 0).remaining for at_s in (99, 100, 109, 110, 129, 130)] == [0, 1, 1, 3, 3, 4]


def test_moments_ahead_of_a_clock_that_steps_back_are_moved_to_now() -> None:
    key = Key("3/100s")
    assert key.waits_s(10, 500, 510, 40) == [0] * 4
    assert key.hit(40, 0).reset_after == 100
    assert key.wait_s(20) == 100


# -- handing back ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["3000/1s @3000", "3000/1s @10"])
def test_units_come_back_one_charge_after_the_other_where_they_were_spent(limit: str) -> None:
    spent = [(0, 1), (0.15, 300), (0.15, 2), (0.42, 1), (0.65, 256), (0.66, 1)]
    key = Key(limit)
    charges = [key.hit(at_s, units) for at_s, units in spent]
    for left in reversed(range(len(spent))):
        key.clock.set(670_000)
        assert key.store.refund(charges[left])
        plain = Key(limit)
        for at_s, units in spent[:left]:
            plain.hit(at_s, units)
        assert key.hit(0.67, 3_001 - left).states == plain.hit(0.67, 3_001 - left).states
        assert key.hit(0.67, 0).states == plain.hit(0.67, 0).states


def test_a_lowered_amount_and_a_clock_that_steps_back_revive_nothing_together() -> None:
    key = Key("20/10s @8")
    assert key.hit(5, cost=20).allowed
    for at_s, limits in ((6, "5/10s @8"), (3, "5/10s @8"), (3, "20/10s @8")):
        key.bucket = Bucket("rule", parse_limits(limits))
        assert not key.hit(at_s).allowed
    assert key.hit(16).allowed


def test_units_that_come_after_a_step_back_stand_beside_those_from_before() -> None:
    window = TimestampWindow(1_000)
    window.add(500, 2)
    window.add(300)
    assert window.total(300) == 3
    window.add(400)
    assert not window.remove(400, 400, 2)
    assert window.remove(400, 400, 1)
    assert (window.total(1_299), window.total(1_300)) == (3, 0)
