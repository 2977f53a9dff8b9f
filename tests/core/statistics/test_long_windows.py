"""Counts of a day: a slice that leaves the ring of five seconds is kept by the minute, then by five minutes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate.core.statistics.series import MAX_NOTED, BufferedWindow, Outcome
from slidegate.core.statistics.histogram import BUCKETS, bucket, quantile_us
from slidegate.core.statistics.shelves import FIVE_MINUTES_US, FIVES, MINUTE_US, MINUTES, Shelf
from slidegate.core.statistics.slices import MetricSummary
from slidegate.core.statistics.tally import NAMES, Tally

SLICE_US, SLICES = 5_000_000, 60
PASS, BLOCK = Outcome("pass", "2xx", rt=True, first=True), Outcome("block", "4xx")

tallies = st.builds(
    lambda events, times: (events, times),
    st.dictionaries(st.sampled_from(NAMES), st.integers(-(2**40), 2**60)),
    st.lists(st.integers(0, 200_000_000), max_size=30),
)


def tally_of(given_as: tuple[dict[str, int], list[int]]) -> Tally:
    events, times = given_as
    tally = Tally()
    tally.count(events.items())
    counts = [0] * BUCKETS
    for time_us in times:
        counts[bucket(time_us)] += 1
    if times:
        tally.time(counts, sum(times), min(times))
    return tally


def seen(tally: Tally) -> tuple[dict[str, int], dict[int, int], int, int]:
    return {name: many for name, many in tally.events.items() if many}, tally.buckets, tally.sum_us, tally.min_us


@given(st.lists(tallies, max_size=4))
def test_a_tally_is_packed_and_added_up_exactly(several: list[tuple[dict[str, int], list[int]]]) -> None:
    packed, added = Tally(), Tally()
    for one in several:
        packed.add(Tally.unpack(tally_of(one).pack()))
        added.add(tally_of(one))
    assert seen(packed) == seen(added)
    times = [time for _, each in several for time in each]
    counts = [0] * BUCKETS
    for time_us in times:
        counts[bucket(time_us)] += 1
    found = packed.times()
    assert (found.count, found.sum_us, found.min_us) == (len(times), sum(times), min(times, default=None))
    if times:
        assert found.quantile(0.95) == quantile_us(counts, 0.95)


def test_the_numbers_of_names_stand_in_stores_and_never_change() -> None:
    first = "other pass block exception success occupied_pass cancelled 1xx 2xx 3xx 4xx 5xx banned blocked shed"
    assert NAMES[:18] == (*first.split(), "unavailable", "shadow_refused", "extra_units")
    assert len(set(NAMES)) == len(NAMES)


@given(st.binary(max_size=60) | tallies.map(lambda one: tally_of(one).pack()).flatmap(
    lambda packed: st.tuples(st.integers(0, len(packed) - 1), st.integers(0, 255)).map(
        lambda change: packed[: change[0]] + bytes([change[1]]) + packed[change[0] + 1 :]
    )
))  # fmt: skip
def test_bytes_of_another_making_are_an_error_or_a_tally(packed: bytes) -> None:
    try:
        tally = Tally.unpack(packed)
    except ValueError as error:
        assert str(error).startswith("tally")  # noqa: PT017 - either is right
    else:
        assert set(tally.events) <= set(NAMES)
        assert all(0 <= place < BUCKETS for place in tally.buckets)


# -- shelves: against a list of everything ---------------------------------------------------------------------------

spans = st.sampled_from([(SLICE_US, SLICES), (MINUTE_US, MINUTES), (FIVE_MINUTES_US, FIVES), (MINUTE_US, 7)])
pauses = st.one_of(
    st.integers(0, 4_000_000), st.integers(0, 3 * MINUTE_US), st.integers(0, 3_600_000_000), st.integers(0, 10**11)
)


@given(
    st.lists(st.tuples(pauses, st.integers(1, 5), st.sampled_from([PASS, BLOCK]), st.booleans()), max_size=60),
    pauses,
    spans,
)
def test_every_window_of_a_day_is_the_sum_of_what_lies_in_it(
    moves: list[tuple[int, int, Outcome, bool]], pause_us: int, span: tuple[int, int]
) -> None:
    window, now_us = BufferedWindow(SLICES, SLICE_US), 1_700_000_000_000_000
    everything: list[tuple[int, Outcome]] = []
    for after_us, many, outcome, reads in moves:
        now_us += after_us
        for _ in range(many):
            window.note(outcome, now_us - 100, now_us - 50, now_us)
            everything.append((now_us, outcome))
        if reads:
            window.fold()
    now_us += pause_us
    step_us, steps = span
    first_us = (now_us // step_us - steps + 1) * step_us
    expected: dict[int, Counter[str]] = {}
    for at_us, outcome in everything:
        if first_us <= at_us:
            expected.setdefault((at_us - first_us) // step_us, Counter()).update(outcome.events)
    found = window.tallies(first_us, step_us, steps)
    assert {step: Counter(tally.events) for step, tally in found.items()} == expected
    assert {step: tally.times().count for step, tally in found.items()} == {
        step: events["pass"] for step, events in expected.items()
    }


def test_memory_is_fixed_after_a_day_however_much_comes() -> None:
    window = BufferedWindow(SLICES, SLICE_US)
    assert not window.take_touched()

    def held(day: int) -> int:
        for number in range(day * 17_280, (day + 1) * 17_280):
            window.note(PASS, number * SLICE_US, number * SLICE_US + 5, number * SLICE_US + 100)
        window.fold()
        return len(window.starts())

    held(1)
    second, third = held(2), held(3)
    assert second == third <= SLICES + MINUTES + FIVES
    touched = window.take_touched()
    assert touched >= set(range(3 * 17_280, 4 * 17_280))
    assert len(touched) <= 2 * 17_280
    assert not window.take_touched()


def test_a_time_ahead_of_the_ticks_names_the_slices() -> None:
    ahead_us = 1_700_000_000_000_000
    window = BufferedWindow(SLICES, SLICE_US, ticks_per_us=1_000, ahead_us=ahead_us)
    for moment_us in (1_000_000, 4_999_999, 5_000_000):
        window.note(PASS, 0, moment_us * 1_000, moment_us * 1_000)
    assert sorted(window.starts()) == [ahead_us, ahead_us + SLICE_US]
    assert window.read(ahead_us + 5_000_000, 2).count("pass") == 3
    assert not window.take_touched(), "nobody has asked before"
    for moment_us in (4_999_999, 5_000_000):
        window.note(PASS, 0, moment_us * 1_000, moment_us * 1_000)
    assert window.take_touched() == {ahead_us // SLICE_US, ahead_us // SLICE_US + 1}


def test_an_amount_is_added_to_a_figure_at_once() -> None:
    window = BufferedWindow(SLICES, SLICE_US)
    window.take_touched()
    window.add(7_000_000, "shadow_refused", 2)
    window.add(7_000_000, "extra_units", -3)
    assert window.tallies(5_000_000, SLICE_US, 1)[0].events == {"shadow_refused": 2, "extra_units": -3}
    assert window.take_touched() == {1}
    assert dict(window.ever().events) == {"shadow_refused": 2}


def test_the_last_shelf_forgets_and_the_one_before_passes_on() -> None:
    last = Shelf(20, 2)
    first = Shelf(10, 2, last)
    for start_us in (0, 10, 20, 30, 40, 50, 60, 0):
        tally = Tally()
        tally.count([("pass", 1)])
        first.put(start_us, tally)
    assert [(start, tally.events["pass"]) for start, tally in sorted(first.held(0, 100), key=lambda one: one[0])] == [
        (20, 2), (40, 1), (50, 1), (60, 1),
    ]  # fmt: skip


def test_a_child_of_fork_begins_anew() -> None:
    window = BufferedWindow(SLICES, SLICE_US)
    for number in range(MAX_NOTED + 3):
        window.note(PASS, number, number, number)
    window.forget()
    assert (window.noted, window.starts(), window.take_touched()) == ([], [], set())
    assert not window.ever().events
    window.note(BLOCK, 0, 0, 0)
    assert window.tallies(0, SLICE_US, 1)[0].events == {"block": 1, "4xx": 1}


def test_a_place_beyond_the_last_is_an_error() -> None:
    wrong = tally_of(({"pass": 1}, [100])).pack()
    for at, value in ((18, len(NAMES)), (18 + 9, BUCKETS)):
        with pytest.raises(ValueError, match="beyond the last"):
            Tally.unpack(wrong[:at] + bytes([value]) + wrong[at + 1 :])
    with pytest.raises(ValueError, match="tally"):
        Tally.unpack(wrong + b"x")


def test_a_summary_without_an_event_is_the_same_in_all_else() -> None:
    summary = MetricSummary(5, 10, {"pass": 2, "extra_units": -1})
    assert summary.without("extra_units") == MetricSummary(5, 10, {"pass": 2})
    assert summary.without("block") is summary
