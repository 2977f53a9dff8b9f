"""Observers hear events and outcomes where they happen, or in a thread of their own; the log hears of all events."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import FrozenInstanceError
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slidegate import ConfigurationError, Limiter, MemoryStore
from slidegate.events import Event, Observer, Outcome, Subscription
from slidegate.limiter import observers as module
from slidegate.limiter.observers import FAILURE_EVERY_S, KINDS, LOGGED_WHERE_MADE, ThreadedSubscription
from slidegate.stores.lmdb.store import LmdbStore
from slidegate.testing import FakeClock, RecordingObserver

from ..events_page import DETAILS
from ..hurry import at_once
from ..redis_servers import BOUND_S, until


def event(number: int) -> Event:
    return Event("banned", f"number {number}", {"number": number})


def numbers(events: list[Event]) -> list[object]:
    return [heard.details["number"] for heard in events if heard.kind == "banned"]


def emit(limiter: Limiter, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        limiter.engine.emit(event(number))


def flushed(subscription: Subscription) -> None:
    assert isinstance(subscription, ThreadedSubscription)
    assert subscription.flush(BOUND_S)


class Slow:
    """An observer whose first event holds it up until `go` is called."""

    def __init__(self) -> None:
        self.heard: list[Event] = []
        self.begun, self._gate = threading.Event(), threading.Event()
        self.go = self._gate.set

    def event(self, told: Event) -> None:
        self.begun.set()
        self._gate.wait(BOUND_S)
        self.heard.append(told)


@contextmanager
def held_up(limiter: Limiter, most: int = module.MAX_QUEUED) -> Iterator[tuple[Slow, Subscription]]:
    slow = Slow()
    subscription = limiter.observe(slow, thread=True)
    subscription.max_queued = most
    limiter.engine.emit(Event("store_reset", "hold"))
    assert slow.begun.wait(BOUND_S)
    try:
        yield slow, subscription
    finally:
        slow.go()


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now_s = [1000.0]
    monkeypatch.setattr(module, "monotonic", lambda: now_s[0])
    return now_s


def test_observers_are_called_in_the_thread_where_an_event_happens() -> None:
    heard: list[int] = []
    limiter = Limiter(observers=[lambda told: heard.append(threading.get_ident())])
    limiter.observe(lambda told: heard.append(threading.get_ident()))
    emit(limiter, 1)
    assert heard == [threading.get_ident()] * 2


def test_an_observer_hears_the_kinds_that_it_names_and_page_and_log_have_all(caplog: pytest.LogCaptureFixture) -> None:
    bans, everything = RecordingObserver(), RecordingObserver()
    limiter = Limiter(observers=[everything])
    limiter.observe(bans, kinds=["banned", "unbanned"])
    with caplog.at_level(logging.INFO, logger="slidegate"):
        for kind in KINDS:
            limiter.engine.emit(Event(kind, "one of each"))
    assert everything.kinds == list(KINDS)
    assert bans.kinds == ["banned", "unbanned"]
    assert {vars(record)["kind"] for record in caplog.records} == set(KINDS) - LOGGED_WHERE_MADE
    assert DETAILS.keys() == set(KINDS), "docs/guides/metrics.md"


def test_events_are_given_the_unix_time_of_the_limiter() -> None:
    wall, heard = FakeClock(1_700_000_000_000_000), RecordingObserver()
    limiter = Limiter(MemoryStore(clock=FakeClock(5), wall_clock=wall), observers=[heard])
    given = event(1)
    limiter.engine.emit(given)
    wall.advance("1s")
    emit(limiter, 1)
    assert [told.time_us for told in heard.events] == [1_700_000_000_000_000, 1_700_000_001_000_000]
    assert given.time_us == 0  # another limiter on the same store has a time of its own
    with pytest.raises(FrozenInstanceError):
        given.time_us = 1  # type: ignore[misc]


def test_an_observer_that_was_removed_hears_nothing_also_not_of_events_on_their_way() -> None:
    limiter = Limiter()
    with held_up(limiter) as (slow, subscription):
        emit(limiter, 3)
        subscription.remove()
        subscription.remove()
        slow.go()
        flushed(subscription)
    emit(limiter, 3)
    assert numbers(slow.heard) == []


class Requests(Observer):
    def __init__(self) -> None:
        self.heard: list[Outcome] = []

    def request(self, outcome: Outcome, /) -> None:
        self.heard.append(outcome)


async def questions(limiter: Limiter) -> None:
    heard = Requests()
    limiter.observe(heard)
    answers = [await limiter.hit("a", "3/minute", rule="some") for _ in range(5)] + [await limiter.hit_all(())]
    assert [outcome.decisions[0] for outcome in heard.heard] == answers
    assert [(outcome.allowed, outcome.ended) for outcome in heard.heard] == [
        (answer.allowed, "success" if answer else "refused") for answer in answers
    ]
    assert {(outcome.route, outcome.status) for outcome in heard.heard} == {(None, 0)}
    assert [outcome.rules for outcome in heard.heard] == [("some",)] * 5 + [()]
    async with limiter.limited("1/day", key="b", rule="block"):
        pass
    assert heard.heard[-1].rules == ("block",)


async def test_questions_without_http_have_outcomes(tmp_path: Path) -> None:
    await questions(Limiter(MemoryStore(clock=FakeClock())))
    async with Limiter(LmdbStore(tmp_path), deadline="60s") as limiter:
        await questions(limiter)


async def test_outcomes_are_made_only_while_somebody_asks_for_them() -> None:
    limiter, heard = Limiter(), Requests()
    assert not limiter.engine.observers.requests
    subscription = limiter.observe(heard)
    await limiter.hit("a", "1/day")
    subscription.remove()
    assert not limiter.engine.observers.requests
    await limiter.hit("a", "1/day")
    assert len(heard.heard) == 1
    limiter.observe(RecordingObserver())
    assert not limiter.engine.observers.requests, "it has the method of the base class alone"


def test_a_slow_observer_holds_up_no_request_and_what_does_not_fit_is_counted_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    other, bans = RecordingObserver(), RecordingObserver()
    limiter = Limiter(observers=[other])
    limiter.observe(bans, kinds=["banned"])
    with held_up(limiter, most=10) as (slow, subscription):
        emit(limiter, 25)  # would never return if it waited for the observer
        assert subscription.dropped == 15
        slow.go()
        flushed(subscription)
    assert numbers(slow.heard) == list(range(10))
    for heard in (slow.heard, other.events):
        assert sum(told.details["dropped"] for told in heard if told.kind == "events_dropped") == 15  # type: ignore[misc]
    assert {*bans.kinds} == {"banned"}
    assert "15 events were dropped" in caplog.text


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 30))
def test_every_event_is_delivered_or_counted_as_dropped_and_reported(bursts: list[int], most: int) -> None:
    heard: list[Event] = []
    limiter = Limiter()
    subscription = limiter.observe(heard.append, thread=True)
    subscription.max_queued = most
    total = 0
    for burst in bursts:
        emit(limiter, burst, first=total)
        total += burst
    flushed(subscription)
    reported = sum(int(str(told.details["dropped"])) for told in heard if told.kind == "events_dropped")
    assert numbers(heard) == sorted(numbers(heard))  # type: ignore[type-var]
    assert len(numbers(heard)) + reported == total
    assert reported == subscription.dropped


def test_threads_that_emit_at_once_lose_and_repeat_nothing_and_one_other_thread_hears_them_in_order() -> None:
    heard: list[Event] = []
    threads = set[int]()
    limiter = Limiter()
    subscription = limiter.observe(lambda told: (heard.append(told), threads.add(threading.get_ident())), thread=True)
    subscription.max_queued = 10**6
    at_once(lambda number: emit(limiter, 500, 1_000 * number), threads=6)
    flushed(subscription)
    told = [int(str(number)) for number in numbers(heard)]
    for number in range(6):
        assert [each for each in told if each // 1_000 == number] == [1_000 * number + step for step in range(500)]
    assert len(told) == 6 * 500
    assert len(threads - {threading.get_ident()}) == 1


@pytest.mark.parametrize("thread", [False, True])
def test_an_observer_that_raises_is_logged_now_and_then_and_silences_no_other(
    thread: bool, caplog: pytest.LogCaptureFixture, now_s: list[float]
) -> None:
    def fails(told: Event) -> None:
        raise SystemExit(3) if thread else RuntimeError("no pager")

    heard: list[Event] = []
    limiter = Limiter()
    subscription = limiter.observe(fails, kinds=["banned"], thread=thread)
    limiter.observe(heard.append)
    for first, count in ((0, 50), (50, 1)):
        emit(limiter, count, first)
        if thread:
            flushed(subscription)
        now_s[0] += FAILURE_EVERY_S
    assert numbers(heard) == list(range(51))
    failures = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    begins = f"slidegate: observer {fails!r} failed"
    assert failures == [begins, f"{begins}, 49 times more since the last report"]


def test_an_observer_may_stop_its_own_thread_with_an_interrupt() -> None:
    def interrupts(told: Event) -> None:
        raise KeyboardInterrupt

    limiter = Limiter(observers=[interrupts])
    with pytest.raises(KeyboardInterrupt):
        emit(limiter, 1)


async def test_an_observer_may_call_the_limiter() -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    kinds: list[str] = []

    def ban(told: Event) -> None:
        kinds.append(told.kind)
        if told.kind == "store_reset":
            limiter.sync.ban("user:7", "1h")

    subscription = limiter.observe(ban, thread=True)
    limiter.engine.emit(Event("store_reset", "ban somebody"))
    await asyncio.to_thread(flushed, subscription)
    await asyncio.to_thread(flushed, subscription)  # what the observer has caused meanwhile
    assert kinds == ["store_reset", "banned"]
    assert await limiter.banned("user:7")


def test_an_observer_that_waits_for_its_own_queue_does_not_wait() -> None:
    answers: list[bool] = []
    limiter = Limiter()
    own: Any = limiter.observe(lambda told: answers.append(own.flush(BOUND_S)), thread=True)
    emit(limiter, 1)
    assert own.flush(BOUND_S)
    assert answers == [False]


async def hears_async(told: Event) -> None: ...


class HearsAsync:
    async def __call__(self, told: Event) -> None: ...


class RequestsAsync:
    async def request(self, outcome: Outcome) -> None: ...


def test_an_observer_that_returns_a_coroutine_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    limiter = Limiter()
    limiter.observe(lambda told: hears_async(told))
    emit(limiter, 1)
    assert "'coroutine', never awaited" in caplog.text


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"observer": 5}, "expected functions of an event, or objects with a method .* not 5"),
        ({"observer": Observer()}, "expected functions of an event"),
        ({"observer": RecordingObserver}, "expected functions of an event"),
        ({"observer": lambda: None}, "event"),
        ({"observer": hears_async}, "coroutine function.*run_coroutine_threadsafe"),
        ({"observer": HearsAsync()}, "coroutine function"),
        ({"observer": RequestsAsync()}, "coroutine function"),
        ({"thread": "yes"}, "thread: expected True or False"),
        ({"kinds": "refused"}, r'expected a list of kinds such as \["refused", "banned"\], not \'refused\''),
        ({"kinds": 5}, "expected a list of kinds"),
        ({"kinds": ["refuse"]}, r"did you mean 'refused'\?"),
        ({"kinds": [7]}, "not 7"),
    ],
)
def test_a_subscription_that_cannot_work_is_refused(bad: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Limiter().observe(**{"observer": print, **bad})


async def test_the_log_has_a_line_a_second_for_each_kind_and_rule_and_says_how_many_were_left_out(
    now_s: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    limiter = Limiter()
    with caplog.at_level(logging.INFO, logger="slidegate"):
        for number in range(10):
            for rule in ("a", "b"):
                limiter.engine.emit(Event("refused", f"{number} under {rule}", {"rule": rule}))
            limiter.engine.emit(event(number))
        now_s[0] += 1
        limiter.engine.emit(Event("refused", "again under a", {"rule": "a"}))
        await limiter.close()
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert lines == [
        ("INFO", "slidegate: refused: 0 under a"),
        ("INFO", "slidegate: refused: 0 under b"),
        ("WARNING", "slidegate: banned: number 0"),
        ("INFO", "slidegate: refused: again under a (and 9 more since the last such line)"),
        ("INFO", "slidegate: refused: 9 more under b since the last such line"),
        ("WARNING", "slidegate: banned: 9 more since the last such line"),
    ]


def test_a_record_has_kind_and_details_as_fields_that_anybody_can_write(caplog: pytest.LogCaptureFixture) -> None:
    plain: dict[str, Any] = {"ends": None, "level": 2, "share": 0.5}
    Limiter().engine.emit(Event("banned", "x\ny", {"key": "a\nb" * 500, "message": object(), **plain}))
    (record,) = caplog.records
    assert (record.getMessage(), vars(record)["kind"]) == (r"slidegate: banned: x\ny", "banned")
    details = vars(record)["details"]
    assert {name: details[name] for name in plain} == plain
    assert isinstance(details["message"], str)
    assert "\n" not in details["key"]
    assert len(details["key"]) <= 256


def test_refusals_make_events_only_where_somebody_hears_them(caplog: pytest.LogCaptureFixture) -> None:
    limiter = Limiter()
    logging.getLogger("slidegate").setLevel(logging.NOTSET)
    assert not limiter.engine.observers.wants_refusals()
    with caplog.at_level(logging.INFO, logger="slidegate"):
        assert limiter.engine.observers.wants_refusals()
    subscription = limiter.observe(print, kinds=["refused"])
    assert limiter.engine.observers.wants_refusals()
    subscription.remove()
    assert not limiter.engine.observers.wants_refusals()


async def test_closing_lets_observers_hear_what_is_queued() -> None:
    heard: list[Event] = []

    def slow(told: Event) -> None:
        sleep(0.001)
        heard.append(told)

    async with Limiter() as limiter:
        limiter.observe(slow, thread=True)
        emit(limiter, 50)
    assert numbers(heard) == list(range(50))


async def test_closing_waits_no_longer_than_it_may_and_says_who_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.05)
    limiter = Limiter()
    with held_up(limiter):
        emit(limiter, 3)
        await limiter.close()
        assert "1 observers still have queued events" in caplog.text


def test_a_thread_without_work_ends_and_the_next_event_starts_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.01)
    heard: list[Event] = []
    limiter = Limiter()

    def threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "slidegate-observer"}

    others = threads()
    subscription = limiter.observe(heard.append, thread=True)
    for number in range(3):
        emit(limiter, 1, first=number)
        flushed(subscription)
        until(lambda: not threads() - others, "the thread ends")
    assert numbers(heard) == [0, 1, 2]


def test_events_wait_where_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    heard: list[Event] = []
    limiter = Limiter()
    subscription = limiter.observe(heard.append, thread=True)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fails)
        emit(limiter, 2)
        assert not subscription.flush(0.01)
    assert "can't start new thread" in caplog.text
    emit(limiter, 1, first=2)
    flushed(subscription)
    assert numbers(heard) == [0, 1, 2]


def run(code: str) -> str:
    # From Python 3.12 on, a fork beside threads is warned of.
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


SCENE = """
import logging, os, sys, threading
from slidegate import Limiter
from slidegate.events import Event
logging.disable()
def hear(event):
    if event.kind == "banned" and event.message != "more":
        os.write(1, f"{event.message}\\n".encode())
limiter, go = Limiter(), threading.Event()
queues = [limiter.observe(hear, thread=True)]
def emit(text):
    limiter.engine.emit(Event("banned", text))
def fork():
    child = os.fork()
    if not child:
        go.set()
        emit("of the child")
        os._exit(0 if all(queue.flush(60) for queue in queues) else 9)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_the_end_of_the_interpreter_delivers_what_is_queued_and_waits_for_no_observer_that_never_returns() -> None:
    code = """
limiter.observe(lambda event: threading.Event().wait(), thread=True)
for number in range(100):
    emit(str(number))
"""
    assert run(SCENE + code).split() == list(map(str, range(100)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_delivers_its_own_events_and_none_of_its_parent() -> None:
    code = """
begun = threading.Event()
def hold(event):
    begun.set()
    go.wait(60)
    hear(event)
queues.append(limiter.observe(hold, thread=True))
emit("of the parent")
begun.wait(60)
fork()
go.set()
assert all(queue.flush(60) for queue in queues)
"""
    assert sorted(run(SCENE + code).splitlines()) == ["of the child"] * 2 + ["of the parent"] * 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forks_while_threads_emit_events_leave_children_that_deliver() -> None:
    code = """
def pour():
    while not go.is_set():
        emit("more")
for _ in range(2):
    threading.Thread(target=pour).start()
for _ in range(10):
    fork()
go.set()
"""
    assert run(SCENE + code) == "of the child\n" * 10
