"""The state machine of bans: strikes, the ladder, forgiving."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate.core.bans.policy import MAX_EXACT, BanPolicy
from slidegate.core.bans.strikes import PolicyState, Strike, StrikeRecord

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US


@pytest.mark.parametrize("after", ["1/minute", "64/minute", "65/minute", "100000/minute"])
def test_no_flood_of_strikes_makes_a_standing_large(after: str) -> None:
    policy, record = BanPolicy(after), StrikeRecord()
    for number in range(3_000):
        record.strike(policy, number * 40_009, 1 + number % 3)
        assert len(record.strikes) <= MAX_EXACT + 1


class Blow(NamedTuple):
    pause_us: int
    weight: int


@pytest.mark.parametrize("amount", [65, 100, 1_000])
@given(
    st.lists(st.builds(Blow, st.sampled_from([0, 1, 999_999, 10**6, 3 * 10**6]), st.integers(1, 40)), max_size=60),
    st.integers(0, 10**9),
)
def test_beyond_64_a_ban_comes_on_no_fewer_strikes_and_at_most_a_slice_late(
    amount: int, blows: list[Blow], now_us: int
) -> None:
    policy = BanPolicy(f"{amount}/64s", "1s", factor=1, jitter=0)
    assert policy.grain_us == SECOND_US
    record, plain = StrikeRecord(), []
    for pause_us, weight in blows:
        now_us += pause_us
        plain.append((now_us, weight))
        due = record.strike(policy, now_us, weight)
        in_window = sum(weight for at_us, weight in plain if at_us > now_us - 64 * SECOND_US)
        surely = sum(weight for at_us, weight in plain if at_us > now_us - 63 * SECOND_US)
        assert due <= (in_window >= amount)
        assert due >= (surely >= amount)
        if due:
            record.ban(policy, "ann", now_us)
            plain, now_us = [], now_us + SECOND_US


def test_a_standing_shows_what_it_holds() -> None:
    record = StrikeRecord(2, 7, 9, [Strike(7, 1)])
    assert repr(record) == (
        "<StrikeRecord level=2 strikes=[Strike(at_us=7, weight=1, source='')] last_us=7 until_us=9>"
    )


def test_a_standing_is_over_when_neither_strike_nor_level_is_left() -> None:
    policy, record = BanPolicy("2/minute", "10m", jitter=0, forgive="1h"), StrikeRecord()
    state: Any = PolicyState("abuse", {})  # type: ignore[arg-type]
    assert not state.is_over(record, 0), "of an unknown policy nobody can say"
    state.follow(policy)
    assert state.is_over(record, 0)
    record.strike(policy, 0, 1)
    assert not state.is_over(record, MINUTE_US - 1)
    assert state.is_over(record, MINUTE_US)
    record.strike(policy, HOUR_US, 2)
    ends_us = HOUR_US + record.ban(policy, "ann", HOUR_US)
    assert not state.is_over(record, ends_us - 1)
    assert not state.is_over(record, ends_us + HOUR_US - 1)
    assert state.is_over(record, ends_us + HOUR_US)
    assert state.is_over(StrikeRecord(until_us=5), 4) is False
