"""Tracking with a capacity: hot keys are found in fixed memory, and the store knows nothing of them."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from slidegate import ConfigurationError, Decision, Limiter, MemoryStore, RateLimitMiddleware, Reason, Rule
from slidegate.testing import FakeClock
from slidegate.web.rules.tracking import HotWatch

from ...asgi import PEER, call, hello, scope_of, statuses

S = 1_000_000
START_US = 1_000_000_000 * S


class Site:
    """An application whose hot keys are found among at most `capacity` counted ones."""

    def __init__(self, limits: str = "100/5s", capacity: int = 50, **options: Any) -> None:
        self.clock = FakeClock(START_US)
        self.store = MemoryStore(clock=self.clock)
        self.told: list[tuple[str, Decision]] = []
        options.setdefault("on_exceeded", lambda key, decision: self.told.append((key, decision)))
        self.rule = Rule("*", limits, action="track", capacity=capacity, name="hot", **options)
        self.app = RateLimitMiddleware(hello, rules=[self.rule], limiter=Limiter(self.store))

    async def ask(self, count: int, client: str = PEER) -> None:
        assert await statuses(self.app, count, client=(client, 1)) == [200] * count

    @property
    def keys(self) -> list[str]:
        return [key for key, _ in self.told]

    @property
    def watch(self) -> HotWatch:
        (gate,) = self.app._gate.rules.select(scope_of()).onlookers
        assert gate.hot is not None
        return gate.hot


async def test_a_hot_key_is_told_once_and_again_only_after_it_has_cooled() -> None:
    site = Site()
    await site.ask(100)
    assert site.keys == []
    await site.ask(50)
    assert site.keys == [PEER]
    site.clock.advance("5s")  # hits leave with their slice, which is not over
    await site.ask(50)
    assert site.keys == [PEER]
    site.clock.advance("6s")
    await site.ask(100)
    assert site.keys == [PEER]
    await site.ask(1)
    assert site.keys == [PEER, PEER]


async def test_on_exceeded_may_be_async_and_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []

    async def note(key: str, decision: Decision) -> None:
        await asyncio.sleep(0)
        told.append(key)
        raise RuntimeError("no")

    await Site("2/5s", on_exceeded=note).ask(4)
    assert told == [PEER]
    assert "on_exceeded function of rule 'hot' failed" in caplog.text


async def test_the_decision_says_that_the_limit_has_no_room_and_how_long_that_can_last() -> None:
    site = Site("3/5s")
    site.clock.advance(us=1_250_000)
    await site.ask(4)
    ((_, decision),) = site.told
    assert (decision.allowed, decision.reason, decision.now_us) == (False, Reason.LIMITED, site.clock.now_us)
    (state,) = decision.states
    assert (state.name, state.rule, state.key, str(state.limit)) == ("hot", "hot:track", PEER, "3/5s")
    assert (state.remaining, state.retry_after_us, state.reset_after_us) == (0, 5_750_000, 5_750_000)
    assert decision.retry_after == decision.more_after == decision.reset_after == 6


async def test_what_the_decision_says_is_when_the_key_has_cooled() -> None:
    site = Site("3/5s")
    await site.ask(4)
    site.clock.advance(us=site.told[0][1].retry_after_us or 0)
    await site.ask(3)
    assert site.keys == [PEER]
    await site.ask(1)
    assert site.keys == [PEER, PEER]


async def test_the_store_holds_no_window_for_a_tracked_key_and_strangers_take_no_memory() -> None:
    site = Site(capacity=20)
    for number in range(3_000):
        await site.ask(1, f"198.51.{number // 250}.{number % 250}")
        if number % 10 == 0:
            await site.ask(1)
    assert site.store.stats().keys == 0
    assert site.keys == [PEER]
    counted = [len(summary.counts) for summary in site.watch._keys._ring]
    assert 0 < max(counted) <= 20
    assert len(site.watch._found) == 0


async def test_a_request_that_the_key_leaves_uncounted_is_not_tracked() -> None:
    site = Site("1/5s", key=lambda request: request.headers.get("x-k"))
    await site.ask(5)
    assert site.keys == []
    for _ in range(2):
        await call(site.app, headers={"x-k": "k"})
    assert site.keys == ["k"]


async def test_refused_requests_are_tracked_as_well() -> None:
    told: list[str] = []
    hot = Rule("*", "5/5s", action="track", capacity=10, on_exceeded=lambda key, decision: told.append(key))
    app = RateLimitMiddleware(hello, rules=[hot, Rule("*", "1/hour")])
    assert await statuses(app, 6) == [200] + [429] * 5
    assert told == [PEER]


def test_threads_together_are_told_of_each_key_once() -> None:
    site = Site("99/1h", capacity=100)
    together = threading.Barrier(4)
    told: Counter[str] = Counter()

    def work() -> None:
        together.wait()
        for number in range(4_000):
            told.update(key for key, _ in site.watch.hit(f"k{number % 40}", START_US))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == {f"k{number}": 1 for number in range(40)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"capacity": 0}, "capacity: expected a whole number from 1 to 10000, for example 1_000, not 0"),
        ({"capacity": 10_001}, "not 10001"),
        ({"capacity": True}, "not True"),
        ({"action": "limit", "on_exceeded": None}, "capacity: it goes with action=\"track\", not 'limit'"),
        ({"action": "shadow", "on_exceeded": None}, "capacity: it goes with action=\"track\", not 'shadow'"),
        ({"limits": "5/second; 9/hour"}, 'capacity: expected one limit, for example "100/5s", not 5/1s; 9/1h'),
        ({"limits": lambda request: "5/second"}, "capacity: expected one limit"),
        ({"cost": 2}, "capacity: it counts requests; leave out cost"),
        ({"cost": lambda request: 1}, "capacity: it counts requests; leave out cost"),
    ],
)
def test_what_does_not_go_with_a_capacity_is_an_error(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Rule("*", **{"limits": "5/second", "action": "track", "capacity": 10, "on_exceeded": print} | options)
    assert words in str(caught.value)


async def test_a_file_may_name_a_capacity(tmp_path: Path) -> None:
    told: list[str] = []
    file = tmp_path / "slidegate.toml"
    rule = '[[rules]]\npath = "*"\nlimits = "2/hour"\naction = "track"\ncapacity = {}\n'
    file.write_text(rule.format(10))
    app = RateLimitMiddleware.from_file(hello, file, on_tracked=lambda key, decision: told.append(key))
    assert await statuses(app, 4) == [200] * 4
    assert (told, app.app.rules[0].capacity) == ([PEER], 10)
    file.write_text(rule.format(0))
    with pytest.raises(ConfigurationError, match=r"line 5: rules\[0\]\.capacity: expected greater than or equal to 1"):
        RateLimitMiddleware.from_file(hello, file, on_tracked=print)
