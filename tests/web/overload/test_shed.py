"""Load that is shed while the event loop lags or answers come late."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from slidegate import BanPolicy, ConfigurationError, Limiter, MemoryStore, RateLimitMiddleware, Rule, Shed
from slidegate.testing import FakeClock, RecordingObserver
from slidegate.web.overload import shed as overload
from slidegate.web.overload.controller import FALL, HIGHEST, MOST, MOST_TICKS, RISE, Controller

from ...asgi import call, hello, scope_of, send_scope, statuses

# -- the level ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_the_level_moves_in_bounded_steps_and_is_back_within_its_time(seed: int) -> None:
    draw = random.Random(seed)
    controller = Controller()
    for _ in range(100):
        controller.tick(draw.random())
        assert not controller.sheds(draw.randint(0, HIGHEST)), "without overload nothing is shed"
    top = HIGHEST
    for _ in range(300):
        before = controller.level
        controller.sheds(draw.randint(0, 3))
        ticks = draw.choice([1, 1, 3, 100])
        controller.tick(draw.choice([0.0, 0.9, 1.1, 2.0, 50.0]), ticks)
        assert -FALL - 1e-9 <= controller.level - before <= 3 * RISE * min(ticks, MOST_TICKS) + 1e-9
        assert 0 <= controller.level <= top + MOST
    for _ in range(round((top + 1) / FALL)):
        controller.tick(0.0)
    assert controller.level == 0


@pytest.mark.parametrize("seed", range(5))
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


class SteppedLoop(asyncio.SelectorEventLoop):
    """A loop that does not wait until something is due: its time goes on to that moment."""

    def __init__(self) -> None:
        self.now_s = 100.0
        selector = selectors.DefaultSelector()
        select = selector.select

        def step(timeout: float | None = None) -> Any:
            self.now_s += timeout or 0.0
            return select(0)

        selector.select = step  # type: ignore[method-assign]
        super().__init__(selector)

    def time(self) -> float:
        return self.now_s


@pytest.mark.parametrize("limit", ["lag", "latency"])
def test_a_loop_that_lags_and_late_answers_shed_load_until_they_are_over(limit: str) -> None:
    loop = SteppedLoop()
    slow = True

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        if slow and limit == "lag":
            loop.now_s += 0.2  # nothing else runs meanwhile
        await asyncio.sleep(0.2 if slow and limit == "latency" else 0.001)
        await hello(scope, receive, send)

    heard = RecordingObserver(without=["refused", "near_limit"])
    limiter = Limiter(MemoryStore(clock=FakeClock()), observers=[heard])
    rules = [Rule("*", shed=Shed(**{limit: "20ms"}), name="load")]
    app = RateLimitMiddleware(service, limiter=limiter, rules=rules)

    async def main() -> None:
        nonlocal slow
        assert 503 in await statuses(app, 100)
        slow = False
        for _ in range(1_000):
            await call(app)
            await asyncio.sleep(0.01)
        assert heard.kinds == ["shedding_started", "shedding_ended"]
        assert await statuses(app, 20) == [200] * 20

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())


def run_stepped(main: Callable[[SteppedLoop], Any]) -> None:
    loop = SteppedLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main(loop))


BY_PATH = {"/pay": 9, "/news": 0}
IMPORTANT_FIRST = {
    "one rule": [Rule("*", shed=Shed(lag="20ms", priority=lambda request: BY_PATH[request.url.path]))],
    "two rules": [Rule(path, shed=Shed(lag="20ms", priority=priority)) for path, priority in BY_PATH.items()],
}


@pytest.mark.parametrize("rules", IMPORTANT_FIRST.values(), ids=IMPORTANT_FIRST)
def test_shedding_is_over_soon_and_spares_the_important_whichever_priorities_are_used(rules: list[Rule]) -> None:
    async def main(loop: SteppedLoop) -> None:
        app = RateLimitMiddleware(hello, rules=rules)
        shed = dict.fromkeys(BY_PATH, 0)
        ends_s = loop.time() + 6
        while loop.time() < ends_s:
            for path in BY_PATH:
                shed[path] += (await call(app, path)).status == 503
            loop.now_s += 0.2  # nothing else runs meanwhile
            await asyncio.sleep(0.001)
        assert 0 < shed["/pay"] < shed["/news"]
        await asyncio.sleep(10.5)  # five seconds for each of the two
        assert [(await call(app, path)).status for path in [*BY_PATH] * 20] == [200] * 40

    run_stepped(main)


def test_slow_answers_shed_no_requests_of_another_rule() -> None:
    async def main(loop: SteppedLoop) -> None:
        async def service(scope: Scope, receive: Receive, send: Send) -> None:
            await asyncio.sleep(0.2 if scope["path"] == "/slow" else 0.001)
            await hello(scope, receive, send)

        rules = [Rule(path, shed=Shed(latency="20ms")) for path in ("/slow", "/fast")]
        app = RateLimitMiddleware(service, rules=rules)
        answers = [(await call(app, path)).status for path in ["/slow", "/fast"] * 100]
        assert 503 in answers[::2]
        assert 503 not in answers[1::2]

    run_stepped(main)


# -- the gate ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def overloaded(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Have every loop be overloaded by so much from now on."""
    controllers: list[Controller] = []
    level = 0.0

    class Told(Controller):
        def __init__(self, *seen: set[int]) -> None:
            super().__init__(*seen)
            self.level = level
            controllers.append(self)

        def tick(self, *measured: float) -> None:
            """Change nothing."""

    def tell(new: float) -> None:
        nonlocal level
        level = new
        for controller in controllers:
            controller.level = new

    monkeypatch.setattr(overload, "Controller", Told)
    return tell


async def test_a_share_is_refused_with_503_while_the_service_is_overloaded(overloaded: Callable[[float], None]) -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    rules = [Rule("*", shed=Shed(lag="50ms"), name="load"), Rule("*", "100/hour", name="all")]
    app = RateLimitMiddleware(hello, limiter=limiter, rules=rules)
    assert await statuses(app, 4) == [200] * 4
    overloaded(0.5)
    assert await statuses(app, 5) == [200, 503, 200, 503, 200]
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
async def test_the_least_important_are_shed_first(
    priority: Any, caplog: pytest.LogCaptureFixture, overloaded: Callable[[float], None]
) -> None:
    app = RateLimitMiddleware(hello, rules=[Rule("*", shed=Shed(lag="50ms", priority=priority))])
    assert await statuses(app, 1, headers={"x-priority": "2"}) == [200]
    overloaded(1.0)
    assert await statuses(app, 3, headers={"x-priority": "0"}) == [503] * 3
    assert await statuses(app, 3, headers={"x-priority": "1"}) == [200] * 3
    for bad in ("10", "-1", "much"):
        assert await statuses(app, 1, headers={"x-priority": bad}) == [503]
    assert len(caplog.records) == 1
    assert "priority function" in caplog.text


async def test_a_condition_and_a_path_say_which_requests_may_be_shed(overloaded: Callable[[float], None]) -> None:
    overloaded(1.0)
    bots = Rule("*", shed=Shed(lag="50ms"), when=lambda request: "x-bot" in request.headers)
    app = RateLimitMiddleware(hello, rules=[Rule("/health", exempt=True), bots])
    assert await statuses(app, 2, "/health", headers={"x-bot": "1"}) == [200] * 2
    assert await statuses(app, 2, headers={"x-bot": "1"}) == [503] * 2
    assert await statuses(app, 2) == [200] * 2


async def test_websockets_are_shed_at_their_handshake_and_nobody_is_struck(overloaded: Callable[[float], None]) -> None:
    overloaded(1.0)
    bans = BanPolicy("1/minute", signals={"refused": 1, "5xx": 1}, ban_private=True)
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    app = RateLimitMiddleware(hello, limiter=limiter, rules=[Rule("*", shed=Shed(lag="50ms"))], bans=bans)
    answer = await send_scope(app, scope_of(type="websocket"))
    assert [message["type"] for message in answer.messages] == ["websocket.close"]
    assert await statuses(app, 3) == [503] * 3
    assert [ban async for ban in limiter.bans()] == []


def test_outside_of_asyncio_nothing_is_shed() -> None:
    shed = Shed(latency="1s")

    async def send(message: object) -> None:
        """Take a message."""

    assert not shed.refuses(0)
    assert shed.timed(send) is send


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Shed(), "expected a limit"),
        (lambda: Shed(lag=0.0001), "lag: expected 1 ms to 1m"),
        (lambda: Shed(latency="2h"), "latency: expected 1 ms to 1h"),
        (lambda: Shed(lag="50ms", priority=10), "priority: expected a whole number from 0 to 9"),
        (lambda: Rule("*", shed="50ms"), "shed: expected"),
        (lambda: Rule("*", "1/s", shed=Shed(lag="1s")), "shed counts nothing; leave out limits"),
        (lambda: Rule("*", shed=Shed(lag="1s"), concurrency=1), "leave out|does not go"),
        (lambda: Rule("*", shed=Shed(lag="1s"), status=500), "status: it goes with"),
    ],
)
def test_what_cannot_work_is_said_at_construction(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make()
