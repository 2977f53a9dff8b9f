"""Load that is shed while the event loop lags or answers come late."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import Message

from slidegate import BanPolicy, ConfigurationError, Limiter, MemoryStore, RateLimitMiddleware, Rule, Shed
from slidegate.testing import FakeClock, RecordingObserver
from slidegate.web.overload.controller import FALL, HIGHEST, MOST, MOST_TICKS, RISE, TICK_S, Controller
from slidegate.web.overload.shed import _Meter

from ...asgi import call, hello, scope_of, send_scope, statuses

# -- the level ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_shed_without_overload(seed: int) -> None:
    draw = random.Random(seed)
    controller = Controller()
    for _ in range(500):
        controller.tick(draw.random())
        assert not controller.sheds(draw.randint(0, HIGHEST))


@pytest.mark.parametrize("seed", range(20))
def test_the_level_moves_in_bounded_steps_and_is_back_within_its_time(seed: int) -> None:
    draw = random.Random(seed)
    controller = Controller()
    top = 0
    for _ in range(300):
        before = controller.level
        priority = draw.randint(0, 3)
        top = max(top, priority)
        controller.sheds(priority)
        ticks = draw.choice([1, 1, 3, 100])
        controller.tick(draw.choice([0.0, 0.9, 1.1, 2.0, 50.0]), ticks)
        assert -FALL - 1e-9 <= controller.level - before <= 3 * RISE * min(ticks, MOST_TICKS) + 1e-9
        assert 0 <= controller.level <= top + MOST
    for _ in range(round((top + 1) / FALL)):
        controller.tick(0.0)
    assert controller.level == 0
    assert pytest.approx(5) == (1 / FALL) * TICK_S


@pytest.mark.parametrize("seed", range(20))
def test_a_share_of_each_priority_is_shed_and_more_important_ones_never_more(seed: int) -> None:
    draw = random.Random(seed)
    controller = Controller()
    for priority in range(4):
        controller.sheds(priority)
    controller.level = draw.random() * 4
    shed = [sum(controller.sheds(priority) for _ in range(1000)) for priority in range(4)]
    for priority, found in enumerate(shed):
        assert abs(found - 1000 * min(max(controller.level - priority, 0), 1)) <= 1
    assert shed == sorted(shed, reverse=True)


def test_some_of_the_highest_priority_always_pass() -> None:
    controller = Controller()
    for _ in range(1000):
        controller.tick(100)
    assert 0 < sum(not controller.sheds(0) for _ in range(1000)) <= 21


# -- the measure -------------------------------------------------------------------------------------------------------


class FakeLoop:
    """A loop whose time is told, and whose timers come as late as they are told to."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, callback: Callable[[], None]) -> None:
        self.timers.append((when_s, callback))

    def run(self, late_s: float) -> None:
        if not self.timers:
            return  # nothing is measured any more
        (when_s, callback), *self.timers = self.timers
        self.now_s = max(self.now_s, when_s + late_s)
        callback()


def meter_of(lag_us: int = 0, latency_us: int = 0) -> tuple[FakeLoop, _Meter, list[bool]]:
    loop: Any = FakeLoop()
    told: list[bool] = []
    meter = _Meter(loop, lag_us, latency_us, lambda begins, message: told.append(begins))
    meter.wake()
    return loop, meter, told


def test_a_lag_beyond_its_limit_sheds_and_its_end_is_told_once() -> None:
    loop, meter, told = meter_of(lag_us=50_000)
    for _ in range(10):
        loop.run(0.049)
        loop.run(0.19)  # one hiccup is no overload
        loop.run(0.0)
        meter.wake()  # a request comes
    assert meter.controller.level == 0
    for _ in range(40):
        loop.run(0.2)
    assert meter.controller.level == MOST
    for _ in range(120):
        loop.run(0.0)
    assert meter.controller.level == 0
    assert told == [True, False]


def test_late_answers_shed_and_old_ones_are_forgotten() -> None:
    loop, meter, _ = meter_of(latency_us=100_000)
    for _ in range(100):
        meter.answered(0.5)
        loop.run(0.0)
    assert meter.controller.level == MOST
    for _ in range(200):
        loop.run(0.0)  # nobody is admitted any more: that alone ends it
    assert meter.controller.level == 0


def test_an_idle_service_is_measured_no_longer() -> None:
    loop, meter, _ = meter_of(lag_us=50_000)
    for _ in range(30):
        loop.run(0.0)
    assert not loop.timers
    meter.wake()
    meter.wake()
    assert len(loop.timers) == 1


# -- the gate ----------------------------------------------------------------------------------------------------------


def overloaded(shed: Shed, level: float) -> None:
    meter = shed._meter()
    assert meter is not None
    meter.controller.level = level


async def test_a_share_is_refused_with_503_while_the_service_is_overloaded() -> None:
    shed = Shed(lag="50ms")
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    app = RateLimitMiddleware(hello, limiter=limiter, rules=[Rule("*", shed=shed, name="load"), Rule("*", "100/hour", name="all")])  # fmt: skip # noqa: E501
    assert await statuses(app, 4) == [200] * 4
    overloaded(shed, 0.5)
    assert await statuses(app, 4) == [200, 503, 200, 503]
    answer = await call(app)
    answer = await call(app)
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    assert b"temporary-reduced-capacity" in answer.body
    figures = limiter.stats().rules
    assert figures["load"].refused == figures["load"].seen.count("shed") == 3
    assert figures["all"].refused == 0
    assert (await limiter.peek("203.0.113.9", "100/hour", 0, rule="all")).remaining == 93


def importance(request: Any) -> int:
    return int(request.headers["x-priority"])


async def importance_later(request: Any) -> int:
    await asyncio.sleep(0)
    return importance(request)


@pytest.mark.parametrize("priority", [importance, importance_later])
async def test_the_least_important_are_shed_first(priority: Any, caplog: pytest.LogCaptureFixture) -> None:
    shed = Shed(lag="50ms", priority=priority)
    app = RateLimitMiddleware(hello, rules=[Rule("*", shed=shed)])
    assert await statuses(app, 1, headers={"x-priority": "2"}) == [200]
    overloaded(shed, 1.0)
    assert await statuses(app, 3, headers={"x-priority": "0"}) == [503] * 3
    assert await statuses(app, 3, headers={"x-priority": "1"}) == [200] * 3
    for bad in ("10", "-1", "much"):
        assert await statuses(app, 1, headers={"x-priority": bad}) == [503]
    assert len(caplog.records) == 1
    assert "priority function" in caplog.text


async def test_a_condition_and_a_path_say_which_requests_may_be_shed() -> None:
    shed = Shed(lag="50ms")
    rules = [Rule("/health", exempt=True), Rule("*", shed=shed, when=lambda request: "x-bot" in request.headers)]
    app = RateLimitMiddleware(hello, rules=rules)
    overloaded(shed, 1.0)
    assert await statuses(app, 2, "/health", headers={"x-bot": "1"}) == [200] * 2
    assert await statuses(app, 2, headers={"x-bot": "1"}) == [503] * 2
    assert await statuses(app, 2) == [200] * 2


async def test_websockets_are_shed_at_their_handshake_and_nobody_is_struck() -> None:
    shed = Shed(lag="50ms")
    bans = BanPolicy("1/minute", signals={"refused": 1, "5xx": 1}, ban_private=True)
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    app = RateLimitMiddleware(hello, limiter=limiter, rules=[Rule("*", shed=shed)], bans=bans)
    overloaded(shed, 1.0)
    scope = scope_of(type="websocket")
    del scope["method"]
    assert [message["type"] for message in (await send_scope(app, scope)).messages] == ["websocket.close"]
    assert await statuses(app, 3) == [503] * 3
    assert [ban async for ban in limiter.bans()] == []


async def test_the_time_to_the_first_byte_of_admitted_requests_is_measured() -> None:
    shed = Shed(latency="1s")
    app = RateLimitMiddleware(hello, rules=[Rule("*", shed=shed)])
    assert await statuses(app, 3) == [200] * 3
    meter = shed._meter()
    assert meter is not None
    assert meter._answers == 3
    overloaded(shed, 1.0)
    assert await statuses(app, 3) == [503] * 3
    assert meter._answers == 3


async def test_events_tell_when_load_is_shed() -> None:
    observer = RecordingObserver(without=["refused", "near_limit"])
    limiter = Limiter(MemoryStore(clock=FakeClock()), observers=[observer])
    shed = Shed(lag="50ms")
    RateLimitMiddleware(hello, limiter=limiter, rules=[Rule("*", shed=shed)])
    shed._say(True, "the loop lags")
    shed._say(False, "no more")
    assert [event.kind for event in observer.events] == ["shedding_started", "shedding_ended"]


def test_outside_of_asyncio_nothing_is_shed() -> None:
    shed = Shed(latency="1s")

    async def send(message: Message) -> None:
        """Take a message."""

    assert not shed.refuses(0)
    assert shed.timed(send) is send


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Shed(), "expected a limit"),
        (lambda: Shed(lag=0.0001), "lag: expected 1 ms to 1m"),
        (lambda: Shed(lag="2m"), "lag: expected 1 ms to 1m"),
        (lambda: Shed(latency="2h"), "latency: expected 1 ms to 1h"),
        (lambda: Shed(lag="50ms", priority=10), "priority: expected a whole number from 0 to 9"),
        (lambda: Shed(lag="50ms", priority=True), "priority: expected a whole number from 0 to 9"),
        (lambda: Rule("*", shed="50ms"), "shed: expected"),
        (lambda: Rule("*", "1/s", shed=Shed(lag="1s")), "shed counts nothing; leave out limits"),
        (lambda: Rule("*", shed=Shed(lag="1s"), concurrency=1), "leave out|does not go"),
        (lambda: Rule("*", shed=Shed(lag="1s"), action="block"), "leave out action"),
        (lambda: Rule("*", shed=Shed(lag="1s"), status=500), "status: it goes with"),
        (lambda: Rule("*", shed=Shed(lag="1s"), exempt=True), "leave out exempt"),
    ],
)
def test_what_cannot_work_is_said_at_construction(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make()
