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


def strikes(record: StrikeRecord, policy: BanPolicy, *at_s: float) -> list[bool]:
    """Strike at moments, and return whether each made a ban due."""
    return [record.strike(policy, int(at * SECOND_US), 1) for at in at_s]


# -- strikes ---------------------------------------------------------------------------------------------------------


def test_a_heavy_strike_stands_for_several_and_no_weight_is_too_heavy() -> None:
    policy = BanPolicy("5/minute")
    record = StrikeRecord()
    assert not record.strike(policy, 0, 4)
    assert record.strike(policy, 1, 1)
    assert StrikeRecord().strike(policy, 0, 5)
    for weight in (6, 2**31, 10**30):
        record = StrikeRecord()
        assert record.strike(policy, 0, weight)
        assert record.weight_at(policy.after.window_us, 0) == 5


def test_a_ban_that_was_due_and_not_made_is_due_again_at_the_next_strike() -> None:
    policy = BanPolicy("3/minute")
    record = StrikeRecord()
    assert strikes(record, policy, 0, 1, 2, 3, 62.5, 62.6) == [False, False, True, True, False, True]
    assert record.level == 0


@pytest.mark.parametrize("after", ["1/minute", "64/minute", "65/minute", "100000/minute"])
def test_no_flood_of_strikes_makes_a_standing_large(after: str) -> None:
    policy, record = BanPolicy(after), StrikeRecord()
    for number in range(3_000):
        record.strike(policy, number * 40_009, 1 + number % 3)
        assert len(record.strikes) <= MAX_EXACT + 1


def test_the_addresses_of_a_prefix_count_once_each() -> None:
    policy, record = BanPolicy("3/minute"), StrikeRecord()
    due = [record.strike(policy, at, 1, source) for at, source in enumerate("aababac")]
    assert due == [False] * 6 + [True]
    record = StrikeRecord()
    late = [record.strike(policy, at_s * SECOND_US, 1, source) for at_s, source in ((0, "a"), (30, "b"), (59, "a"))]
    assert late == [False] * 3
    assert record.strike(policy, 61 * SECOND_US, 1, "c")  # the first was struck again since


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


@given(st.lists(st.builds(Blow, st.integers(0, 20), st.integers(1, 9)), max_size=60), st.integers(1, 64), st.booleans())
def test_up_to_64_strikes_are_exact(blows: list[Blow], amount: int, is_made: bool) -> None:
    policy, record, plain, now_us = BanPolicy(f"{amount}/1s", "1s", factor=1, jitter=0), StrikeRecord(), [], 0
    for pause_us, weight in blows:
        now_us += pause_us * 50_000
        plain.append((now_us, weight))
        total = sum(weight for at_us, weight in plain if at_us > now_us - SECOND_US)
        due = record.strike(policy, now_us, weight)
        assert due == (total >= amount)
        assert min(record.weight_at(policy.after.window_us, now_us), amount) == min(total, amount)
        if due and is_made:
            record.ban(policy, "ann", now_us)
            plain, now_us = [], now_us + SECOND_US


# -- the ladder ------------------------------------------------------------------------------------------------------


def climb(policy: BanPolicy, record: StrikeRecord, now_us: int) -> int:
    """Strike until a ban is made, and return its end."""
    while not record.strike(policy, now_us, 1):
        pass
    return now_us + record.ban(policy, "ann", now_us)


def test_each_ban_in_a_row_is_a_level_higher() -> None:
    policy, record, now_us = BanPolicy("2/minute", "1m", factor=2, longest="5m", jitter=0), StrikeRecord(), 0
    lengths_us = []
    for level in range(1, 6):
        ends_us = climb(policy, record, now_us)
        lengths_us.append(ends_us - now_us)
        assert (record.level, record.until_us) == (level, ends_us)
        now_us = ends_us
    assert lengths_us == [length * MINUTE_US for length in (1, 2, 4, 5, 5)]


@pytest.mark.parametrize(("clean_us", "level"), [(DAY_US - 1, 4), (DAY_US, 3), (2 * DAY_US, 2), (9 * DAY_US, 1)])
def test_clean_time_is_one_level_less_each(clean_us: int, level: int) -> None:
    policy, record, now_us = BanPolicy("2/minute", "1m", jitter=0), StrikeRecord(), 0
    for _ in range(3):
        now_us = climb(policy, record, now_us)
    assert record.level == 3
    climb(policy, record, now_us + clean_us)
    assert record.level == level


def test_clean_time_runs_from_the_last_strike() -> None:
    policy, record = BanPolicy("2/minute", "1m", jitter=0, forgive="1h"), StrikeRecord()
    ends_us = climb(policy, record, 0)
    ends_us = climb(policy, record, ends_us)
    for hours in (0.9, 1.8, 2.7):
        assert record.strike(policy, ends_us + int(hours * HOUR_US), 1) is False
        assert record.level_at(policy.forgive_us, ends_us + int(hours * HOUR_US)) == 2
    assert record.level_at(policy.forgive_us, ends_us + int(3.7 * HOUR_US)) == 1
    assert record.level_at(policy.forgive_us, ends_us + int(99 * HOUR_US)) == 0


def test_a_standing_is_over_when_neither_strike_nor_level_is_left() -> None:
    policy, record = BanPolicy("2/minute", "10m", jitter=0, forgive="1h"), StrikeRecord()
    state: Any = PolicyState("abuse", {})  # type: ignore[arg-type]
    assert not state.is_over(record, 0), "of an unknown policy nobody can say"
    state.follow(policy)
    assert state.is_over(record, 0)
    record.strike(policy, 0, 1)
    assert not state.is_over(record, MINUTE_US - 1)
    assert state.is_over(record, MINUTE_US)
    ends_us = climb(policy, record, HOUR_US)
    assert not state.is_over(record, ends_us - 1)
    assert not state.is_over(record, ends_us + HOUR_US - 1)
    assert state.is_over(record, ends_us + HOUR_US)
    assert state.is_over(StrikeRecord(until_us=5), 4) is False


def test_a_standing_shows_what_it_holds() -> None:
    record = StrikeRecord(2, 7, 9, [Strike(7, 1)])
    assert repr(record) == (
        "<StrikeRecord level=2 strikes=[Strike(at_us=7, weight=1, source='')] last_us=7 until_us=9>"
    )


@given(st.integers(-(10**16), 10**16), st.integers(-(10**16), 10**16))
def test_no_moment_is_special(first_us: int, second_us: int) -> None:
    """Times that were moved to another store's clock may be below 0."""
    policy = BanPolicy("3/minute", "10m", jitter=0)

    def course(start_us: int) -> list[object]:
        record = StrikeRecord(until_us=start_us, last_us=start_us)
        seen: list[object] = []
        for at_s in (0, 1, 59, 60, 700, 3_600, 3_601, 3_602, 90_000, 200_000):
            now_us = start_us + at_s * SECOND_US
            due = record.strike(policy, now_us, 1)
            seen.append((due, record.level, due and record.ban(policy, "ann", now_us)))
        return seen

    assert course(first_us) == course(second_us)
