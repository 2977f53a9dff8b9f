"""Keys that come near a limit: told of once a key and window, in bounded memory."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slidegate import ConfigurationError, Limiter, MemoryStore, Quota, RateLimitMiddleware, Rule
from slidegate.core.decision import LimitSet
from slidegate.events import Event
from slidegate.limiter import near_limits
from slidegate.testing import FakeClock, RecordingObserver

from ..asgi import PEER, hello, statuses
from ..hurry import at_once


class Site:
    """A limiter with an observer of keys that are near a limit."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock(10**15)
        self.heard = RecordingObserver()
        self.limiter = Limiter(MemoryStore(clock=self.clock), **options)
        self.limiter.observe(self.heard, kinds=["near_limit"])

    @property
    def told(self) -> list[tuple[object, object]]:
        return [(event.details["key"], event.details["spent"]) for event in self.heard.events]


async def test_a_key_is_told_of_once_in_a_window_when_it_has_spent_the_share() -> None:
    site = Site()
    for _ in range(10):
        await site.limiter.hit("ann", "10/minute", rule="api")
    assert site.told == [("ann", 8)]
    (event,) = site.heard.events
    assert dict(event.details) == {"key": "ann", "rule": "api", "limit": "10/1m", "spent": 8, "amount": 10}
    assert event.message == "ann has spent 8 of 10 per 1m under 'api'"
    assert event.time_us == site.clock()
    for _ in range(30):
        await site.limiter.hit("ann", "10/minute", rule="api")  # refused: that is told by others
    assert len(site.told) == 1
    site.clock.advance("59s")
    await site.limiter.hit("ann", "10/minute", rule="api")
    assert len(site.told) == 1
    site.clock.advance("1s")
    for _ in range(10):
        await site.limiter.hit("ann", "10/minute", rule="api")
    assert site.told == [("ann", 8)] * 2


async def test_keys_rules_and_limits_are_told_of_each_by_itself() -> None:
    site = Site()
    for rule in ("one", "two"):
        for key in ("ann", "bob"):
            for _ in range(4):
                await site.limiter.hit(key, "5/minute; 5/hour", rule=rule)
    told = [[event.details[field] for field in ("rule", "key", "limit")] for event in site.heard.events]
    assert sorted(told) == [  # type: ignore[type-var]
        [rule, key, limit] for rule in ("one", "two") for key in ("ann", "bob") for limit in ("5/1h", "5/1m")
    ]


@given(st.integers(1, 10**6), st.integers(1, 100))
@example(10, 70)
@example(5, 80)
@example(3, 100)
def test_the_share_is_exact(amount: int, percent: int) -> None:
    told: list[Event] = []
    near = near_limits.NearLimits(percent / 100, lambda: 0, told.append)
    least = -((-amount * Fraction(percent, 100)) // 1)
    store = MemoryStore(clock=FakeClock(10**15))
    bucket = LimitSet("rule", Limiter(store)._bucket("rule", f"{amount}/minute").limits)
    if least > 1:
        near.look(store.hit(((bucket, "ann", least - 1),)))
        assert told == []
        near.look(store.hit(((bucket, "ann", 1),)))
    else:
        near.look(store.hit(((bucket, "ann", 1),)))
    assert [event.details["spent"] for event in told] == [max(least, 1)]


@pytest.mark.parametrize("share", [0, -0.1, 1.01, "0.8", None, True, float("nan")])
def test_a_share_that_cannot_work_is_refused(share: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"near_limit: expected a share above 0 and up to 1, such as 0\.8"):
        Limiter(near_limit=share)
    with pytest.raises(ConfigurationError, match="near_limit"):
        Limiter.from_url("memory://", near_limit=share)


async def test_quotas_and_places_are_told_of_as_well() -> None:
    site = Site()
    for _ in range(9):
        await site.limiter.hit("ann", Quota("10/day"))
    assert site.told == [("ann", 8)]
    middleware = RateLimitMiddleware(hello, rules=[Rule("*", concurrency=1, name="one")], limiter=site.limiter)
    assert await statuses(middleware, 5) == [200] * 5
    assert site.told == [("ann", 8), (PEER, 1)]  # of places once a minute
    site.clock.advance("1m")
    assert await statuses(middleware, 5) == [200] * 5
    assert len(site.told) == 3


async def test_an_observer_that_comes_later_hears_of_keys_until_it_has_gone() -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock(10**15)))
    middleware = RateLimitMiddleware(hello, limits="50/minute", limiter=limiter)
    assert await statuses(middleware, 30) == [200] * 30
    heard: list[Event] = []
    subscription = limiter.observe(heard.append, kinds=["near_limit"], inline=True)
    assert await statuses(middleware, 15) == [200] * 15
    assert len(heard) == 1
    subscription.remove()
    await limiter.hit("ann", "1/minute")
    assert len(heard) == 1


async def test_what_is_remembered_is_bounded_and_some_are_told_of_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_limits, "MAX_REMEMBERED", 5)
    site = Site()
    for cost in (8, 1):
        for number in range(5):
            await site.limiter.hit(f"user:{number}", "10/minute", cost)
    assert [key for key, _ in site.told] == [f"user:{number}" for number in range(5)]
    await site.limiter.hit("user:5", "10/minute", 8)
    for _ in range(2):
        await site.limiter.hit("user:0", "20/minute", 8, rule="other")
    await site.limiter.hit("user:0", "10/minute", 1)
    assert site.told[5:] == [("user:5", 8), ("user:0", 16), ("user:0", 10)]


def test_threads_tell_of_a_key_once() -> None:
    site = Site()
    at_once(lambda _: [site.limiter.sync.hit("ann", "100000/minute", 250) for _ in range(50)])
    assert len(site.told) == 1
