"""Room for keys: whatever comes and goes, what is held is what is counted as held."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from slidegate import MemoryStore
from slidegate.core import LimitSet, parse_limits
from slidegate.testing import FakeClock

RULES = [LimitSet("one", parse_limits("3/10s; 2/minute")), LimitSet("two", parse_limits("5/minute"))]
KEYS = ("ann", "bob", "eve")

moves = st.one_of(
    st.tuples(st.just("hit"), st.sampled_from(KEYS), st.integers(0, 3)),
    st.tuples(st.just("both"), st.sampled_from(KEYS), st.integers(0, 6)),
    st.tuples(st.just("reset"), st.sampled_from(KEYS), st.just(0)),
    st.tuples(st.just("wait"), st.just(""), st.integers(1, 70)),
)


@given(st.lists(moves, max_size=60))
@example([("hit", "ann", 0), ("wait", "", 12), ("hit", "bob", 0), ("wait", "", 1), ("reset", "ann", 0)])
def test_a_store_that_has_forgotten_everything_has_room_for_everybody(moves: list[tuple[str, str, int]]) -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock, max_keys=4)
    for move, key, number in moves:
        if move == "wait":
            clock.advance(us=number * 1_000_000)
        elif move == "reset":
            store.reset(key)
        else:
            store.hit([(rule, key, number) for rule in RULES[: 2 if move == "both" else 1]])
    store.reset_all()
    assert store.stats().keys == 0
    shared = store.stats().shared_hits
    for number in range(4):
        assert store.hit(((RULES[1], f"user:{number}", 1),))
    assert store.stats().shared_hits == shared, "each has a window of its own"
