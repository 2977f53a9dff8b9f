"""Hot keys: what is promised about error, memory and calls, on random streams in virtual time."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from threading import Lock
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate.core import ConfigurationError, HotKeys

from .racing import THREADS, race


class Ear:
    """Hears what becomes hot and what cools, and sees that the two alternate for each key."""

    def __init__(self) -> None:
        self.hot: set[str] = set()
        self.told: list[tuple[str, str]] = []

    def on_hot(self, key: str, hits: int) -> None:
        assert key not in self.hot
        self.hot.add(key)
        self.told.append(("hot", key))

    def on_cool(self, key: str, hits: int) -> None:
        self.hot.remove(key)
        self.told.append(("cool", key))


def listened(capacity: int, threshold: int, window_us: int, slices: int = 5) -> tuple[HotKeys, Ear]:
    """Make hot keys and somebody who hears of them."""
    ear = Ear()
    keys = HotKeys(capacity, threshold, window_us / 1_000_000, slices=slices, on_hot=ear.on_hot, on_cool=ear.on_cool)
    return keys, ear


class Stream(NamedTuple):
    """Hot keys and the hits on them: (step, negative where the clock steps back; key)."""

    capacity: int
    threshold: int
    slices: int
    slice_us: int
    hits: list[tuple[int, str]]


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """Draw hits on few and on many keys, with gaps, jumps longer than the window, and steps back."""
    slices, slice_us = draw(st.integers(1, 4)), draw(st.integers(1, 20))
    ring_us = (slices + 1) * slice_us
    span_us = st.one_of(st.just(0), st.integers(0, 2), st.integers(0, slice_us), st.integers(-ring_us, 2 * ring_us))
    key = st.sampled_from(draw(st.sampled_from(("ab", "abcdefgh", "aaaabcdefghijklmnop"))))
    hits = draw(st.lists(st.tuples(span_us, key), max_size=120))
    return Stream(draw(st.integers(1, 8)), draw(st.integers(1, 8)), slices, slice_us, hits)


class Exact:
    """Every hit that was accepted, by slice."""

    def __init__(self, slices: int, slice_us: int) -> None:
        self.slices = slices
        self.slice_us = slice_us
        self.newest = -(10**9)
        self.dropped = 0
        self.counts: dict[int, Counter[str]] = defaultdict(Counter)

    def hit(self, key: str, now_us: int) -> None:
        number = now_us // self.slice_us
        if number < self.newest - self.slices:
            self.dropped += 1
            return
        self.newest = max(number, self.newest)
        self.counts[number][key] += 1

    def recent(self) -> Counter[str]:
        """Return the hits in the newest slice and the k before it."""
        return sum((self.counts[self.newest - back] for back in range(self.slices + 1)), Counter())


@given(streams())
def test_every_key_over_the_threshold_is_hot_and_none_below_it_less_the_error(made: Stream) -> None:
    keys, ear = listened(made.capacity, made.threshold, made.slices * made.slice_us, made.slices)
    exact, now_us = Exact(made.slices, made.slice_us), 1_000
    for span_us, key in made.hits:
        now_us = max(now_us + span_us, 0)
        dropped = exact.dropped
        looked_at = {key, *ear.hot}
        keys.hit(key, now_us)
        exact.hit(key, now_us)
        assert keys.dropped == exact.dropped
        recent, look_us = exact.recent(), exact.newest * made.slice_us
        error = keys.error(look_us)
        assert error <= recent.total() / (made.capacity + 1)
        slack = min(error, made.threshold // 2)
        if exact.dropped == dropped:
            assert ear.hot >= {name for name in looked_at if recent[name] > made.threshold + error - slack}
        for name, hits in keys.hot(look_us).items():
            assert made.threshold - slack < hits <= recent[name] <= hits + error
            assert name in ear.hot
        if ear.told and ear.told[-1] == ("hot", key):
            assert recent[key] > made.threshold - slack
        assert len(ear.hot) <= (made.slices + 1) * made.capacity


@given(streams())
def test_with_a_place_for_every_key_the_count_is_exact(made: Stream) -> None:
    keys, ear = listened(26, made.threshold, made.slices * made.slice_us, made.slices)
    exact, now_us = Exact(made.slices, made.slice_us), 1_000
    for span_us, key in made.hits:
        now_us = max(now_us + span_us, 0)
        keys.hit(key, now_us)
        exact.hit(key, now_us)
        over = {name: hits for name, hits in exact.recent().items() if hits > made.threshold}
        assert keys.hot(exact.newest * made.slice_us) == over
        assert ear.hot == set(over)
        assert keys.error(now_us) == 0


@given(streams(), st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(1, 30))
def test_several_hits_at_once_keep_the_bounds_and_the_top_is_in_order(
    made: Stream, several: list[int], most: int
) -> None:
    keys, _ = listened(made.capacity, made.threshold, made.slices * made.slice_us, made.slices)
    exact, now_us = Exact(made.slices, made.slice_us), 1_000
    for number, (span_us, key) in enumerate(made.hits):
        now_us = max(now_us + span_us, 0)
        hits = several[number % len(several)]
        keys.hit(key, now_us, hits)
        for _ in range(hits):
            exact.hit(key, now_us)
        assert keys.dropped == exact.dropped
        recent, look_us = exact.recent(), exact.newest * made.slice_us
        error, top = keys.error(look_us), keys.top(look_us, most)
        assert error <= recent.total() / (made.capacity + 1)
        assert top == sorted(top, key=lambda entry: (-entry[1], entry[0]))
        for name, least in top:
            assert 0 < least <= recent[name] <= least + error
        if not error:
            assert top == sorted(recent.items(), key=lambda entry: (-entry[1], entry[0]))[:most]


def test_cooling_is_noticed_by_any_hit_in_a_new_slice_or_by_asking() -> None:
    keys, ear = listened(10, 2, 5_000_000)
    for now_us in (0, 1, 2):
        keys.hit("busy", now_us)
    keys.cool(5_999_999)
    assert keys.hot(5_999_999) == {"busy": 3}
    assert keys.hot(6_000_000) == {}  # reading changes nothing
    assert ear.hot == {"busy"}
    keys.cool(6_000_000)
    assert ear.hot == set()
    keys.cool(0)  # a clock that ran back
    assert ear.told == [("hot", "busy"), ("cool", "busy")]


def test_a_late_hit_counts_in_its_slice_and_one_that_is_too_late_nowhere() -> None:
    keys = HotKeys(10, 2, "5s")
    keys.hit("busy", 9_000_000)
    keys.hit("busy", 3_999_999)
    keys.hit("busy", 4_000_000)
    assert (keys.hot(9_000_000), keys.dropped) == ({}, 1)
    keys.hit("busy", 4_000_000)
    assert keys.hot(9_000_000) == {"busy": 3}
    assert keys.hot(8_999_999) == {}  # at that moment two of the hits had been
    assert keys.hot(0) == {}


def test_what_a_key_may_have_missed_counts_for_it_up_to_half_of_the_threshold() -> None:
    keys = HotKeys(1, 6, "5s", slices=1)
    keys.hit("ann", 0, 3)
    keys.hit("bob", 0, 3)  # with one count for both, ann's are gone
    keys.hit("ann", 0, 4)
    assert keys.error(0) == 3
    assert keys.hot(0) == {"ann": 4}, "the seventh hit of ann is missed"


def test_room_is_made_among_the_hot_before_it_runs_out() -> None:
    keys, ear = listened(1, 2, 1_000_000, slices=1)
    for number in range(50):
        for _ in range(10):
            keys.hit(f"in turn {number}", 0)
        assert len(ear.hot) <= 2
    assert len(ear.told) > 40


def test_callbacks_may_use_the_object_and_are_called_in_order() -> None:
    told: list[str] = []

    def on_hot(key: str, hits: int) -> None:
        if key == "first":
            for _ in range(2):
                keys.hit("second", 0)
            assert told == []  # the news of the second waits for the end of this call
        told.append(f"{key} {hits} {sorted(keys.hot(0))}")

    keys = HotKeys(10, 1, "5s", on_hot=on_hot)
    for _ in range(2):
        keys.hit("first", 0)
    assert told == ["first 2 ['first', 'second']", "second 2 ['first', 'second']"]


def test_news_that_comes_while_the_telling_ends_is_told_at_once() -> None:
    class Ending:
        """A lock that is asked for once more before it is let go."""

        def __init__(self) -> None:
            self.lock = Lock()
            self.ends = 0

        def acquire(self, blocking: bool) -> bool:
            return self.lock.acquire(blocking=blocking)

        def release(self) -> None:
            self.ends += 1
            if self.ends == 1:
                for _ in range(2):
                    keys.hit("late", 0)
            self.lock.release()

    keys, ear = listened(10, 1, 5_000_000)
    keys._telling = Ending()
    for _ in range(2):
        keys.hit("first", 0)
    assert ear.told == [("hot", "first"), ("hot", "late")]


def test_keys_that_nobody_hears_of_grow_hot_and_cool_all_the_same() -> None:
    keys = HotKeys(2, 1, "5s")
    for number in range(12):
        for _ in range(2):
            keys.hit(f"key {number}", number * 1_000_000)
    assert "key 11" in keys.hot(11_000_000)
    assert "key 0" not in keys.hot(11_000_000)


def test_what_a_callback_raises_goes_to_the_caller_and_the_rest_is_told_later() -> None:
    told: list[str] = []

    def on_cool(key: str, hits: int) -> None:
        told.append(key)
        raise RuntimeError(key)

    keys = HotKeys(10, 1, "5s", on_cool=on_cool)
    for key in ("a", "a", "b", "b"):
        keys.hit(key, 0)
    with pytest.raises(RuntimeError):
        keys.hit("c", 10**8)
    assert len(told) == 1
    with pytest.raises(RuntimeError):
        keys.hit("c", 10**8 + 1)
    assert sorted(told) == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"capacity": 0}, "capacity: expected a whole number from 1 to 10000.*not 0"),
        ({"threshold": 0}, "threshold.*not 0"),
        ({"threshold": 1.5}, r"threshold.*not 1\.5"),
        ({"slices": 0}, "slices.*not 0"),
        ({"window": "5 parsecs"}, "window: expected a number and a unit"),
        ({"on_hot": "call me"}, "on_hot: expected a function of key and hits, for .*, not 'call me'"),
        ({"on_cool": 1}, "on_cool: expected a function of key and hits, for .*, not 1"),
    ],
)
def test_what_cannot_work_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        HotKeys(**{"capacity": 10, "threshold": 100, "window": "5s", **arguments})


# -- threads -------------------------------------------------------------------------------------------------------


def test_eight_threads_that_meet_at_the_change_of_a_slice_lose_nothing() -> None:
    (keys, ear), rounds = listened(10, 10, 100_000, slices=50), 50
    race(lambda number, thread: keys.hit(f"t{thread % 4}", number * keys.slice_us), rounds)
    assert keys.hot((rounds - 1) * keys.slice_us) == {f"t{thread}": 2 * rounds for thread in range(THREADS // 2)}
    assert sorted(ear.told) == [("hot", f"t{thread}") for thread in range(4)]


def test_eight_threads_hear_of_hot_and_cool_in_turn(rng: random.Random) -> None:
    keys, ear = listened(10, 3, 100, slices=2)
    spans_us = [rng.randrange(120) for _ in range(200)]
    race(lambda number, thread: keys.hit(f"t{thread % 3}", sum(spans_us[:number])), len(spans_us))
    keys.cool(10**9)
    assert ear.hot == set()
    assert len(ear.told) > 10
