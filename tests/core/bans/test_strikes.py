"""The state machine of bans: strikes, the ladder, forgiving."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate.core.bans.policy import MAX_EXACT, BanPolicy
from slidegate.core.bans.strikes import StrikeRecord

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US


@pytest.mark.parametrize("after", ["1/minute", "64/minute", "65/minute", "100000/minute"])
def test_no_flood_of_strikes_makes_a_record_large(after: str) -> None:
    policy, record = BanPolicy(after), StrikeRecord()
    for number in range(3_000):
        record, _ = record.struck(policy, number * 40_009, 1 + number % 3)
        assert len(record.strikes) <= MAX_EXACT + 1


class Blow(NamedTuple):
    pause_us: int
    weight: int


@pytest.mark.parametrize("amount", [65, 100, 1_000])
@given(
    st.lists(st.builds(Blow, st.sampled_from([0, 1, 999_999, 10**6, 3 * 10**6]), st.integers(1, 40)), max_size=60),
    st.integers(0, 10**9),
)
def test_many_strikes_ban_at_most_a_slice_late(amount: int, blows: list[Blow], now_us: int) -> None:
    policy = BanPolicy(f"{amount}/64s", "1s", factor=1)
    assert policy.grain_us == SECOND_US
    record, plain = StrikeRecord(), list[tuple[int, int]]()
    for pause_us, weight in blows:
        now_us += pause_us
        plain.append((now_us, weight))
        record, due = record.struck(policy, now_us, weight)
        in_window = sum(weight for at_us, weight in plain if at_us > now_us - 64 * SECOND_US)
        surely = sum(weight for at_us, weight in plain if at_us > now_us - 63 * SECOND_US)
        assert due <= (in_window >= amount)
        assert due >= (surely >= amount)
        if due:
            record, _ = record.banned(policy, "ann", "")
            plain, now_us = [], now_us + SECOND_US


@pytest.mark.parametrize("amount", [3, 64, 100])
@given(st.lists(st.builds(Blow, st.integers(-(10**9), 10**9), st.integers(1, 3)), max_size=60))
def test_no_step_of_the_clock_bans_too_early(amount: int, blows: list[Blow]) -> None:
    policy, record, now_us, struck = BanPolicy(f"{amount}/minute"), StrikeRecord(), 10**12, 0
    for step_us, weight in blows:
        now_us += step_us
        record, due = record.struck(policy, now_us, weight)
        struck += weight
        assert not due or struck >= amount
        assert len(record.strikes) <= MAX_EXACT + 1
        assert all(at_us <= now_us for at_us, _ in record.strikes)
        if due:
            record, struck = record.banned(policy, "ann", "")[0], 0


def test_strikes_of_the_future_leave_within_a_window_of_the_next_one() -> None:
    policy = BanPolicy("3/minute")
    record, _ = StrikeRecord().struck(policy, DAY_US, 1)
    record, _ = record.struck(policy, HOUR_US, 1)  # the clock was set back
    assert record.struck(policy, HOUR_US + MINUTE_US - 1, 1)[1]
    assert not record.struck(policy, HOUR_US + MINUTE_US, 2)[1]


def test_a_record_is_over_when_neither_strike_nor_level_is_left() -> None:
    policy = BanPolicy("2/minute", "10m", forgive="1h")
    record, _ = StrikeRecord().struck(policy, 0, 1)
    assert record.over_us == MINUTE_US
    record, due = record.struck(policy, HOUR_US, 2)
    assert (due, record.over_us) == (True, HOUR_US + MINUTE_US), "and stays so if no ban can be made"
    record, ban = record.banned(policy, "ann", "why")
    assert (ban.level, ban.since_us, ban.until_us) == (1, HOUR_US, HOUR_US + 10 * MINUTE_US)
    assert record == (1, HOUR_US, ban.until_us, HOUR_US + 70 * MINUTE_US, ())
    later, _ = record.struck(policy, HOUR_US + 11 * MINUTE_US, 1)
    assert (later.level, later.over_us) == (1, HOUR_US + 11 * MINUTE_US + HOUR_US)


def test_a_shadow_policy_counts_nothing_until_its_ban_would_have_ended() -> None:
    shadow, real = BanPolicy("1/minute", "10m", shadow=True), BanPolicy("1/minute", "10m")
    record, _ = StrikeRecord().struck(shadow, 0, 1)
    record, _ = record.banned(shadow, "ann", "why")
    assert record.struck(shadow, 10 * MINUTE_US - 1, 1) == (record, False)
    assert record.struck(shadow, 10 * MINUTE_US, 1)[1]
    assert record.struck(real, 1, 1)[1], "the policy that bans now has made none"
