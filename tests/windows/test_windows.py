"""The windows: against plain lists at every moment, over threads, and in how much memory."""

import math
import re
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Generic, TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slidegate.core.ring import MAX_UNITS
from slidegate.windows import CounterWindow, HotKeys, MetricSummary, MetricWindow, ResponseTimes, RollingTotals
from slidegate.windows.histogram import BOUNDS_US, LONGEST_US, RELATIVE_ERROR, SHORTEST_US

from ..hurry import THREADS, race

T = TypeVar("T")

SPANS = st.one_of(st.floats(0, 1), st.just(1.0), st.floats(0, 24), st.floats(-3, 0), st.floats(-24, 0))
"""How far a clock goes on, or steps back, between two events, in slices: often beyond all that are kept."""


class Plain(Generic[T]):
    """Everything that was accepted, with the number of its slice; `kept` slices are held."""

    def __init__(self, slice_us: int, kept: int) -> None:
        self.slice_us = slice_us
        self.kept = kept
        self.newest: int | None = None
        self.dropped = 0
        self.held: list[tuple[int, T]] = []

    def add(self, now_us: int, what: T) -> bool:
        number = now_us // self.slice_us
        if self.newest is not None and number <= self.newest - self.kept:
            self.dropped += 1
            return False
        self.newest = number if self.newest is None else max(number, self.newest)
        self.held.append((number, what))
        return True

    def within(self, first: int, end: int) -> list[T]:
        """Return what lies in the slices from `first` to `end`, without those that were let go of."""
        oldest = first if self.newest is None else max(first, self.newest - self.kept + 1)
        return [what for number, what in self.held if oldest <= number < end]


@given(
    st.integers(1, 12),
    st.integers(1, 100),
    st.lists(st.tuples(st.integers(-300, 300) | st.just(10**15), st.integers(0, 9)), max_size=40),
    st.integers(0, 2_000),
)
def test_the_three_readings_are_those_of_a_plain_list(
    slices: int, slice_us: int, moves: list[tuple[int, int]], later_us: int
) -> None:
    """Where the clock steps back, what lies ahead moves into the slice of now, and nothing is revived."""
    window, now_us, made = CounterWindow(slices, slice_us), 10**6, list[tuple[int, int]]()
    for span_us, units in moves:
        now_us += span_us
        window.add(now_us, units)
        if units:
            number = now_us // slice_us
            made = [(min(at, number), some) for at, some in made if at >= number - slices] + [(number, units)]
    assert window.slices() == window.slices(max(made, default=(0, 0))[0] * slice_us)
    for look_us in (now_us, now_us + later_us):
        number = max(look_us // slice_us, max(made, default=(0, 0))[0])
        by_slice = [sum(units for at, units in made if at == number - back) for back in range(slices, -1, -1)]
        starts_us = [(number - back) * slice_us for back in range(slices, -1, -1)]
        assert window.slices(look_us) == list(zip(starts_us, by_slice, strict=True))
        assert window.total(look_us) == sum(by_slice)
        assert window.classic(look_us) == sum(by_slice[1:])
        assert window.completed(look_us) == sum(by_slice[:-1])


def test_a_window_that_would_overflow_is_an_error_and_stays_as_it_is() -> None:
    window = CounterWindow(slices=2, slice_us=100)
    window.add(0, MAX_UNITS - 1)
    with pytest.raises(ValueError, match="a window counts at most 4294967295 units, so there is no room for 2 more"):
        window.add(150, 2)
    window.add(150, 1)
    assert (window.total(150), window.classic(250)) == (MAX_UNITS, 1)
    window.add(300, MAX_UNITS - 1)  # the first units have left


AMOUNTS = st.integers(-100, 100) | st.integers(-(2**80), 2**80)


@given(
    st.integers(1, 50),
    st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True),
    st.integers(0, 10**6),
    st.lists(st.tuples(SPANS, AMOUNTS), max_size=30),
)
@example(2, [10], 0, [(0.0, 1), (0.5, 1), (0.5, 1)])
def test_totals_are_those_of_a_plain_list_at_every_moment(
    slice_us: int, windows: list[int], now_us: int, moves: list[tuple[float, int]]
) -> None:
    windows_us = [slices * slice_us for slices in windows]
    totals, plain = RollingTotals(slice_us, windows_us), Plain[int](slice_us, max(windows) + 1)
    assert totals.windows_us == tuple(windows_us)

    def sums(end: int) -> dict[int, int]:
        return {slices * slice_us: sum(plain.within(end - slices, end)) for slices in windows}

    for span, amount in moves:
        now_us = max(now_us + round(span * slice_us), 0)
        totals.add(now_us, amount)
        plain.add(now_us, amount)
        with pytest.raises(ValueError, match="whole number"):
            totals.add(now_us, amount + 0.5)
        assert totals.dropped == plain.dropped
        for look_us in (now_us, now_us + slice_us, max(now_us - 2 * slice_us, 0), now_us + 10**9):
            number = look_us // slice_us
            assert totals.completed(look_us) == sums(number)
            assert totals.running(look_us) == sums(number + 1)


def test_eight_threads_that_meet_at_the_change_of_a_slice_lose_nothing_of_totals() -> None:
    totals, rounds = RollingTotals(10, [1_000]), 100
    race(lambda number, thread: totals.add(number * totals.slice_us, thread - 2), rounds)
    end_us = (rounds - 1) * totals.slice_us
    assert totals.running(end_us) == {1_000: rounds * sum(thread - 2 for thread in range(THREADS))}
    assert totals.completed(end_us + totals.slice_us) == totals.running(end_us)


NAMES = ("pass", "block", "exception", "success", "occupied_pass", "other", "2xx", "4xx", "5xx", "x" * 65)
TIMES_US = st.one_of(st.integers(0, 50), st.integers(0, 2 * LONGEST_US))
MOVES = st.lists(st.tuples(SPANS, st.lists(st.sampled_from(NAMES), max_size=3), st.none() | TIMES_US), max_size=30)
Moves = list[tuple[float, list[str], int | None]]
Events = Plain[tuple[list[str], int | None]]


def counted_as(event: str, names: list[str], max_names: int) -> str:
    """Return the name that an event is counted under, and note it if it gets a count of its own."""
    if event not in (*NAMES[:6], *names):
        if len(names) == max_names or len(event) > 64:
            return "other"
        names.append(event)
    return event


def agrees(summary: MetricSummary, plain: Events, first: int, slices: int) -> None:
    """See that a summary is what the list gives for `slices` slices from `first` on."""
    here, span_us = plain.within(first, first + slices), slices * plain.slice_us
    events = Counter(event for names, _ in here for event in names)
    assert (summary.start_us, summary.span_us) == (first * plain.slice_us, span_us)
    assert summary.events == events
    assert summary.qps("block") == pytest.approx(events["block"] * 1_000_000 / span_us)
    seen, times_us = summary.rt, sorted(rt_us for _, rt_us in here if rt_us is not None)
    assert (seen.count, seen.sum_us, seen.min_us) == (len(times_us), sum(times_us), min(times_us, default=None))
    assert seen.average() == (sum(times_us) / len(times_us) if times_us else None)
    for share in (0, 0.5, 0.95, 1):
        exact_us = times_us[max(math.ceil(share * len(times_us)), 1) - 1] if times_us else None
        assert is_close(seen.quantile(share), exact_us)


def is_close(read_us: float | None, exact_us: int | None) -> bool:
    if exact_us is None or read_us is None:
        return exact_us is read_us
    if exact_us <= SHORTEST_US:
        return read_us == SHORTEST_US / 2
    if exact_us > LONGEST_US:
        return read_us == LONGEST_US
    return abs(read_us - exact_us) <= RELATIVE_ERROR * exact_us * (1 + 1e-9)


@example(2, 10, 0, 30, [(0.0, ["pass"], None), (-1.0, ["pass"], None), (-1.0, ["pass"], None)])
@given(st.integers(1, 6), st.integers(1, 100), st.integers(0, 2), st.integers(0, 10**6), MOVES)
def test_a_window_is_a_plain_list_of_events_at_every_moment(
    slices: int, slice_us: int, max_names: int, now_us: int, moves: Moves
) -> None:
    window, plain, names = MetricWindow(slices, slice_us, max_names=max_names), Events(slice_us, slices), list[str]()
    for span, events, rt_us in moves:
        now_us = max(now_us + round(span * slice_us), 0)
        window.record(now_us, *events, rt_us=rt_us)
        with pytest.raises(ValueError, match="rt_us"):
            window.record(now_us, *events, rt_us=-1)
        counted = list[str]()
        if plain.add(now_us, (counted, rt_us)):
            counted += [counted_as(event, names, max_names) for event in events]
        assert window.dropped == plain.dropped
        for look_us in (now_us, now_us + slice_us, max(now_us - slice_us, 0), now_us + 10**9):
            first, whole = look_us // slice_us - slices + 1, window.read(look_us)
            agrees(whole, plain, first, slices)
            assert (window.count("pass", look_us), window.qps(look_us)) == (whole.count("pass"), whole.qps("pass"))
            assert window.qps(look_us, "2xx") == whole.qps("2xx")
            assert (window.average_rt(look_us), window.min_rt(look_us)) == (whole.rt.average(), whole.rt.min_us)
            assert window.quantile(0.5, look_us) == whole.rt.quantile(0.5)
            agrees(window.read(look_us, slices=1), plain, first + slices - 1, 1)
            for number, summary in enumerate(window.slices(look_us), first):
                agrees(summary, plain, number, 1)
            assert len(window.slices(look_us)) == slices


@given(st.integers(1, 6), st.integers(1, 100), MOVES, st.lists(st.integers(0, 2), min_size=30, max_size=30))
def test_merged_windows_are_one_that_saw_all(slices: int, slice_us: int, moves: Moves, chosen: list[int]) -> None:
    one, *parts = [MetricWindow(slices, slice_us) for _ in range(4)]
    now_us = 0
    for (span, events, rt_us), part in zip(moves, chosen, strict=False):
        now_us += round(abs(span) * slice_us)
        for window in (one, parts[part]):
            window.record(now_us, *events, rt_us=rt_us)
        assert MetricSummary.merged([part.read(now_us) for part in parts]) == one.read(now_us)


def test_every_time_reads_within_its_error() -> None:
    edges = {edge + step for edge in BOUNDS_US for step in (-1, 0, 1)}
    for time_us in {*range(2_000), *edges, 10**12}:
        times = ResponseTimes()
        times.count_all([time_us])
        assert is_close(times.quantile(0.5), time_us), time_us


def test_eight_threads_that_meet_at_the_change_of_a_slice_lose_nothing_of_metrics() -> None:
    window, rounds = MetricWindow(60, 1_000), 60
    race(lambda number, thread: window.record(number * window.slice_us, "pass", f"t{thread}", rt_us=thread), rounds)
    read = window.read((rounds - 1) * window.slice_us)
    assert read.events == {"pass": THREADS * rounds, **{f"t{thread}": rounds for thread in range(THREADS)}}
    assert (read.rt.count, read.rt.sum_us) == (THREADS * rounds, sum(range(THREADS)) * rounds)
    assert window.dropped == 0


KEYS = st.sampled_from(("ab", "abcdefgh", "aaaabcdefghijklmnop"))
"""Few keys and many."""
HITS = KEYS.flatmap(lambda keys: st.lists(st.tuples(SPANS, st.sampled_from(keys), st.integers(1, 9)), max_size=120))


@example(1, 2, 1, 1, [(0.0, "before", 9), (1.0, "0", 1), *[(0.0, f"{hit // 10}", 1) for hit in range(100)]], 1)
@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 4), st.integers(1, 20), HITS, st.integers(1, 30))
def test_hot_keys_are_those_over_the_threshold_within_the_error(
    capacity: int, threshold: int, slices: int, slice_us: int, made: list[tuple[float, str, int]], most: int
) -> None:
    keys = HotKeys(capacity, threshold, timedelta(microseconds=slices * slice_us), slices=slices)
    exact, now_us, hot, reported = Plain[str](slice_us, slices + 1), 1_000, set[str](), set[str]()
    for span, key, hits in made:
        now_us = max(now_us + round(span * slice_us), 0)
        dropped, looked_at = exact.dropped, {key, *hot}
        before = keys.hot(max(now_us, (exact.newest or 0) * slice_us))
        became_hot = keys.hit(key, now_us, hits)
        for _ in range(hits):
            exact.add(now_us, key)
        assert keys.dropped == exact.dropped
        newest = exact.newest or 0
        recent, look_us = Counter(exact.within(0, newest + 1)), newest * slice_us
        error = keys.error(look_us)
        assert error <= recent.total() / (capacity + 1)
        slack, found, top = min(error, threshold // 2), keys.hot(look_us), keys.top(look_us, most)
        if exact.dropped == dropped:
            assert found.keys() >= {name for name in looked_at if recent[name] > threshold + error - slack}
        for name, least in found.items():
            assert threshold - slack < least <= recent[name] <= least + error
        reported.update([key] if became_hot else ())
        assert found.keys() <= reported, "a hot key was reported when it became hot"
        assert not became_hot or recent[key] > threshold - slack
        assert top == sorted(top, key=lambda entry: (-entry[1], entry[0]))
        for name, least in top:
            assert 0 < least <= recent[name] <= least + error
        if not error:
            assert top == sorted(recent.items(), key=lambda entry: (-entry[1], entry[0]))[:most]
            is_new = exact.dropped == dropped and key in found and key not in before
            assert became_hot is is_new, "also when it had cooled"
        assert len(keys._hot) <= capacity * (slices + 1), "room is made before it runs out"
        assert (keys.hot(look_us + 10**9), keys.hot(look_us)) == ({}, found), "reading changes nothing"
        hot = set(found)


def test_eight_threads_that_meet_at_the_change_of_a_slice_lose_nothing_of_hot_keys() -> None:
    keys, rounds, reported = HotKeys(10, 10, "100ms", slices=50), 50, list[str]()

    def hit(number: int, thread: int) -> None:
        if keys.hit(f"t{thread % 4}", number * keys.slice_us):
            reported.append(f"t{thread % 4}")

    race(hit, rounds)
    assert keys.hot((rounds - 1) * keys.slice_us) == {f"t{thread}": 2 * rounds for thread in range(THREADS // 2)}
    assert sorted(reported) == [f"t{thread}" for thread in range(4)], "each is reported to one of them"


Count = Callable[[Any, int], object]
KINDS: dict[str, tuple[Callable[[], Any], Count]] = {
    "metrics": (lambda: MetricWindow(4, 100), lambda window, n: window.record(n * 37, f"name {n:08}", rt_us=n)),
    "totals": (lambda: RollingTotals(10, [1_000]), lambda totals, n: totals.add(n * 3, n)),
    "hot keys": (lambda: HotKeys(100, 10, "5s"), lambda keys, n: keys.hit(f"one-hit {n:08}", n * 100)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_memory_does_not_grow(kind: str) -> None:
    if sys.gettrace() is not None:
        pytest.skip("what measures coverage takes memory as well")
    make, count = KINDS[kind]

    def peak_bytes(times: int) -> int:
        tracemalloc.start()
        counted = make()
        for number in range(times):
            count(counted, number)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    peak_bytes(10)
    # Threads of other tests may take some memory meanwhile. Eight bytes a call would be twice as much.
    assert peak_bytes(20_000) < peak_bytes(4_000) + 64_000


METRICS, TOTALS = MetricWindow(2, 100), RollingTotals(10, [20])
REFUSED: dict[str, Callable[[], object]] = {
    "units: expected 0 or more, not -1": lambda: CounterWindow(slices=3, slice_us=100).add(0, -1),
    "rt_us: expected 0 microseconds or more, not -1": lambda: METRICS.record(0, "pass", rt_us=-1),
    "amount: expected a whole number, for example 1999 cents, not True": lambda: TOTALS.add(0, True),
    "quantile: expected a share from 0 to 1, for example 0.95, not 95": lambda: METRICS.quantile(95, 0),
    "slices: expected a whole number from 1 to 2, no more than the window has, not 0": lambda: METRICS.read(0, 0),
    "slices: expected a whole number from 1 to 2, no more than the window has, not 3": lambda: METRICS.read(0, 3),
    "merged: expected summaries of one span, not of []": lambda: MetricSummary.merged([]),
    "merged: expected summaries of one span, not of [(0, 100), (100, 100)]": (
        lambda: MetricSummary.merged(METRICS.slices(100))
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_a_window_cannot_record_or_be_asked_is_an_error(message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        REFUSED[message]()
