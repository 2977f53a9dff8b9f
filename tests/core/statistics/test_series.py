"""The series that counts many records at once: a reading says what it would say if each had been counted as it came."""

from __future__ import annotations

import copy
import pickle
import random
import sys
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate.core import MetricSummary, MetricWindow
from slidegate.core.statistics import series as series_module
from slidegate.core.statistics.histogram import BOUNDS_US, EXPORTED_BOUNDS_US, ResponseTimes
from slidegate.core.statistics.series import KEPT, MAX_NOTED, SLICE_US, Noted, Outcome, Series
from slidegate.core.statistics.slices import Slice

from ...racing import THREADS, race

PASS = Outcome("pass", "2xx", rt=True)
BLOCK = Outcome("block", "4xx")
OUTCOMES = (
    PASS,
    BLOCK,
    Outcome("pass", "cancelled", rt=True),
    Outcome("pass", "1xx"),
    Outcome("success", rt=True),
    Outcome(),
    *(Outcome(f"name {number}") for number in range(10)),
)


def whole(series: Series, now_us: int, slice_us: int = SLICE_US, slices: int | None = None) -> MetricSummary:
    """Return what the last slices of one length hold together."""
    slices = KEPT[slice_us] if slices is None else slices
    first, found = now_us // slice_us - slices + 1, Slice()
    for some in series.read(slice_us, first, slices).values():
        found.add(some)
    return found.summary(first * slice_us, slices * slice_us)


class Plain:
    """Windows in which each record is counted at once."""

    def __init__(self) -> None:
        self.windows = {slice_us: MetricWindow(slices, slice_us) for slice_us, slices in KEPT.items()}

    def count(self, ticks_per_us: int, noted: Noted) -> None:
        outcome, began, ended = noted
        rt_us = max(ended // ticks_per_us - began // ticks_per_us, 0)
        for window in self.windows.values():
            window.record(ended // ticks_per_us, *outcome.events, rt_us=rt_us if outcome.rt else None)

    def agrees(self, series: Series, now_us: int) -> None:
        for slice_us, window in self.windows.items():
            assert whole(series, now_us, slice_us) == window.read(now_us)
            for slices in (1, 7):
                assert whole(series, now_us, slice_us, slices) == window.read(now_us, slices)


@pytest.mark.parametrize("ticks_per_us", [1, 1_000])
def test_a_reading_is_what_it_would_be_if_each_record_had_been_counted_at_once(
    rng: random.Random, ticks_per_us: int
) -> None:
    second = 1_000_000 * ticks_per_us
    for _ in range(20):
        series, plain = Series(ticks_per_us=ticks_per_us), Plain()
        now, pace = rng.randrange(10**9 * second), rng.choice((1, 10, 300, 3_600)) * second
        for _ in range(rng.randrange(400)):
            now = max(now + rng.randrange(pace), 0)
            if rng.random() < 0.01:
                step = rng.choice((600, 7_200, 200_000)) * second  # the clock steps, back or forward
                now = max(now + rng.randrange(-step, step), 0)
            moments = [max(now - rng.randrange(-pace, 3 * pace), 0) for _ in range(2)]
            if rng.random() < 0.8:
                moments.sort()
            noted = (rng.choice(OUTCOMES), *moments)
            series.note(*noted)
            plain.count(ticks_per_us, noted)
            if rng.random() < 0.02:
                series.fold()
            if rng.random() < 0.03:
                plain.agrees(series, now // ticks_per_us)
        for look_us in (now // ticks_per_us, now // ticks_per_us + SLICE_US, 0, 10**18):
            plain.agrees(series, look_us)


def test_memory_is_fixed_after_a_day_however_much_comes() -> None:
    series = Series()

    def held(day: int) -> int:
        for number in range(day * 17_280, (day + 1) * 17_280):
            series.note(PASS, number * SLICE_US, number * SLICE_US + 100)
        return len(series.take_changed(every=True))

    assert held(1) <= held(2) == held(3) <= sum(KEPT.values()) + len(KEPT)


def test_what_has_changed_is_said_once() -> None:
    ahead_us = 1_700_000_000_000_000
    series = Series(ticks_per_us=1_000, ahead_us=ahead_us)
    for moment_us in (1_000_000, 4_999_999, 5_000_000):
        series.note(PASS, 0, moment_us * 1_000)
    first = {(slice_us, ahead_us // slice_us) for slice_us in KEPT}
    assert series.take_changed() == {*first, (SLICE_US, ahead_us // SLICE_US + 1)}
    assert series.take_changed() == set()
    assert whole(series, ahead_us + 5_000_000, slices=2).count("pass") == 3
    series.note(BLOCK, 0, 4_999_999_000)
    assert series.take_changed() == first
    assert len(series.take_changed(every=True)) == 4
    for number in range(1_000):
        series.add(ahead_us + number * SLICE_US, "pass", 1)
    assert len(series.take_changed()) == 60 + 60 + 18, "what has left the rings is no change"


def test_an_amount_is_added_to_a_figure_at_once() -> None:
    series = Series()
    series.add(7_000_000, "shadow_refused", 2)
    series.add(7_000_000, "extra_units", -3)
    assert series.read(SLICE_US, 1, 1)[1].events == {"shadow_refused": 2, "extra_units": -3}
    assert series.ever().events == {"shadow_refused": 2}


def test_a_child_of_fork_begins_anew() -> None:
    series = Series(("api",), "GET /", (5,))
    for number in range(MAX_NOTED + 3):
        series.note(PASS, number, number)
    series.forget()
    assert series.name == (("api",), "GET /", (5,))
    assert (series.noted, series.take_changed(every=True), series.ever()) == ([], set(), Slice())
    series.note(BLOCK, 0, 0)
    assert series.read(SLICE_US, 0, 1)[0].events == {"block": 1, "4xx": 1}


def test_the_exported_bounds_are_those_of_durations_of_requests_in_the_semantic_conventions() -> None:
    bounds_s = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10]
    assert [bound_us / 1_000_000 for bound_us in EXPORTED_BOUNDS_US] == bounds_s


EDGES_US = sorted({bound_us + beside for bound_us in (*BOUNDS_US, *EXPORTED_BOUNDS_US) for beside in (-1, 0, 1)})


@given(st.lists(st.lists(st.sampled_from(EDGES_US) | st.integers(0, 2 * 10**7), min_size=1, max_size=30), max_size=9))
def test_every_time_lies_in_the_first_exported_bucket_whose_bound_it_does_not_exceed(parts: list[list[int]]) -> None:
    times = ResponseTimes()
    for times_us in parts:
        times.count_all(sorted(times_us))
    every = [time_us for times_us in parts for time_us in times_us]
    bounds = (*EXPORTED_BOUNDS_US, float("inf"))
    expected = Counter(next(place for place, bound in enumerate(bounds) if time_us <= bound) for time_us in every)
    assert list(times.exported()) == [expected[place] for place in range(len(bounds))]
    assert (times.count, times.sum_us, times.min_us) == (len(every), sum(every), min(every, default=None))
    assert copy.copy(times) == pickle.loads(pickle.dumps(times)) == times


def test_a_window_forgets_and_its_totals_do_not_however_the_clock_jumps(rng: random.Random) -> None:
    series = Series(ticks_per_us=1_000)
    noted: Counter[str] = Counter()
    sum_us, now, read = 0, 10**18, [Slice()]
    for _ in range(3_000):
        now += rng.choice((10, 10_000, 10**7, 10**11, 10**14, -(10**14)))
        outcome, took_us = rng.choice((PASS, BLOCK)), rng.randrange(10_000_000)
        series.note(outcome, now - took_us * 1_000, now)
        noted.update(outcome.events)
        sum_us += took_us if outcome.rt else 0
        if rng.random() < 0.01:
            read.append(series.ever())
    read.append(series.ever())
    assert whole(series, now // 1_000).count("pass") < noted["pass"], "the clock has not jumped"
    assert (read[-1].events, read[-1].rt.sum_us, read[-1].rt.count) == (dict(noted), sum_us, noted["pass"])
    for before, after in pairwise(read):
        assert all(after.events.get(name, 0) >= before.events.get(name, 0) for name in noted)
        assert all(late >= early for early, late in zip(before.rt.exported(), after.rt.exported(), strict=True))


def test_the_times_of_each_fold_are_told_once(rng: random.Random) -> None:
    series, heard, expected = Series(), list[int](), list[int]()
    series.timed = heard.extend
    for _ in range(1_000):
        took_us = rng.randrange(1_000)
        series.note(PASS, 10_000 - took_us, 10_000)
        expected.append(took_us)
        series.note(BLOCK, 0, 10_000)
    series.ever()
    assert sorted(heard) == sorted(expected)
    series.ever()
    assert len(heard) == len(expected)


def test_a_buffer_is_bounded_in_records_and_in_bytes() -> None:
    series = Series(ticks_per_us=1_000)
    most = weight = 0
    for number in range(3 * MAX_NOTED):
        series.note(PASS, *(10**18 + 1_000 * number + offset for offset in range(2)))
        most = max(most, len(series.noted))
        weight = max(weight, sys.getsizeof(series.noted) + sum(map(weight_of, series.noted)))
    assert most == MAX_NOTED - 1
    assert weight < 50_000
    assert whole(series, 10**15).count("pass") == 3 * MAX_NOTED


def weight_of(noted: Noted) -> int:
    return sys.getsizeof(noted) + sum(map(sys.getsizeof, noted[1:]))


@pytest.mark.interpreted("a constant that the test replaces is a part of the compiled code")
def test_eight_threads_that_note_and_read_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_module, "MAX_NOTED", 3)
    series, rounds = Series(), 60
    own = [Outcome("pass", f"t{thread}", rt=True) for thread in range(THREADS)]

    def act(number: int, thread: int) -> None:
        series.note(own[thread], number, number + thread)
        if (number + thread) % 5 == 0:
            assert whole(series, number).count(f"t{thread}") == number + 1
        assert len(series.noted) < series_module.MAX_NOTED + THREADS

    race(act, rounds)
    read = whole(series, rounds)
    assert read.events == {"pass": THREADS * rounds, **{f"t{thread}": rounds for thread in range(THREADS)}}
    assert (read.rt.count, read.rt.sum_us) == (THREADS * rounds, sum(range(THREADS)) * rounds)
