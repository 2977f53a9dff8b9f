"""The window that counts many records at once: a reading says what it would say if each had been counted as it came."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest

from slidegate.core import MetricWindow
from slidegate.core.statistics import buffered
from slidegate.core.statistics.series import MAX_NOTED, BufferedWindow, Noted, Outcome
from slidegate.core.statistics.histogram import BOUNDS_US

from .racing import THREADS, race

PASS = Outcome("pass")
OUTCOMES = (
    PASS,
    Outcome("pass", "success", "2xx", rt=True, first=True),
    Outcome("pass", "cancelled", rt=True, first=True),
    Outcome("pass", "1xx", first=True),
    Outcome("success", rt=True),
    Outcome("block", "4xx"),
    Outcome(),
    *(Outcome(f"name {number}") for number in range(20)),
)
SLICES, SLICE_US = 4, 500


def count_now(window: MetricWindow, ticks_per_us: int, noted: Noted) -> None:
    """Count one record at once."""
    outcome, *moments = noted
    began_us, first_us, ended_us = (moment // ticks_per_us for moment in moments)
    rt_us, first_us = ended_us - began_us, first_us - began_us
    if rt_us < 0 or first_us < 0:
        rt_us = first_us = 0
    window.record(
        ended_us, *outcome.events, rt_us=rt_us if outcome.rt else None, first_us=first_us if outcome.first else None
    )


@pytest.mark.parametrize("ticks_per_us", [1, 1_000])
def test_a_reading_is_what_it_would_be_if_each_record_had_been_counted_at_once(
    rng: random.Random, ticks_per_us: int
) -> None:
    ring = SLICES * SLICE_US * ticks_per_us
    for _ in range(60):
        window = BufferedWindow(SLICES, SLICE_US, ticks_per_us)
        plain = MetricWindow(SLICES, SLICE_US)
        now, pace = rng.randrange(ring), rng.choice((2, 20, SLICE_US)) * ticks_per_us
        for _ in range(rng.randrange(400)):
            now = max(now + rng.randrange(pace), 0)
            if rng.random() < 0.01:
                now = max(now + rng.randrange(-2 * ring, 2 * ring), 0)  # the clock steps, back or forward
            moments = [max(now - rng.randrange(-pace, 3 * pace), 0) for _ in range(3)]
            if rng.random() < 0.8:
                moments.sort()
            noted = (rng.choice(OUTCOMES), *moments)
            window.note(*noted)
            count_now(plain, ticks_per_us, noted)
            if rng.random() < 0.02:
                window.fold()
            if rng.random() < 0.03:
                agrees(window, plain, now // ticks_per_us)
        for look_us in (now // ticks_per_us, now // ticks_per_us + SLICE_US, 0, 10**9):
            agrees(window, plain, look_us)


def agrees(window: BufferedWindow, plain: MetricWindow, now_us: int) -> None:
    assert window.read(now_us) == plain.read(now_us)
    assert window.read(now_us, 1) == plain.read(now_us, 1)
    assert window.dropped == plain.dropped


def test_records_of_one_slice_counted_together_are_those_counted_one_by_one(rng: random.Random) -> None:
    edges_us = [bound + beside for bound in BOUNDS_US for beside in (-1, 0, 1)]
    for _ in range(100):
        together, single = MetricWindow(3, 10, max_names=2), MetricWindow(3, 10, max_names=2)
        for _ in range(5):
            now_us, events = rng.randrange(60), [rng.choice(("pass", "a", "b", "c", "x" * 65)) for _ in range(9)]
            rts_us, firsts_us = ([rng.choice(edges_us) for _ in range(rng.choice((0, 9)))] for _ in range(2))
            together.record_many(
                now_us, 9, {name: events.count(name) for name in dict.fromkeys(events)}, rts_us, firsts_us
            )
            for place, name in enumerate(events):
                rt_us = rts_us[place] if rts_us else None
                single.record(now_us, name, rt_us=rt_us, first_us=firsts_us[place] if firsts_us else None)
            assert together.slices(now_us) == single.slices(now_us)
            assert together.dropped == single.dropped


@pytest.mark.parametrize("times", [{"rts_us": [5, -1]}, {"firsts_us": [-7]}, {"rts_us": [1], "firsts_us": [-1]}])
def test_a_negative_time_is_refused_and_changes_nothing(times: dict[str, Any]) -> None:
    window = MetricWindow(3, 10)
    with pytest.raises(ValueError, match=r"expected 0 microseconds or more, not -\d"):
        window.record_many(5, 2, {"pass": 2}, **times)
    assert window.read(5).events == {}


def test_a_buffer_is_bounded_in_records_and_in_bytes() -> None:
    window = BufferedWindow(60, 5_000_000, 1_000)
    most = weight = 0
    for number in range(3 * MAX_NOTED):
        window.note(PASS, *(10**18 + 1_000 * number + offset for offset in range(3)))
        most = max(most, len(window.noted))
        weight = max(weight, sys.getsizeof(window.noted) + sum(map(weight_of, window.noted)))
    assert most == MAX_NOTED - 1
    assert weight < 50_000
    assert window.read(10**15).count("pass") == 3 * MAX_NOTED


def weight_of(noted: Noted) -> int:
    return sys.getsizeof(noted) + sum(map(sys.getsizeof, noted[1:]))


class Crowded(list[Noted]):
    """A buffer to which another thread appends whenever somebody has just looked at all of it."""

    def __getitem__(self, place: Any) -> Any:
        seen = super().__getitem__(place)
        self.append((PASS, 7, 7, 7))
        return seen


def test_what_comes_while_a_buffer_is_emptied_is_counted_next_time() -> None:
    window = BufferedWindow(60, 1_000)
    window.noted = Crowded()
    window.note(PASS, 5, 5, 5)
    assert [window.read(9).count("pass") for _ in range(5)] == [1, 2, 3, 4, 5]


# -- threads -------------------------------------------------------------------------------------------------------


@pytest.mark.interpreted("a constant that the test replaces is a part of the compiled code")
def test_eight_threads_that_note_and_read_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffered, "MAX_NOTED", 3)
    window, rounds = BufferedWindow(60, 1_000), 60
    own = [Outcome("pass", f"t{thread}", rt=True) for thread in range(THREADS)]

    def act(number: int, thread: int) -> None:
        window.note(own[thread], number, number, number + thread)
        if (number + thread) % 5 == 0:
            assert window.read(number).count(f"t{thread}") == number + 1
        assert len(window.noted) < buffered.MAX_NOTED + THREADS

    race(act, rounds)
    read = window.read(rounds)
    assert read.events == {"pass": THREADS * rounds, **{f"t{thread}": rounds for thread in range(THREADS)}}
    assert (read.rt.count, read.rt.sum_us) == (THREADS * rounds, sum(range(THREADS)) * rounds)
