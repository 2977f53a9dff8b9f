"""How events come to observers: in order, in a thread of their own, behind a queue with an end."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import sleep
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slidegate import ConfigurationError, Limiter, MemoryStore
from slidegate.events import Event
from slidegate.limiter import event_worker
from slidegate.limiter.events import KINDS, LOG_EVERY_S
from slidegate.testing import FakeClock, RecordingObserver

from ..hurry import at_once
from ..redis_servers import until

LONG_S = 60.0
"""No delivery takes so long, also on a machine that is busy; nobody waits as long as this but for a fault."""


def event(number: int) -> Event:
    return Event("banned", f"number {number}", {"number": number})


def numbers(events: list[Event]) -> list[object]:
    return [heard.details["number"] for heard in events if heard.kind == "banned"]


def tell(limiter: Limiter, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        limiter.engine.emit(event(number))


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "slidegate-events"]


def flushed(limiter: Limiter) -> None:
    assert limiter.engine.events.worker.flush(LONG_S)


@contextmanager
def held_up(limiter: Limiter) -> Iterator[Callable[[], None]]:
    """Have the first event hold up the thread of observers until the returned function is called."""
    begun, middleware = threading.Event(), threading.Event()

    def hold(told: Event) -> None:
        begun.set()
        middleware.wait(LONG_S)

    subscription = limiter.observe(hold, kinds=["store_reset"])
    limiter.engine.emit(Event("store_reset", "hold"))
    assert begun.wait(LONG_S)
    try:
        yield middleware.set
    finally:
        middleware.set()
        subscription.remove()


# -- who hears what, and where -----------------------------------------------------------------------------------------


def test_observers_hear_events_in_their_order_in_one_other_thread() -> None:
    first: list[tuple[object, int]] = []
    second: list[tuple[object, int]] = []
    limiter = Limiter(observers=[lambda told: first.append((told.details["number"], threading.get_ident()))])
    limiter.observe(lambda told: second.append((told.details["number"], threading.get_ident())))
    tell(limiter, 1_000)
    flushed(limiter)
    assert first == second
    assert [number for number, _ in first] == list(range(1_000))
    (thread,) = {thread for _, thread in first}
    assert thread != threading.get_ident()


def test_an_inline_observer_hears_in_the_thread_of_the_event_and_at_once() -> None:
    heard: list[int] = []

    class Asks:
        inline = True

        def __call__(self, told: Event) -> None:
            heard.append(threading.get_ident())

    limiter = Limiter(observers=[Asks()])
    limiter.observe(lambda told: heard.append(threading.get_ident()), inline=True)
    tell(limiter, 1)
    assert heard == [threading.get_ident()] * 2
    assert limiter.event_stats() == (0, 0, 0)  # nothing was queued


def test_an_observer_hears_the_kinds_that_it_names() -> None:
    bans, everything = RecordingObserver(), RecordingObserver()
    limiter = Limiter(observers=[everything])
    limiter.observe(bans, kinds=["banned", "unbanned"])
    for kind in KINDS:
        limiter.engine.emit(Event(kind, "one of each"))
    assert everything.kinds == list(KINDS)
    assert bans.kinds == ["banned", "unbanned"]


def test_events_are_given_the_unix_time_of_the_limiter() -> None:
    wall, heard, later = FakeClock(1_700_000_000_000_000), RecordingObserver(), []
    limiter = Limiter(MemoryStore(clock=FakeClock(5), wall_clock=wall), observers=[heard])
    limiter.observe(later.append)
    given = event(1)
    limiter.engine.emit(given)
    wall.advance("1s")
    tell(limiter, 1)
    flushed(limiter)
    assert [told.time_us for told in heard.events] == [1_700_000_000_000_000, 1_700_000_001_000_000]
    assert [told.time_us for told in later] == [1_700_000_000_000_000, 1_700_000_001_000_000]
    assert given.time_us == 0  # another limiter on the same store has a time of its own


def test_an_observer_that_was_removed_hears_nothing_also_not_of_events_on_their_way() -> None:
    heard: list[Event] = []
    limiter = Limiter()
    subscription = limiter.observe(heard.append)
    with held_up(limiter) as let_go:
        tell(limiter, 3)
        subscription.remove()
        subscription.remove()
        let_go()
        flushed(limiter)
    tell(limiter, 3)
    flushed(limiter)
    assert numbers(heard) == []


def test_an_observer_does_not_hear_events_from_before_it_came() -> None:
    heard: list[Event] = []
    limiter = Limiter(observers=[lambda told: None])
    with held_up(limiter) as let_go:
        tell(limiter, 3)
        limiter.observe(heard.append)
        tell(limiter, 2, first=3)
        let_go()
        flushed(limiter)
    assert numbers(heard) == [3, 4]


def test_nobody_listens_and_nothing_is_done() -> None:
    def never() -> int:
        raise AssertionError("the clock was read for nobody")

    limiter = Limiter(MemoryStore(wall_clock=never))
    before = threading.active_count()
    tell(limiter, 10)
    limiter.observe(print, kinds=["unbanned"])
    tell(limiter, 10)
    assert threading.active_count() == before
    assert limiter.event_stats() == (0, 0, 0)


# -- observers that misbehave ------------------------------------------------------------------------------------------


def test_a_slow_observer_holds_up_no_request_and_what_does_not_fit_is_counted_and_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Event] = []
    limiter = Limiter(observers=[heard.append])
    monkeypatch.setattr(limiter.engine.events.worker, "max_queued", 10)
    with caplog.at_level(logging.WARNING, logger="slidegate"), held_up(limiter) as let_go:
        tell(limiter, 25)  # would never return if it waited for the observer
        assert limiter.event_stats().dropped == 15
        assert limiter.event_stats().queued == 11
        let_go()
        flushed(limiter)
    assert numbers(heard) == list(range(10))
    assert sum(told.details["dropped"] for told in heard if told.kind == "events_dropped") == 15  # type: ignore[misc]
    assert "15 events were dropped" in caplog.text
    assert limiter.event_stats()._replace(delivered=0) == (0, 0, 15)
    tell(limiter, 5, first=100)
    flushed(limiter)
    assert numbers(heard)[-5:] == [100, 101, 102, 103, 104]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 30))
def test_every_event_is_delivered_or_counted_as_dropped_and_reported(bursts: list[int], most: int) -> None:
    heard: list[Event] = []
    limiter = Limiter(observers=[heard.append])
    limiter.engine.events.worker.max_queued = most
    total = 0
    for burst in bursts:
        tell(limiter, burst, first=total)
        total += burst
    flushed(limiter)
    reported = sum(int(str(told.details["dropped"])) for told in heard if told.kind == "events_dropped")
    assert numbers(heard) == sorted(numbers(heard))  # type: ignore[type-var]
    assert len(numbers(heard)) + reported == total
    assert reported == limiter.event_stats().dropped


def test_threads_that_tell_at_once_lose_and_repeat_nothing() -> None:
    heard: list[Event] = []
    limiter = Limiter(observers=[heard.append])
    limiter.engine.events.worker.max_queued = 10**6
    at_once(lambda number: tell(limiter, 500, 1_000 * number), threads=6)
    flushed(limiter)
    assert sorted(numbers(heard)) == sorted(1_000 * a + b for a in range(6) for b in range(500))  # type: ignore[type-var]
    for number in range(6):  # the order of each thread is kept
        mine = [told for told in numbers(heard) if int(str(told)) // 1_000 == number]
        assert mine == sorted(mine)  # type: ignore[type-var]


@pytest.mark.parametrize("error", [RuntimeError("no pager"), SystemExit(3), KeyboardInterrupt("no")], ids=repr)
def test_an_observer_that_raises_is_logged_now_and_then_and_silences_no_other(
    error: BaseException, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(told: Event) -> None:
        raise error

    heard: list[Event] = []
    now_s = [1000.0]
    monkeypatch.setattr("slidegate.limiter.events.monotonic", lambda: now_s[0])
    limiter = Limiter(observers=[fails, heard.append])
    tell(limiter, 50)
    flushed(limiter)
    assert numbers(heard) == list(range(50))
    assert [record.getMessage() for record in caplog.records] == [f"slidegate: observer {fails!r} failed"]
    now_s[0] += LOG_EVERY_S
    tell(limiter, 1)
    flushed(limiter)
    assert caplog.records[-1].getMessage().endswith("failed, 49 times more since the last report")


async def test_an_observer_may_call_the_limiter() -> None:
    clock = FakeClock()
    limiter = Limiter(MemoryStore(clock=clock))
    kinds: list[str] = []

    def ban(told: Event) -> None:
        kinds.append(told.kind)
        if told.kind == "store_reset":
            limiter.sync.ban("user:7", "1h")

    limiter.observe(ban)
    limiter.engine.emit(Event("store_reset", "ban somebody"))
    assert await asyncio.to_thread(limiter.engine.events.worker.flush, LONG_S)
    assert await asyncio.to_thread(limiter.engine.events.worker.flush, LONG_S)  # what the observer has told meanwhile
    assert kinds == ["store_reset", "banned"]
    assert await limiter.banned("user:7")


def test_an_observer_that_waits_for_its_own_queue_does_not_wait() -> None:
    answers: list[bool] = []
    limiter = Limiter()
    limiter.observe(lambda told: answers.append(limiter.engine.events.worker.flush(LONG_S)))
    tell(limiter, 1)
    flushed(limiter)
    assert answers == [False]


async def hears_async(told: Event) -> None: ...


class HearsAsync:
    async def __call__(self, told: Event) -> None: ...


@pytest.mark.parametrize("observer", [hears_async, HearsAsync()])
def test_an_async_observer_is_refused_with_the_way_to_write_it(observer: Any) -> None:
    with pytest.raises(ConfigurationError, match="run_coroutine_threadsafe"):
        Limiter(observers=[observer])
    with pytest.raises(ConfigurationError, match="coroutine function"):
        Limiter().observe(observer)


def test_an_observer_that_returns_a_coroutine_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    limiter = Limiter()
    limiter.observe(lambda told: hears_async(told), inline=True)
    tell(limiter, 1)
    assert "'coroutine', which nobody awaits" in caplog.text


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"observer": 5}, "expected functions that take an Event, not 5"),
        ({"kinds": "refused"}, r'expected a list of kinds such as \["refused", "banned"\], not \'refused\''),
        ({"kinds": 5}, "expected a list of kinds"),
        ({"kinds": ["refuse"]}, "did you mean 'refused'?"),
        ({"kinds": [7]}, "not 7"),
    ],
)
def test_a_subscription_that_cannot_work_is_refused(bad: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words.replace("?", r"\?")):
        Limiter().observe(**{"observer": print, **bad})


# -- ends: of the limiter, the thread, the process ---------------------------------------------------------------------


async def test_closing_lets_observers_hear_what_is_queued() -> None:
    heard: list[Event] = []

    def slow(told: Event) -> None:
        sleep(0.001)
        heard.append(told)

    async with Limiter(observers=[slow]) as limiter:
        tell(limiter, 50)
    assert numbers(heard) == list(range(50))


async def test_closing_waits_no_longer_than_it_may_and_says_how_many_are_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("slidegate.limiter.events.CLOSE_S", 0.05)
    limiter = Limiter(observers=[lambda told: None])
    with held_up(limiter):
        tell(limiter, 3)
        await limiter.close()
        assert "observers have not heard 4 events yet" in caplog.text


def test_a_thread_without_work_ends_and_the_next_event_starts_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_worker, "IDLE_S", 0.01)
    heard: list[Event] = []
    limiter, others = Limiter(observers=[heard.append]), threads()
    for number in range(3):
        tell(limiter, 1, first=number)
        flushed(limiter)
        until(lambda: not set(threads()) - set(others), "the thread ends")
    assert numbers(heard) == [0, 1, 2]


def test_events_wait_where_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    heard: list[Event] = []
    limiter = Limiter(observers=[heard.append])
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fails)
        tell(limiter, 2)
        assert not limiter.engine.events.worker.flush(0.01)
    assert "can't start new thread" in caplog.text
    tell(limiter, 1, first=2)
    flushed(limiter)
    assert numbers(heard) == [0, 1, 2]


def run(code: str) -> str:
    # From Python 3.12 on, a fork beside threads is warned of.
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


SCENE = """
import os, sys, threading
from slidegate import Limiter
from slidegate.events import Event
def hear(event):
    os.write(1, f"{event.message}\\n".encode())
limiter = Limiter(observers=[hear])
def tell(text):
    limiter.engine.emit(Event("banned", text))
"""


def test_the_end_of_the_interpreter_delivers_what_is_queued() -> None:
    code = SCENE + "for number in range(100): tell(str(number))"
    assert run(code).split() == list(map(str, range(100)))


def test_an_observer_that_never_returns_does_not_hold_up_the_end_of_the_interpreter() -> None:
    code = SCENE + 'limiter.observe(lambda event: threading.Event().wait())\ntell("said")\ntell("never")'
    assert run(code) == "said\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_delivers_its_own_events_and_none_of_its_parent() -> None:
    code = SCENE + (
        "begun, middleware = threading.Event(), threading.Event()\n"
        "def hold(event):\n"
        "    begun.set(); middleware.wait(60)\n"
        'limiter.observe(hold, kinds=["store_reset"])\n'
        'limiter.engine.emit(Event("store_reset", "hold"))\n'
        "begun.wait(60)\n"
        'tell("of the parent")\n'
        "child = os.fork()\n"
        "if child == 0:\n"
        '    tell("of the child")\n'
        "    os._exit(0 if limiter.engine.events.worker.flush(60) and limiter.event_stats().delivered == 1 else 9)\n"
        "_, status = os.waitpid(child, 0)\n"
        "middleware.set()\n"
        "assert limiter.engine.events.worker.flush(60)\n"
        "sys.exit(os.waitstatus_to_exitcode(status))\n"
    )
    assert sorted(run(code).splitlines()) == ["hold", "of the child", "of the parent"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forks_while_threads_tell_events_leave_children_that_deliver() -> None:
    code = SCENE + (
        "import logging\n"
        "logging.disable()\n"  # the queue may overflow
        "limiter = Limiter(observers=[lambda event: None])\n"
        "over = False\n"
        "def pour():\n"
        "    while not over:\n"
        '        tell("more")\n'
        "threads = [threading.Thread(target=pour) for _ in range(2)]\n"
        "[thread.start() for thread in threads]\n"
        "codes = []\n"
        "for _ in range(10):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        '        tell("of the child")\n'
        "        os._exit(0 if limiter.engine.events.worker.flush(60) else 9)\n"
        "    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "over = True\n"
        "[thread.join() for thread in threads]\n"
        "os.write(1, repr(codes).encode())\n"
    )
    assert run(code) == repr([0] * 10)
