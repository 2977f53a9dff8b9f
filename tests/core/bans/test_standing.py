"""The state machine of bans: strikes, the ladder, forgiving."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate.core.bans.policy import MAX_EXACT, BanPolicy
from slidegate.core.bans.standing import Standing, Strike

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US


def strikes(standing: Standing, policy: BanPolicy, *at_s: float) -> list[bool]:
    """Strike at moments, and return whether each made a ban due."""
    return [standing.strike(policy, int(at * SECOND_US), 1) for at in at_s]


# -- strikes ---------------------------------------------------------------------------------------------------------


def test_a_heavy_strike_stands_for_several_and_no_weight_is_too_heavy() -> None:
    policy = BanPolicy("5/minute")
    standing = Standing()
    assert not standing.strike(policy, 0, 4)
    assert standing.strike(policy, 1, 1)
    assert Standing().strike(policy, 0, 5)
    for weight in (6, 2**31, 10**30):
        standing = Standing()
        assert standing.strike(policy, 0, weight)
        assert standing.weight_at(policy.after.window_us, 0) == 5


def test_a_ban_that_was_due_and_not_made_is_due_again_at_the_next_strike() -> None:
    policy = BanPolicy("3/minute")
    standing = Standing()
    assert strikes(standing, policy, 0, 1, 2, 3, 62.5, 62.6) == [False, False, True, True, False, True]
    assert standing.level == 0


@pytest.mark.parametrize("after", ["1/minute", "64/minute", "65/minute", "100000/minute"])
def test_no_flood_of_strikes_makes_a_standing_large(after: str) -> None:
    policy, standing = BanPolicy(after), Standing()
    for number in range(3_000):
        standing.strike(policy, number * 40_009, 1 + number % 3)
        assert len(standing.strikes) <= MAX_EXACT + 1


def test_the_addresses_of_a_prefix_count_once_each() -> None:
    policy, standing = BanPolicy("3/minute"), Standing()
    due = [standing.strike(policy, at, 1, source) for at, source in enumerate("aababac")]
    assert due == [False] * 6 + [True]
    standing = Standing()
    late = [standing.strike(policy, at_s * SECOND_US, 1, source) for at_s, source in ((0, "a"), (30, "b"), (59, "a"))]
    assert late == [False] * 3
    assert standing.strike(policy, 61 * SECOND_US, 1, "c")  # the first was struck again since


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
    standing, plain = Standing(), []
    for pause_us, weight in blows:
        now_us += pause_us
        plain.append((now_us, weight))
        due = standing.strike(policy, now_us, weight)
        in_window = sum(weight for at_us, weight in plain if at_us > now_us - 64 * SECOND_US)
        surely = sum(weight for at_us, weight in plain if at_us > now_us - 63 * SECOND_US)
        assert due <= (in_window >= amount)
        assert due >= (surely >= amount)
        if due:
            standing.ban(policy, "ann", now_us)
            plain, now_us = [], now_us + SECOND_US


@given(st.lists(st.builds(Blow, st.integers(0, 20), st.integers(1, 9)), max_size=60), st.integers(1, 64), st.booleans())
def test_up_to_64_strikes_are_exact(blows: list[Blow], amount: int, is_made: bool) -> None:
    policy, standing, plain, now_us = BanPolicy(f"{amount}/1s", "1s", factor=1, jitter=0), Standing(), [], 0
    for pause_us, weight in blows:
        now_us += pause_us * 50_000
        plain.append((now_us, weight))
        total = sum(weight for at_us, weight in plain if at_us > now_us - SECOND_US)
        due = standing.strike(policy, now_us, weight)
        assert due == (total >= amount)
        assert min(standing.weight_at(policy.after.window_us, now_us), amount) == min(total, amount)
        if due and is_made:
            standing.ban(policy, "ann", now_us)
            plain, now_us = [], now_us + SECOND_US


# -- the ladder ------------------------------------------------------------------------------------------------------


def climb(policy: BanPolicy, standing: Standing, now_us: int) -> int:
    """Strike until a ban is made, and return its end."""
    while not standing.strike(policy, now_us, 1):
        pass
    return now_us + standing.ban(policy, "ann", now_us)


def test_each_ban_in_a_row_is_a_level_higher() -> None:
    policy, standing, now_us = BanPolicy("2/minute", "1m", factor=2, longest="5m", jitter=0), Standing(), 0
    lengths_us = []
    for level in range(1, 6):
        ends_us = climb(policy, standing, now_us)
        lengths_us.append(ends_us - now_us)
        assert (standing.level, standing.until_us) == (level, ends_us)
        now_us = ends_us
    assert lengths_us == [length * MINUTE_US for length in (1, 2, 4, 5, 5)]


@pytest.mark.parametrize(("clean_us", "level"), [(DAY_US - 1, 4), (DAY_US, 3), (2 * DAY_US, 2), (9 * DAY_US, 1)])
def test_clean_time_is_one_level_less_each(clean_us: int, level: int) -> None:
    policy, standing, now_us = BanPolicy("2/minute", "1m", jitter=0), Standing(), 0
    for _ in range(3):
        now_us = climb(policy, standing, now_us)
    assert standing.level == 3
    climb(policy, standing, now_us + clean_us)
    assert standing.level == level


def test_clean_time_runs_from_the_last_strike() -> None:
    policy, standing = BanPolicy("2/minute", "1m", jitter=0, forgive="1h"), Standing()
    ends_us = climb(policy, standing, 0)
    ends_us = climb(policy, standing, ends_us)
    for hours in (0.9, 1.8, 2.7):
        assert standing.strike(policy, ends_us + int(hours * HOUR_US), 1) is False
        assert standing.level_at(policy.forgive_us, ends_us + int(hours * HOUR_US)) == 2
    assert standing.level_at(policy.forgive_us, ends_us + int(3.7 * HOUR_US)) == 1
    assert standing.level_at(policy.forgive_us, ends_us + int(99 * HOUR_US)) == 0


def test_a_standing_is_over_when_neither_strike_nor_level_is_left() -> None:
    policy, standing = BanPolicy("2/minute", "10m", jitter=0, forgive="1h"), Standing()
    assert standing.is_over(policy, 0)
    standing.strike(policy, 0, 1)
    assert not standing.is_over(policy, MINUTE_US - 1)
    assert standing.is_over(policy, MINUTE_US)
    ends_us = climb(policy, standing, HOUR_US)
    assert not standing.is_over(policy, ends_us - 1)
    assert not standing.is_over(policy, ends_us + HOUR_US - 1)
    assert standing.is_over(policy, ends_us + HOUR_US)
    assert Standing(until_us=5).is_over(policy, 4) is False


def test_a_standing_shows_what_it_holds() -> None:
    standing = Standing(2, 7, 9, [Strike(7, 1)])
    assert repr(standing) == ("<Standing level=2 strikes=[Strike(at_us=7, weight=1, source='')] last_us=7 until_us=9>")


@given(st.integers(-(10**16), 10**16), st.integers(-(10**16), 10**16))
def test_no_moment_is_special(first_us: int, second_us: int) -> None:
    """Times that were moved to another store's clock may be below 0."""
    policy = BanPolicy("3/minute", "10m", jitter=0)

    def course(start_us: int) -> list[object]:
        standing = Standing(until_us=start_us, last_us=start_us)
        seen: list[object] = []
        for at_s in (0, 1, 59, 60, 700, 3_600, 3_601, 3_602, 90_000, 200_000):
            now_us = start_us + at_s * SECOND_US
            due = standing.strike(policy, now_us, 1)
            seen.append((due, standing.level, due and standing.ban(policy, "ann", now_us)))
        return seen

    assert course(first_us) == course(second_us)
