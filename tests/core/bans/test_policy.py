"""What a ban policy is made of, and what it says about values that cannot work."""

import pytest

from slidegate.core.bans.policy import BanPolicy

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US


@pytest.mark.parametrize("factor", [1, 1.0, 1.1, 1.5, 4, 1_000])
@pytest.mark.parametrize(("duration", "longest"), [("1s", "400d"), ("1h", "1h"), ("400d", "400d"), ("1s", "1s")])
def test_every_ladder_ends_and_never_goes_down(factor: float, duration: str, longest: str) -> None:
    policy = BanPolicy(duration=duration, factor=factor, longest=longest)
    ladder_us = [policy.length_us(level) for level in range(1, 201)]
    assert ladder_us == sorted(ladder_us)
    assert ladder_us[-1] == (policy.duration_us if factor == 1 else policy.longest_us)


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="a BanPolicy is immutable; create another one instead of setting name"):
        BanPolicy().name = "other"
    with pytest.raises(TypeError):
        BanPolicy().signals["refused"] = 2  # type: ignore[index]
