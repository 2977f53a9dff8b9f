"""Tracking with a capacity: hot keys are found in fixed memory, and the store knows nothing of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slidegate import ConfigurationError, Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.testing import FakeClock

from ...asgi import PEER, hello, statuses


async def test_a_hot_key_is_told_once_and_again_only_after_it_has_cooled() -> None:
    told: list[str] = []
    clock = FakeClock(10**15)
    store = MemoryStore(clock=clock)
    rule = Rule("*", "10/5s", action="track", capacity=20, on_exceeded=lambda key, decision: told.append(key))
    app = RateLimitMiddleware(hello, rules=[rule], limiter=Limiter(store))
    assert await statuses(app, 10) == [200] * 10
    assert told == []
    assert await statuses(app, 10) == [200] * 10
    assert told == [PEER]
    for number in range(200):
        await statuses(app, 1, client=(f"198.51.100.{number}", 1))
    clock.advance("6s")
    await statuses(app, 11)
    assert told == [PEER, PEER]
    assert store.stats().keys == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"capacity": 0}, "capacity: expected a whole number from 1 to 10000, for example 1_000, not 0"),
        ({"action": "limit", "on_exceeded": None}, "capacity: it goes with action=\"track\", not 'limit'"),
        ({"limits": "5/second; 9/hour"}, 'capacity: expected one limit, for example "100/5s", not 5/1s; 9/1h'),
        ({"cost": 2}, "capacity: it counts requests; leave out cost"),
    ],
)
def test_what_does_not_go_with_a_capacity_is_an_error(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Rule("*", **{"limits": "5/second", "action": "track", "capacity": 10, "on_exceeded": print} | options)
    assert words in str(caught.value)


async def test_a_file_may_name_a_capacity(tmp_path: Path) -> None:
    told: list[str] = []
    file = tmp_path / "slidegate.toml"
    file.write_text('[[rules]]\npath = "*"\nlimits = "2/hour"\naction = "track"\ncapacity = 10\n')
    app = RateLimitMiddleware.from_file(hello, file, on_tracked=lambda key, decision: told.append(key))
    assert await statuses(app, 4) == [200] * 4
    assert told == [PEER]
