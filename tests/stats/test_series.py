"""The recorder counts outcomes in batches; reads return the same as if each had been counted immediately."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from slidegate.core import MetricSummary, MetricWindow, Reason
from slidegate.core.windows.slices import Slice
from slidegate.limiter.observers import Outcome
from slidegate.stats import recorder as recorder_module
from slidegate.stats.recorder import Recorder
from slidegate.stats.series import KEPT, SLICE_US, Series
from slidegate.testing import RecordingObserver

from ..racing import THREADS, race

PASS = Outcome(True, Reason.OK, ("all",), (), "GET /", 200, "success", 0, 0, None, ())
BLOCK = PASS._replace(allowed=False, status=429, ended="refused", reason=Reason.LIMITED)
OUTCOMES: Sequence[tuple[Outcome, str]] = (
    (PASS, "pass success 2xx"),
    (PASS._replace(status=404, ended="exception"), "pass exception 4xx"),
    (PASS._replace(status=0, ended="cancelled"), "pass cancelled"),
    (PASS._replace(status=999, reason=Reason.WAITED, waited_us=5), "pass occupied_pass success other"),
    (BLOCK._replace(status=0, ended="cancelled"), "cancelled"),
    (BLOCK, "block 4xx"),
    (BLOCK._replace(status=403, reason=Reason.BANNED), "block banned 4xx"),
    (BLOCK._replace(status=0, reason=Reason.BLOCKED), "block blocked"),
    (BLOCK._replace(status=503, reason=Reason.UNAVAILABLE), "block unavailable 5xx"),
)


def whole(recorder: Recorder, now_us: int, slice_us: int = SLICE_US, slices: int | None = None) -> MetricSummary:
    """Return the sum of the last slices of one length, over all series."""
    slices = KEPT[slice_us] if slices is None else slices
    first, found = now_us // slice_us - slices + 1, Slice()
    for series in recorder.listed():
        for some in series.read(slice_us, first, slices).values():
            found.add(some)
    return found.summary(first * slice_us, slices * slice_us)


class Plain:
    """Windows in which each outcome is counted immediately."""

    def __init__(self) -> None:
        self.windows = {slice_us: MetricWindow(slices, slice_us) for slice_us, slices in KEPT.items()}

    def count(self, outcome: Outcome, events: str) -> None:
        ended_us = outcome.began_us + outcome.duration_us
        for window in self.windows.values():
            window.record(ended_us, *events.split(), rt_us=outcome.duration_us if outcome.allowed else None)

    def agrees(self, recorder: Recorder, now_us: int) -> None:
        for slice_us, window in self.windows.items():
            for slices in (KEPT[slice_us], 1, 7):
                assert whole(recorder, now_us, slice_us, slices) == window.read(now_us, slices)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(RecordingObserver().event)


def test_a_reading_is_what_it_would_be_if_each_outcome_had_been_counted_at_once(rng: random.Random) -> None:
    second = 1_000_000
    for _ in range(20):
        recorder, plain = Recorder(RecordingObserver().event), Plain()
        now, pace = rng.randrange(10**9 * second), rng.choice((1, 10, 300, 3_600)) * second
        for _ in range(rng.randrange(900)):
            now = max(now + rng.randrange(pace), 0)
            if rng.random() < 0.01:
                step = rng.choice((600, 7_200, 200_000)) * second  # the clock steps back or forward
                now = max(now + rng.randrange(-step, step), 0)
            outcome, events = rng.choice(OUTCOMES)
            duration_us = rng.randrange(min(now, 3 * pace) + 1)
            outcome = outcome._replace(began_us=now - duration_us, duration_us=duration_us)
            recorder.request(outcome)
            plain.count(outcome, events)
            if rng.random() < 0.02:
                plain.agrees(recorder, now)
        for look_us in (now, now + SLICE_US, 0, 10**18):
            plain.agrees(recorder, look_us)


def test_memory_is_fixed_after_a_day_however_much_comes() -> None:
    series = Series((("all",), "GET /"))

    def held(day: int) -> int:
        for number in range(day * 17_280, (day + 1) * 17_280):
            series.add(number, Slice({"pass": 1}))
        return len(series.take_changed(every=True))

    assert held(1) <= held(2) == held(3) <= sum(KEPT.values()) + len(KEPT)


def test_what_has_changed_is_said_once() -> None:
    series, first_number = Series((("all",), "GET /")), 1_700_000_000 // 5
    first = {(slice_us, first_number * SLICE_US // slice_us) for slice_us in KEPT}
    for number in (first_number, first_number, first_number + 1):
        series.add(number, Slice({"pass": 1}))
    assert series.take_changed() == {*first, (SLICE_US, first_number + 1)}
    assert series.take_changed() == set()
    series.add(first_number, Slice({"block": 1}))
    assert series.take_changed() == first
    for number in range(1_000):
        series.add(first_number + number, Slice({"pass": 1}))
    assert len(series.take_changed()) == 60 + 60 + 18, "what has left the windows is no change"


@pytest.mark.interpreted("a constant that the test replaces is a part of the compiled code")
def test_eight_threads_that_note_and_read_lose_nothing(monkeypatch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    monkeypatch.setattr(recorder_module, "MAX_NOTED", 3)
    rounds = 60

    def act(number: int, thread: int) -> None:
        recorder.request(PASS._replace(began_us=number, duration_us=thread))
        if (number + thread) % 5 == 0:
            assert whole(recorder, number).count("pass") > number

    race(act, rounds)
    read = whole(recorder, rounds)
    assert read.events == dict.fromkeys(("pass", "success", "2xx"), THREADS * rounds)
    assert (read.rt.count, read.rt.sum_us) == (THREADS * rounds, sum(range(THREADS)) * rounds)
