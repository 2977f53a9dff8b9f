"""Observers hear events and outcomes in the thread where they happen; the log hears of all events."""

import logging
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from slidegate import BanPolicy, Limiter, RateLimitMiddleware
from slidegate.events import KINDS, Event, Outcome
from slidegate.limiter.observers import FAILURE_EVERY_S
from slidegate.testing import RecordingObserver

from ..asgi import call, hello
from ..conftest import details
from ..hurry import at_once


def event(number: int) -> Event:
    return Event("banned", f"number {number}", {"number": number})


def numbers(events: list[Event]) -> list[object]:
    return [event.details["number"] for event in events if event.kind == "banned"]


def emit(limiter: Limiter, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        limiter.engine.emit(event(number))


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now_s = [1000.0]
    monkeypatch.setattr("slidegate.limiter.observers.monotonic", lambda: now_s[0])
    return now_s


def test_observers_and_log_and_page_have_all_kinds(caplog: pytest.LogCaptureFixture) -> None:
    everything = RecordingObserver()
    limiter = Limiter(observers=[everything])
    with caplog.at_level(logging.INFO, logger="slidegate"):
        for kind in KINDS:
            limiter.engine.emit(Event(kind, "one of each"))
    assert everything.kinds == list(KINDS)
    assert set(KINDS) - {record.getMessage().split(": ")[1] for record in caplog.records} == {
        *("list_reloaded", "list_rejected", "config_reloaded", "config_rejected")
    }, "logged where they are made"
    assert details().keys() == set(KINDS), "docs/guides/metrics.md"


async def test_an_observer_that_was_removed_hears_nothing_and_outcomes_are_made_only_for_somebody() -> None:
    removed, outcomes, other = RecordingObserver(), list[Outcome](), RecordingObserver()
    limiter = Limiter(observers=[other])
    assert not limiter.engine.observers.requests, "it has the method of the base class alone"
    subscriptions = [limiter.observe(observer) for observer in (removed, SimpleNamespace(request=outcomes.append))]
    emit(limiter, 1)
    await call(RateLimitMiddleware(hello, limiter=limiter))
    for subscription in subscriptions * 2:
        subscription.remove()
    emit(limiter, 3, first=1)
    await call(RateLimitMiddleware(hello, limiter=limiter))
    assert (numbers(removed.events), numbers(other.events)) == ([0], [0, 1, 2, 3])
    assert (len(outcomes), limiter.engine.observers.requests) == (1, [])


def test_threads_that_emit_at_once_lose_and_repeat_nothing_and_each_is_heard_in_order_in_its_thread() -> None:
    emitted: list[tuple[int, Event]] = []
    limiter = Limiter(observers=[lambda event: emitted.append((threading.get_ident(), event))])

    def run(number: int) -> int:
        emit(limiter, 500, 1_000 * number)
        return threading.get_ident()

    for number, thread in enumerate(at_once(run, threads=6)):
        own = [event for emitted_in, event in emitted if emitted_in == thread]
        assert numbers(own) == [1_000 * number + step for step in range(500)]
    assert len(emitted) == 6 * 500


async def test_an_observer_that_raises_silences_no_other(caplog: pytest.LogCaptureFixture, now_s: list[float]) -> None:
    failing = Mock(event=Mock(side_effect=RuntimeError("no pager")), request=Mock(side_effect=RuntimeError("no span")))
    events, outcomes = list[Event](), list[Outcome]()
    limiter = Limiter(observers=[failing, events.append, SimpleNamespace(request=outcomes.append)])
    app = RateLimitMiddleware(hello, limits="2/day", limiter=limiter)
    for first, count in ((0, 50), (50, 1)):
        emit(limiter, count, first)
        assert (await call(app)).status == 200, "the decision stands"
        now_s[0] += FAILURE_EVERY_S
    assert (numbers(events), len(outcomes)) == (list(range(51)), 2)
    failures = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    begins = f"slidegate: observer {failing!r} failed"
    assert failures == [begins, f"{begins}, 50 times more since the last report"]


def test_an_observer_may_stop_its_own_thread_with_an_interrupt() -> None:
    def interrupts(event: Event) -> None:
        raise KeyboardInterrupt

    limiter = Limiter(observers=[interrupts])
    with pytest.raises(KeyboardInterrupt):
        emit(limiter, 1)


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_an_observer_may_call_the_limiter_because_no_lock_is_taken(url: str) -> None:
    kinds: list[str] = []

    def pardon(event: Event) -> None:
        kinds.append(event.kind)
        if event.kind == "banned":
            sync.unban(str(event.details["key"]))

    with Limiter.from_url(url, deadline="60s", observers=[pardon]).sync as sync:
        assert sync.strike("user:7", BanPolicy("1/minute", "1h"))
        assert kinds == ["banned", "unbanned"]
        assert not sync.banned("user:7")


async def test_the_log_has_a_line_a_second_for_a_kind_and_rule(
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
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert lines == [
        ("INFO", "slidegate: refused: 0 under a"),
        ("INFO", "slidegate: refused: 0 under b"),
        ("WARNING", "slidegate: banned: number 0"),
        ("INFO", "slidegate: refused: again under a (and 9 more since the last such line)"),
    ]


def test_refusals_make_events_only_where_somebody_hears_them(caplog: pytest.LogCaptureFixture) -> None:
    indifferent, everything = RecordingObserver(), RecordingObserver()
    indifferent.refused_events = False
    limiter = Limiter(observers=[indifferent, SimpleNamespace(request=print)])
    logging.getLogger("slidegate").setLevel(logging.NOTSET)
    assert not limiter.engine.observers.wants("refused")
    with caplog.at_level(logging.INFO, logger="slidegate"):
        assert limiter.engine.observers.wants("refused")
    subscription = limiter.observe(everything)
    assert limiter.engine.observers.wants("refused")
    for kind in ("refused", "banned"):
        limiter.engine.emit(Event(kind, "event"))
    assert (indifferent.kinds, everything.kinds) == (["banned"], ["refused", "banned"])
    subscription.remove()
    assert not limiter.engine.observers.wants("refused")
