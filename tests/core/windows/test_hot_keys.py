"""Hot keys: what is promised about error, memory and calls, on random streams in virtual time."""

from collections import Counter
from datetime import timedelta
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from slidegate.core import HotKeys

from ...racing import THREADS, race
from .plain import Plain, spans_us


def hot_keys(capacity: int, threshold: int, window_us: int, slices: int = 5) -> HotKeys:
    return HotKeys(capacity, threshold, timedelta(microseconds=window_us), slices=slices)


class Stream(NamedTuple):
    """Hot keys and the hits on them: (step, negative where the clock steps back; key)."""

    capacity: int
    threshold: int
    slices: int
    slice_us: int
    hits: list[tuple[int, str]]


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """Draw hits on few and on many keys."""
    slices, slice_us = draw(st.integers(1, 4)), draw(st.integers(1, 20))
    key = st.sampled_from(draw(st.sampled_from(("ab", "abcdefgh", "aaaabcdefghijklmnop"))))
    hits = draw(st.lists(st.tuples(spans_us(slice_us, (slices + 1) * slice_us), key), max_size=120))
    return Stream(draw(st.integers(1, 8)), draw(st.integers(1, 8)), slices, slice_us, hits)


@given(streams(), st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(1, 30))
def test_hot_keys_are_those_over_the_threshold_within_the_error(made: Stream, several: list[int], most: int) -> None:
    keys = hot_keys(made.capacity, made.threshold, made.slices * made.slice_us, made.slices)
    exact, now_us, hot, reported = Plain[str](made.slice_us, made.slices + 1), 1_000, set[str](), set[str]()
    for number, (span_us, key) in enumerate(made.hits):
        now_us = max(now_us + span_us, 0)
        hits = several[number % len(several)]
        dropped, looked_at = exact.dropped, {key, *hot}
        became_hot = keys.hit(key, now_us, hits)
        for _ in range(hits):
            exact.add(now_us, key)
        assert keys.dropped == exact.dropped
        newest = exact.newest or 0
        recent, look_us = Counter(exact.within(0, newest + 1)), newest * made.slice_us
        error = keys.error(look_us)
        assert error <= recent.total() / (made.capacity + 1)
        slack, found, top = min(error, made.threshold // 2), keys.hot(look_us), keys.top(look_us, most)
        if exact.dropped == dropped:
            assert found.keys() >= {name for name in looked_at if recent[name] > made.threshold + error - slack}
        for name, least in found.items():
            assert made.threshold - slack < least <= recent[name] <= least + error
        reported.update([key] if became_hot else ())
        assert found.keys() <= reported, "who is hot was said to become so"
        assert not became_hot or recent[key] > made.threshold - slack
        assert top == sorted(top, key=lambda entry: (-entry[1], entry[0]))
        for name, least in top:
            assert 0 < least <= recent[name] <= least + error
        if not error:
            assert top == sorted(recent.items(), key=lambda entry: (-entry[1], entry[0]))[:most]
        hot = set(found)


def test_a_key_that_has_cooled_becomes_hot_again() -> None:
    keys = HotKeys(10, 2, "5s")
    assert [keys.hit("busy", now_us) for now_us in range(5)] == [False, False, True, False, False]
    assert keys.hot(5_999_999) == {"busy": 5}
    assert keys.hot(6_000_000) == {}, "reading changes nothing"
    assert not keys.hit("busy", 5_999_999), "it has been hot all the time"
    keys.hit("another", 12_000_000)
    assert [keys.hit("busy", 12_000_000) for _ in range(4)] == [False, False, True, False]


def test_missed_hits_count_up_to_half_of_the_threshold() -> None:
    keys = HotKeys(1, 6, "5s", slices=1)
    keys.hit("ann", 0, 3)
    keys.hit("bob", 0, 3)  # with one count for both, ann's are gone
    assert not keys.hit("ann", 0, 3)
    assert keys.hit("ann", 0, 1)
    assert keys.error(0) == 3
    assert keys.hot(0) == {"ann": 4}, "the seventh hit of ann is missed"


def test_room_is_made_among_the_hot_before_it_runs_out() -> None:
    keys, became_hot = HotKeys(1, 2, "1s", slices=1), 0
    keys.hit("before", 0, 10)
    for number in range(50):
        became_hot += sum([keys.hit(f"in turn {number}", keys.slice_us) for _ in range(10)])
        assert len(keys.hot(keys.slice_us)) <= len(keys._hot) <= 2
    assert became_hot > 20


def test_eight_threads_that_meet_at_the_change_of_a_slice_lose_nothing() -> None:
    keys, rounds, reported = hot_keys(10, 10, 100_000, slices=50), 50, list[str]()

    def hit(number: int, thread: int) -> None:
        if keys.hit(f"t{thread % 4}", number * keys.slice_us):
            reported.append(f"t{thread % 4}")

    race(hit, rounds)
    assert keys.hot((rounds - 1) * keys.slice_us) == {f"t{thread}": 2 * rounds for thread in range(THREADS // 2)}
    assert sorted(reported) == [f"t{thread}" for thread in range(4)], "each is told to one of them"
