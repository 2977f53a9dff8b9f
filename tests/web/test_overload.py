"""Load that is shed while the event loop lags or answers come late."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.types import Receive, Scope, Send

from slidegate import (
    BanPolicy,
    ConfigurationError,
    Limiter,
    LoadSheddingMiddleware,
    MemoryStore,
    RateLimitMiddleware,
    client_ip,
)
from slidegate.testing import FakeClock, RecordingObserver
from slidegate.web import overload
from slidegate.web.overload import Level

from ..asgi import call, hello, scope_of, send_scope, statuses

# -- the level ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_share_of_each_priority_is_shed_and_more_important_ones_never_more(seed: int) -> None:
    draw = random.Random(seed)
    level = Level()
    for priority in range(4):
        level.sheds(priority)
    level.value = draw.random() * 4
    shed = [sum(level.sheds(priority) for _ in range(1000)) for priority in range(4)]
    for priority, found in enumerate(shed):
        assert abs(found - 1000 * min(max(level.value - priority, 0), 1)) <= 1
    assert shed == sorted(shed, reverse=True)


def test_some_of_the_highest_priority_always_pass() -> None:
    level = Level()
    for _ in range(1000):
        level.tick(100)
    assert 0 < sum(not level.sheds(0) for _ in range(1000)) <= 21


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
    bound: dict[str, Any] = {limit: "20ms"}
    app = LoadSheddingMiddleware(service, limiter=limiter, **bound)

    async def main() -> None:
        nonlocal slow
        assert 503 in await statuses(app, 100)
        slow = False
        for _ in range(1_000):
            await call(app)
            await asyncio.sleep(0.01)
        assert heard.kinds == ["shedding_started", "shedding_ended"]
        assert {event.details["shed"] for event in heard.events} == {f"{limit}=20ms"}
        assert await statuses(app, 20) == [200] * 20

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())


def run_stepped(main: Callable[[SteppedLoop], Any]) -> None:
    loop = SteppedLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main(loop))


BY_PATH = {"/pay": 9, "/news": 0}


def test_shedding_is_over_soon_and_spares_the_important_whichever_priorities_are_used() -> None:
    async def main(loop: SteppedLoop) -> None:
        app = LoadSheddingMiddleware(hello, lag="20ms", priority=lambda request: BY_PATH[request.url.path])
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


def test_a_flood_of_refused_requests_does_not_make_answers_look_fast() -> None:
    async def main(loop: SteppedLoop) -> None:
        async def service(scope: Scope, receive: Receive, send: Send) -> None:
            await asyncio.sleep(0.2)
            await hello(scope, receive, send)

        middleware = RateLimitMiddleware(service, limits="1/hour", client=client_ip(trusted=1))
        app = LoadSheddingMiddleware(middleware, latency="50ms")
        answers = []
        for number in range(40):
            headers = {"x-forwarded-for": f"198.51.100.{number}"}
            answers += await statuses(app, 20, headers=headers)
        assert answers.count(429) > 400
        assert 503 in answers

    run_stepped(main)


# -- the middleware ----------------------------------------------------------------------------------------------------


@pytest.fixture
def overloaded(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Have every loop be overloaded by so much from now on."""
    levels: list[Level] = []
    level = 0.0

    class Told(Level):
        def __init__(self) -> None:
            super().__init__()
            self.value = level
            levels.append(self)

        def tick(self, *measured: float) -> None:
            """Change nothing."""

    def tell(new: float) -> None:
        nonlocal level
        level = new
        for told in levels:
            told.value = new

    monkeypatch.setattr(overload, "Level", Told)
    return tell


async def test_a_share_is_refused_with_503_while_the_service_is_overloaded(overloaded: Callable[[float], None]) -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    middleware = RateLimitMiddleware(hello, limiter=limiter, limits="100/hour")
    app = LoadSheddingMiddleware(middleware, lag="50ms", limiter=limiter)
    assert await statuses(app, 4) == [200] * 4
    overloaded(0.5)
    assert await statuses(app, 5) == [200, 503, 200, 503, 200]
    answer = await call(app)
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    assert b"temporary-reduced-capacity" in answer.body
    figures = limiter.stats().rules
    assert figures["load-shedding"].refused == figures["load-shedding"].seen.count("shed") == 3
    assert (figures["default"].passed, figures["default"].refused) == (7, 0)


def importance(request: Any) -> int:
    return int(request.headers["x-priority"])


async def importance_later(request: Any) -> int:
    await asyncio.sleep(0)
    return importance(request)


@pytest.mark.parametrize("priority", [importance, importance_later])
async def test_the_least_important_are_shed_first(
    priority: Any, caplog: pytest.LogCaptureFixture, overloaded: Callable[[float], None]
) -> None:
    app = LoadSheddingMiddleware(hello, lag="50ms", priority=priority)
    assert await statuses(app, 1, headers={"x-priority": "2"}) == [200]
    overloaded(1.0)
    assert await statuses(app, 3, headers={"x-priority": "0"}) == [503] * 3
    assert await statuses(app, 3, headers={"x-priority": "1"}) == [200] * 3
    for bad in ("10", "-1", "much"):
        assert await statuses(app, 1, headers={"x-priority": bad}) == [503]
    assert len(caplog.records) == 1
    assert "priority function" in caplog.text


async def test_paths_methods_and_a_function_say_which_requests_may_be_shed(overloaded: Callable[[float], None]) -> None:
    overloaded(1.0)

    def bots_alone(request: Any) -> int | None:
        return 0 if "x-bot" in request.headers else None

    app = LoadSheddingMiddleware(
        hello, lag="50ms", priority=bots_alone, exempt=["/health", "/metrics/{rest:path}"], methods=["GET"]
    )
    bot = {"x-bot": "1"}
    for path in ("/health", "/metrics/all"):
        assert await statuses(app, 2, path, headers=bot) == [200] * 2
    assert await statuses(app, 2, "/health/../pay", headers=bot) == [503] * 2
    assert await statuses(app, 2, headers=bot) == await statuses(app, 2, method="HEAD", headers=bot) == [503] * 2
    assert await statuses(app, 2, method="POST", headers=bot) == [200] * 2
    assert await statuses(app, 2) == [200] * 2


@pytest.mark.parametrize("how", ["option", "environment"])
async def test_it_can_be_switched_off(
    how: str, monkeypatch: pytest.MonkeyPatch, overloaded: Callable[[float], None]
) -> None:
    overloaded(1.0)
    if how == "environment":
        monkeypatch.setenv("SLIDEGATE_ENABLED", "0")
    app = LoadSheddingMiddleware(hello, lag="50ms", enabled=how != "option")
    assert await statuses(app, 3) == [200] * 3


async def test_a_file_has_load_shed_before_its_middleware(tmp_path: Path, overloaded: Callable[[float], None]) -> None:
    overloaded(1.0)
    file = tmp_path / "slidegate.toml"
    file.write_text('limits = "2/hour"\n[load_shedding]\nlag = "50ms"\nexempt = "/health"\n')
    app = RateLimitMiddleware.from_file(hello, file)
    assert await statuses(app, 3) == [503] * 3
    assert await statuses(app, 3, "/health") == [200, 200, 429]
    assert app.limiter.stats().rules["load-shedding"].refused == 3
    file.write_text('limits = "2/hour"\n[load_shedding]\nlag = "50ms"\nexempt = "health"\n')
    with pytest.raises(ConfigurationError, match=r"load_shedding\.exempt: "):
        RateLimitMiddleware.from_file(hello, file)


async def test_websockets_are_shed_at_their_handshake_and_nobody_is_struck(overloaded: Callable[[float], None]) -> None:
    overloaded(1.0)
    bans = BanPolicy("1/minute", signals={"refused": 1, "5xx": 1}, ban_private=True)
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    middleware = RateLimitMiddleware(hello, limiter=limiter, bans=bans)
    app = LoadSheddingMiddleware(middleware, lag="50ms", limiter=limiter)
    answer = await send_scope(app, scope_of(type="websocket"))
    assert [message["type"] for message in answer.messages] == ["websocket.close"]
    assert await statuses(app, 3) == [503] * 3
    assert [ban async for ban in limiter.bans()] == []


def test_outside_of_asyncio_nothing_is_shed(overloaded: Callable[[float], None]) -> None:
    overloaded(1.0)
    app = LoadSheddingMiddleware(hello, latency="1s")
    assert anyio.run(statuses, app, 2, backend="trio") == [200] * 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "expected a bound"),
        ({"lag": 0.0001}, "lag: expected 1ms to 1m"),
        ({"latency": "2h"}, "latency: expected 1ms to 1h"),
        ({"lag": "50ms", "priority": 10}, "priority: expected a whole number from 0 to 9"),
        ({"lag": "50ms", "exempt": "health"}, "^exempt: .*'health'"),
        ({"lag": "50ms", "exempt": 5}, "^exempt: "),
        ({"lag": "50ms", "methods": "GET"}, "^methods: "),
        ({"lag": "50ms", "limiter": MemoryStore()}, "^limiter: "),
        ({"latancy": "50ms"}, "did you mean 'latency'"),
    ],
)
def test_what_cannot_work_is_said_at_construction(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        LoadSheddingMiddleware(hello, **options)
