"""The window that tells what happened: against a plain list of events, at every moment and over threads."""

import math
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slidegate.core import MetricSummary, MetricWindow
from slidegate.core.windows.histogram import BOUNDS_US, LONGEST_US, RELATIVE_ERROR, SHORTEST_US, ResponseTimes

from ...racing import THREADS, race
from .plain import SPANS, Plain

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
    """Tell whether a quantile is as near to the exact one as is promised."""
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
def test_windows_merged_are_one_window_that_saw_everything(
    slices: int, slice_us: int, moves: Moves, chosen: list[int]
) -> None:
    one, *parts = [MetricWindow(slices, slice_us) for _ in range(4)]
    now_us = 0
    for (span, events, rt_us), part in zip(moves, chosen, strict=False):
        now_us += round(abs(span) * slice_us)
        for window in (one, parts[part]):
            window.record(now_us, *events, rt_us=rt_us)
        assert MetricSummary.merged([part.read(now_us) for part in parts]) == one.read(now_us)


def test_a_negative_time_is_refused_and_changes_nothing() -> None:
    window = MetricWindow(10, 100)
    with pytest.raises(ValueError, match="rt_us: expected 0 microseconds or more, not -1"):
        window.record(0, "pass", rt_us=-1)
    assert window.read(0).events == {}


def test_every_time_reads_within_its_error() -> None:
    edges = {edge + step for edge in BOUNDS_US for step in (-1, 0, 1)}
    for time_us in {*range(2_000), *edges, 10**12}:
        times = ResponseTimes()
        times.count_all([time_us])
        assert is_close(times.quantile(0.5), time_us), time_us


def test_eight_threads_that_meet_at_the_change_of_a_slice_lose_nothing() -> None:
    window, rounds = MetricWindow(60, 1_000), 60
    race(lambda number, thread: window.record(number * window.slice_us, "pass", f"t{thread}", rt_us=thread), rounds)
    read = window.read((rounds - 1) * window.slice_us)
    assert read.events == {"pass": THREADS * rounds, **{f"t{thread}": rounds for thread in range(THREADS)}}
    assert (read.rt.count, read.rt.sum_us) == (THREADS * rounds, sum(range(THREADS)) * rounds)
    assert window.dropped == 0


@pytest.mark.parametrize(("share", "rank"), [(0, 1), (0.01, 1), (0.55, 55), (0.95, 95), (0.951, 96), (1, 100)])
def test_a_quantile_is_the_nearest_rank(share: float, rank: int) -> None:
    times, alone = ResponseTimes(), ResponseTimes()
    times.count_all(BOUNDS_US[1:101])
    alone.count_all([BOUNDS_US[rank]])
    assert times.quantile(share) == alone.quantile(1)
