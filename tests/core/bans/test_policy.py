"""What a ban policy is made of, and what it says about values that cannot work."""

from typing import Any

import pytest

from slidegate.core.bans.policy import BanPolicy

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US


def test_the_ladder_doubles_up_to_the_longest_and_never_overflows() -> None:
    policy = BanPolicy(duration="60s", factor=2, longest="7d")
    levels = (1, 2, 3, 14, 15, 1_000, 10**6, 10**400)
    lengths_s = [policy.length_us(level) / SECOND_US for level in levels]
    assert lengths_s == [60, 120, 240, 491_520, 604_800, 604_800, 604_800, 604_800]


@pytest.mark.parametrize("factor", [1, 1.0, 1.1, 1.5, 4, 1_000])
@pytest.mark.parametrize(("duration", "longest"), [("1s", "400d"), ("1h", "1h"), ("400d", "400d"), ("1s", "1s")])
def test_every_ladder_ends_and_never_goes_down(factor: float, duration: str, longest: str) -> None:
    policy = BanPolicy(duration=duration, factor=factor, longest=longest)
    ladder_us = [policy.length_us(level) for level in range(1, 201)]
    assert ladder_us == sorted(ladder_us)
    assert ladder_us[-1] == (policy.duration_us if factor == 1 else policy.longest_us)


def test_a_policy_without_words_is_the_documented_one() -> None:
    policy = BanPolicy()
    assert (policy.name, str(policy.after), policy.duration_us) == ("abuse", "20/10m", 3_600 * SECOND_US)
    assert (policy.factor, policy.forgive_us) == (4, DAY_US)
    assert (dict(policy.signals), policy.key, policy.shadow) == ({"refused": 1}, None, False)
    assert (policy.status, policy.ban_private) == (403, False)
    assert repr(policy) == "<BanPolicy 'abuse' after 20/10m, 1h>"


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="a BanPolicy is immutable; create another one instead of setting name"):
        BanPolicy().name = "other"
    with pytest.raises(TypeError):
        BanPolicy().signals["refused"] = 2  # type: ignore[index]


def test_signals_are_words_statuses_classes_and_paths() -> None:
    signals: dict[str | int, Any] = {"refused": 1, 401: 1, "4xx": 5, "/.env": "ban", "/a/{b}": 1_000_000}
    assert BanPolicy(signals={**signals, "404": 4}).signals == {**signals, 404: 4}
    assert dict(BanPolicy(signals={}).signals) == {}


@pytest.mark.parametrize(("after", "step_us"), [("1/1s", 1), ("64/64s", 1), ("65/64s", SECOND_US), ("65/1s", 15_625)])
def test_many_strikes_are_counted_by_slices(after: str, step_us: int) -> None:
    policy = BanPolicy(after)
    (limit,) = policy.strikes.limits
    assert limit.counter.terms == (policy.after.amount, step_us, policy.after.window_us - step_us + 1)
