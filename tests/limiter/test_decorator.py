"""Limits around functions and blocks: who is refused, who waits, and that the function stays what it was."""

import asyncio
import functools
import inspect
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest
from starlette.exceptions import HTTPException

from slidegate import Limiter, MemoryStore, RateLimitExceeded, SlidegateError
from slidegate.core import Bucket, Concurrency, Reason
from slidegate.testing import FakeClock

from ..remote_stores import SlowStore
from ..virtual_time import VirtualTime, turns


@pytest.fixture(params=[MemoryStore, SlowStore])
def real(request: pytest.FixtureRequest) -> Iterator[Limiter]:
    """A limiter by the time of the system."""
    made = Limiter(request.param(), deadline="60s")
    yield made
    made.sync.close()


def outcomes(call: Callable[[], object], times: int) -> list[object]:
    """Return what calls return, and the seconds that refused ones are told to wait."""

    def outcome() -> object:
        try:
            return call()
        except RateLimitExceeded as refusal:
            return refusal.retry_after_s

    return [outcome() for _ in range(times)]


def test_a_function_runs_as_often_as_the_limit_says(limiter: Limiter, clock: FakeClock) -> None:
    ran: list[str] = []
    send = limiter.limited("2/10s", key="mail")(ran.append)
    assert outcomes(lambda: send("ann"), 4) == [None, None, 10.0, 10.0]
    assert ran == ["ann", "ann"]
    clock.advance("10s")
    send("bob")
    assert ran[2:] == ["bob"]


def test_the_key_may_come_from_the_arguments_and_the_object_of_a_method(limiter: Limiter) -> None:
    class Mailbox(str):
        @limiter.limited("1/10s", key=lambda mailbox, to, *_, **options: f"mailbox:{mailbox}:{to}")
        def send(self, to: str, *, text: str = "") -> str:
            return str(self)

        @classmethod
        @limiter.limited("1/10s", key="all")
        def send_all(cls) -> str:
            return cls.__name__

    for name, to in (("ann", "eve"), ("ann", "dan"), ("bob", "eve")):
        assert outcomes(functools.partial(Mailbox(name).send, to, text="hello"), 2) == [name, 10.0]
    assert outcomes(Mailbox.send_all, 2) == ["Mailbox", 10.0]


def one(number: int = 1) -> int:
    return number


def test_functions_are_counted_apart_unless_they_share_a_rule(limiter: Limiter) -> None:
    def two() -> int:
        return 1

    apart = limiter.limited("1/10s", key="all")
    assert [outcomes(apart(function), 2) for function in (one, two)] == [[1, 10.0], [1, 10.0]]
    together = limiter.limited("1/10s", key="all", rule="numbers")
    assert [outcomes(together(function), 1) for function in (one, two)] == [[1], [10.0]]
    assert not limiter.sync.peek("all", "1/10s", rule="numbers")
    assert not limiter.sync.peek("all", "1/10s", rule=f"{__name__}.one")


def test_the_function_looks_as_before(limiter: Limiter) -> None:
    def plain(first: int, /, *rest: str, last: bool = False) -> str:
        """Do something."""
        return ""

    async def awaited() -> None: ...

    for function in (plain, awaited):
        wrapped: Any = limiter.limited("5/second", key="all")(function)
        assert inspect.signature(wrapped) == inspect.signature(function)
        assert [wrapped.__name__, wrapped.__doc__] == [function.__name__, function.__doc__]
        assert wrapped.__wrapped__ is function
        assert inspect.iscoroutinefunction(wrapped) == inspect.iscoroutinefunction(function)


def test_a_block_is_limited_in_a_thread_and_on_a_loop(limiter: Limiter) -> None:
    limited = limiter.limited("2/10s", key="github")

    def block() -> int | None:
        with limited as decision:
            return decision.remaining

    async def on_loop() -> int | None:
        async with limited as decision:
            return decision.remaining

    assert [outcomes(call, 1)[0] for call in (block, lambda: asyncio.run(on_loop()), block)] == [1, 0, 10.0]
    assert outcomes(lambda: asyncio.run(on_loop()), 1) == [10.0]
    assert not limiter.sync.peek("github", "2/10s", rule="limited")


def test_the_blocks_of_a_rule_are_one_limit_that_operators_change_whatever_objects_they_use(limiter: Limiter) -> None:
    def block() -> int | None:
        with limiter.limited("9/10s", key="mail", rule="mail") as decision:
            return decision.remaining

    assert outcomes(block, 2) == [8, 7]
    assert [(one.name, one.limit.amount) for one in limiter.limits()] == [("mail", 9)]
    assert len(limiter.engine.callers()) == 1
    changed = asyncio.run(limiter.override("mail", "3/10s", "1h"))
    assert changed.workers == 1
    assert outcomes(block, 2) == [0, 10.0]


def test_a_call_waits_for_its_turn_or_is_refused(real: Limiter) -> None:
    assert outcomes(real.limited("1/50ms", key="all", wait="20s")(one), 4) == [1] * 4
    hourly = outcomes(real.limited("1/hour", key="hourly", wait="20s")(one), 2)
    assert hourly == [1, pytest.approx(3600, abs=10)], "longer than it may wait"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_functions_are_limited_and_wait_on_both_kinds_of_loops(backend: str) -> None:
    @Limiter().limited("1/50ms", key="all", wait="20s")
    async def tick() -> int:
        return 1

    async def main() -> list[int]:
        return [await tick(), await tick()]

    assert anyio.run(main, backend=backend) == [1, 1]


async def test_a_call_overtakes_none_that_waits_though_there_is_room_for_it() -> None:
    limiter, order = Limiter(MemoryStore(clock=VirtualTime().clock)), list[str]()

    async def call(name: str, cost: int) -> None:
        async with limiter.limited("2/second", key="all", cost=cost, wait="9s"):
            order.append(name)

    calls = []
    for name, cost in (("first", 1), ("large", 2), ("small", 1)):
        calls.append(asyncio.create_task(call(name, cost)))
        await turns()
    await asyncio.gather(*calls)
    assert order == ["first", "large", "small"]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers of POSIX")
def test_a_thread_that_is_interrupted_in_its_wait_is_charged_nothing(real: Limiter) -> None:
    waiting = real.limited("1/hour", key="all", wait="2h", rule="hourly")(one)
    waiting()

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            waiting()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    while real.engine.queues.waiting:  # its event loop hears of it a moment later
        time.sleep(0.001)
    seen = real.sync.peek("all", "1/hour", rule="hourly")
    assert seen.retry_after_us <= 3_600_000_000


def test_a_refusal_carries_its_decision_also_from_process_to_process(limiter: Limiter) -> None:
    limiter.sync.ban("user:7", "1h", reason="spam")
    with pytest.raises(RateLimitExceeded) as banned:
        limiter.limited("5/second", key="user:7")(one)()
    assert banned.value.decision.reason is Reason.BANNED
    assert isinstance(banned.value, SlidegateError)
    assert not isinstance(banned.value, HTTPException), "it is no answer to the client of the application"
    limiter.sync.ban("user:8", "permanent")
    with pytest.raises(RateLimitExceeded, match=r"numbers is refused for ever: banned") as banned:
        limiter.limited("5/second", key="user:8", rule="numbers")(one)()
    assert banned.value.retry_after_s is None
    limited = limiter.limited("1/10s", key="all", rule="numbers")(one)
    limited()
    with pytest.raises(RateLimitExceeded, match=r"numbers is refused for 10 s: limited") as refused:
        limited()
    store, permits = MemoryStore(), [(Bucket("render", [Concurrency(1)]), "ann", 1)]
    assert store.hit(permits)
    assert str(RateLimitExceeded(store.hit(permits))) == "render is refused until a permit is free: limited"
    copy = pickle.loads(pickle.dumps(refused.value))
    assert (str(copy), copy.retry_after_s) == (str(refused.value), 10.0)
    assert copy.decision.states == refused.value.decision.states


def test_a_call_whose_arguments_the_key_function_does_not_take_fails_and_does_not_run() -> None:
    ran: list[str] = []
    send = Limiter().limited("5/second", key=lambda to: f"to:{to}")(lambda to, text: ran.append(to))
    with pytest.raises(TypeError, match="2 were given"):
        send("ann", "hello")
    assert ran == []
