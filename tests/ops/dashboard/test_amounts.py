"""What other amounts would have refused is never more than what they do refuse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate import Limiter, MemoryStore
from slidegate.ops.dashboard.amounts import Amount, demand_of, other_amounts, refused_at_least
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
