"""The totals of a window only grow, and miss nothing that was noted."""

from __future__ import annotations

import copy
import pickle
import random
from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from slidegate.core.statistics.series import BufferedWindow, Outcome
from slidegate.core.statistics.lifetime import BOUNDS_US, Lifetime, LifetimeTotals

PASS = Outcome("pass", "2xx", rt=True, first=True)
BLOCK = Outcome("block")
EDGES_US = st.sampled_from([0, *(bound_us + beside for bound_us in BOUNDS_US for beside in (-1, 0, 1))])
TIMES_US = st.lists(EDGES_US | st.integers(0, 2 * BOUNDS_US[-1]), max_size=30)


def test_the_bounds_are_those_of_durations_of_requests_in_the_semantic_conventions() -> None:
    bounds_s = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10]
    assert [bound_us / 1_000_000 for bound_us in BOUNDS_US] == bounds_s


@given(st.lists(st.tuples(st.dictionaries(st.sampled_from("abc"), st.integers(1, 9)), TIMES_US), max_size=9))
def test_every_time_lies_in_the_first_bucket_whose_bound_it_does_not_exceed(
    parts: list[tuple[dict[str, int], list[int]]],
) -> None:
    lifetime = Lifetime()
    for events, times_us in parts:
        lifetime.add(events, times_us)
    every = [time_us for _, times_us in parts for time_us in times_us]
    bounds = (*BOUNDS_US, float("inf"))
    expected = Counter(next(place for place, bound in enumerate(bounds) if time_us <= bound) for time_us in every)
    totals = lifetime.totals()
    assert list(totals.times) == [expected[place] for place in range(len(bounds))]
    assert totals.sum_us == sum(every)
    for name in "abcd":
        assert totals.count(name) == sum(events.get(name, 0) for events, _ in parts)


def test_totals_are_a_copy_that_can_be_copied() -> None:
    lifetime = Lifetime()
    lifetime.add({"pass": 1}, [7])
    before = lifetime.totals()
    lifetime.add({"pass": 1}, [7])
    assert (before.count("pass"), sum(before.times), before.sum_us) == (1, 1, 7)
    assert copy.copy(before) == pickle.loads(pickle.dumps(before)) == before


def test_a_window_forgets_and_its_totals_do_not_however_the_clock_jumps(rng: random.Random) -> None:
    window = BufferedWindow(4, 500, 1_000)
    noted: Counter[str] = Counter()
    sum_us, now, read = 0, 10**12, [LifetimeTotals({}, (0,) * (len(BOUNDS_US) + 1), 0)]
    for _ in range(3_000):
        now += rng.choice((10, 10_000, 10**7, 10**10, -(10**10)))
        outcome, took_us = rng.choice((PASS, BLOCK)), rng.randrange(10_000_000)
        window.note(outcome, now - took_us * 1_000, now, now)
        noted.update(outcome.events)
        sum_us += took_us if outcome.rt else 0
        if rng.random() < 0.01:
            read.append(window.ever())
    assert window.dropped, "the clock has not jumped"
    read.append(window.ever())
    assert (read[-1].events, read[-1].sum_us, sum(read[-1].times)) == (dict(noted), sum_us, noted["pass"])
    for before, after in pairwise(read):
        assert all(after.count(name) >= before.count(name) for name in noted)
        assert all(late >= early for early, late in zip(before.times, after.times, strict=True))


def test_the_times_of_each_fold_are_told_once(rng: random.Random) -> None:
    window, heard, expected = BufferedWindow(4, 500), list[int](), list[int]()
    window.timed = heard.extend
    for _ in range(1_000):
        took_us = rng.randrange(1_000)
        window.note(PASS, 10_000 - took_us, 10_000, 10_000)
        expected.append(took_us)
        window.note(BLOCK, 0, 0, 10_000)
    window.ever()
    assert sorted(heard) == sorted(expected)
    window.ever()
    assert len(heard) == len(expected)
