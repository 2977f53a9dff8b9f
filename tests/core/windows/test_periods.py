"""The count of a quota: what it holds, when it starts anew, and what is handed back."""

from __future__ import annotations

from copy import copy

import pytest

from slidegate.core import NEVER, PeriodCount, Quota
from slidegate.core.quotas import KEPT_US
from slidegate.core.windows.codec import end_us, expires_us, pack_window, unpack_window
from slidegate.core.windows.periods import MOST_UNITS

QUOTA = Quota("5/day")


def entered(end: int = 1_000, ahead: int = 0) -> PeriodCount:
    count = PeriodCount()
    count.enter(end, ahead)
    return count


def test_a_period_holds_its_amount_until_its_end_in_the_time_of_the_store() -> None:
    count = entered(1_000, ahead=50)
    assert count.spend(100, 5, 3) == (3, 1_050, 1_050, 0)
    assert count.spend(100, 5, 3) == (3, 1_050, 1_050, 950)
    assert count.spend(100, 5, 6) == (3, 1_050, 1_050, NEVER)
    assert (count.total(1_049), count.total(1_050)) == (3, 0)
    assert not count.lies_ahead(0)


def test_a_count_never_goes_back_to_an_earlier_period() -> None:
    count = entered(2_000)
    count.add(10, 4)
    count.enter(1_000, 7)
    assert (count.spent, count.end_us, count.leaves_us) == (4, 2_000, 2_007)
    count.enter(3_000, 0)
    assert (count.spent, count.end_us) == (0, 3_000)


def test_units_are_handed_back_to_their_period_alone() -> None:
    count = entered(1_000)
    count.add(10, 4)
    assert [count.remove(20, *charge) for charge in ((999, 1), (1_000, 5), (1_000, 0), (1_000, 3))] == [
        False,
        False,
        False,
        True,
    ]
    assert count.spent == 1
    with pytest.raises(ValueError, match="0 or more"):
        count.add(20, -1)


def test_no_debt_is_without_measure() -> None:
    count = entered()
    assert count.charge(10, 10**30, 0) == MOST_UNITS
    assert count.charge(10, 1, 0) == 0


def test_a_count_is_written_and_read_and_kept_for_a_while_after_its_end() -> None:
    count = entered(1_000, ahead=50)
    count.add(10, 4)
    packed = pack_window(count)
    again = unpack_window(b"head" + packed, QUOTA, 10, 4)
    assert isinstance(again, PeriodCount)
    assert (again.spent, again.end_us, end_us(packed), end_us(b"")) == (4, 1_000, 1_000, 0)
    assert expires_us(count, QUOTA) == 1_050 + KEPT_US
    twin = copy(count)
    twin.add(20)
    assert (count.spent, twin.spent, twin.leaves_us) == (4, 5, count.leaves_us)
