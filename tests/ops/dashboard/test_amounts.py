"""What other amounts would have refused is never more than what they do refuse, and marks tell each happening once."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate import Limiter, MemoryStore
from slidegate.ops.dashboard.amounts import Amount, demand_of, other_amounts, refused_at_least
from slidegate.ops.dashboard.marks import marks_by_step, marks_of, told
from slidegate.ops.traffic import ClientTraffic
from slidegate.testing import FakeClock

START_US = 1_800_000_000_000_000
S_US = 1_000_000
MINUTES = 5
WINDOWS_S = (1, 5, 25, 60, 90, 120, 150, 300, 600, 3_600)


@given(st.lists(st.integers(0, MINUTES * 60 - 1), max_size=60), st.integers(1, 12), st.sampled_from(WINDOWS_S))
async def test_what_an_amount_would_have_refused_is_a_lower_bound_of_what_it_refuses(
    times: list[int], amount: int, window_s: int
) -> None:
    clock, minutes, refused = FakeClock(START_US), [0] * MINUTES, 0
    limiter = Limiter(MemoryStore(clock=clock))
    for second in sorted(times):
        clock.now_us = START_US + second * S_US
        minutes[second // 60] += 1
        refused += not await limiter.hit("user:ann", f"{amount}/{window_s}s")
    assert 0 <= refused_at_least(minutes, amount, window_s * S_US) <= refused


@pytest.mark.parametrize(
    ("minutes", "amount", "window_s", "refused"),
    [
        ([0, 65, 0, 0, 0], 5, 60, 60),
        ([0, 65, 7, 0, 0], 5, 60, 62),
        ([0, 4, 4, 4, 0], 5, 120, 3),
        ([9, 9, 9, 9, 9], 20, 3_600, 25),
        ([0, 100, 0, 0, 0], 10, 10, 40),
        ([0, 60, 0, 0, 0], 10, 10, 0),
    ],
)
def test_all_that_is_beyond_the_amount_is_refused(minutes: list[int], amount: int, window_s: int, refused: int) -> None:
    assert refused_at_least(minutes, amount, window_s * S_US) == refused


def test_amounts_are_around_the_one_in_force_and_count_clients_and_requests() -> None:
    minutes = [
        [ClientTraffic("a", counted_by={"api": 4, "all": 9}, refused_by={"api": 20})],
        [ClientTraffic("b", counted_by={"api": 3}), ClientTraffic("c", counted_by={"all": 50})],
    ]
    demand = demand_of(minutes, "api")
    assert demand == {"a": [24, 0], "b": [0, 3]}
    found = other_amounts(demand, 8, 60 * S_US)
    assert found == [
        Amount(2, False, 2, 23),
        Amount(4, False, 1, 20),
        Amount(8, True, 1, 16),
        Amount(16, False, 1, 8),
        Amount(32, False, 0, 0),
    ]
    assert [one.amount for one in other_amounts(demand, 1, 60 * S_US)] == [1, 2, 4], "each once"


def event(kind: str, at: float, **details: str) -> dict[str, Any]:
    return {"kind": kind, "at": at, "details": {"key": "", "by": "", **details}}


def action(kind: str, target: str, at: float, by: str = "ann") -> dict[str, Any]:
    return {"kind": kind, "target": target, "at": at, "by": by}


def test_what_happened_is_told_once_however_many_workers_report_it() -> None:
    actions = [action("ban", "192.0.2.1", 100.0), action("override", "api", 107.0), action("unban", "192.0.2.9", 108.0)]
    events = [
        event("banned", 100.2, key="192.0.2.1", by="ann"),
        event("banned", 103.0, key="192.0.2.2", by="scanning"),
        event("limit_overridden", 107.4, limit="api", by="ann"),
        event("limit_overridden", 108.1, limit="api", by="ann"),
        event("store_failed", 111.0),
        event("store_recovered", 119.0),
        event("refused", 112.0, key="192.0.2.3"),
    ]
    marks = marks_of(events, actions)
    assert [(mark.kind, mark.text) for mark in marks] == [
        ("ban", "192.0.2.1 banned by ann"),
        ("ban", "192.0.2.2 banned by scanning"),
        ("change", "api changed by ann"),
        ("outage", "the store fails"),
        ("outage", "the store answers"),
    ]
    by_step = marks_by_step(marks, 100.0, 5.0, 3)
    assert {place: [mark.at for mark in found] for place, found in by_step.items()} == {
        0: [100.0, 103.0],
        1: [107.0],
        2: [111.0],
    }


def test_of_many_marks_of_one_step_the_first_are_told_and_the_number_of_the_others() -> None:
    marks = marks_of([], [action("ban", f"192.0.2.{number}", 100.0 + number) for number in range(9)])
    assert told(marks).endswith("; 6 more")
    assert told(()) == ""
