"""Hot keys: what is promised about error, memory and calls, on random streams in virtual time."""

from collections import Counter
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from slidegate.core import HotKeys

from ...racing import THREADS, race
from .plain import SPANS, Plain


def hot_keys(capacity: int, threshold: int, window_us: int, slices: int = 5) -> HotKeys:
    return HotKeys(capacity, threshold, timedelta(microseconds=window_us), slices=slices)


KEYS = st.sampled_from(("ab", "abcdefgh", "aaaabcdefghijklmnop"))
"""Few keys and many."""
HITS = KEYS.flatmap(lambda keys: st.lists(st.tuples(SPANS, st.sampled_from(keys), st.integers(1, 9)), max_size=120))


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 4), st.integers(1, 20), HITS, st.integers(1, 30))
def test_hot_keys_are_those_over_the_threshold_within_the_error(
    capacity: int, threshold: int, slices: int, slice_us: int, made: list[tuple[float, str, int]], most: int
) -> None:
    keys = hot_keys(capacity, threshold, slices * slice_us, slices)
    exact, now_us, hot, reported = Plain[str](slice_us, slices + 1), 1_000, set[str](), set[str]()
    for span, key, hits in made:
        now_us = max(now_us + round(span * slice_us), 0)
        dropped, looked_at = exact.dropped, {key, *hot}
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
        assert found.keys() <= reported, "who is hot was said to become so"
        assert not became_hot or recent[key] > threshold - slack
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
