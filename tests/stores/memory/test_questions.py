"""Prepared questions of a memory store find their windows and keep none of them; what is held is what is counted."""

import gc
import random
import tracemalloc

from hypothesis import example, given
from hypothesis import strategies as st

from slidegate import MemoryStore, Quota
from slidegate.core import Bucket, parse_limits
from slidegate.testing import FakeClock

RULES = [
    Bucket("one", parse_limits("3/10s; 9/minute")),
    Bucket("two", parse_limits("200/5s")),
    Bucket("plan", parse_limits(Quota("4/day"))),
]
KEYS = ("ann", "bob", "eve")
SUBJECTS = ("192.0.2.7", (4, 0xC0000207))
"""The key and the address of the client that asks every question."""
BANNED = ("ann", "eve", "192.0.2.7", "192.0.2.0/24", "198.51.100.0/24")

asked = st.lists(st.tuples(st.sampled_from(RULES), st.sampled_from(KEYS), st.integers(0, 3)), min_size=1, max_size=3)
moves = st.one_of(
    st.tuples(st.just("hit"), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.integers(1, 20)),
    st.tuples(st.just("wait"), st.just(200_000)),
    st.tuples(st.just("reset"), st.integers(0, 2)),
    st.tuples(st.just("all"), st.just(0)),
    st.tuples(st.sampled_from(["ban", "unban"]), st.integers(0, len(BANNED) - 1)),
)


@example([[(RULES[0], "ann", 1)]] * 4, [("ban", 1), ("hit", 0), ("ban", 0), ("hit", 0)], 100)
@given(st.lists(asked, min_size=4, max_size=4), st.lists(moves, max_size=40), st.sampled_from([1, 3, 100, 20_000]))
def test_a_question_is_answered_as_its_checks_are_by_a_twin(
    questions: list[list[tuple[Bucket, str, int]]], moves: list[tuple[str, int]], max_keys: int
) -> None:
    clock = FakeClock(1_000_000_000)
    one, twin = (MemoryStore(clock=clock, max_keys=max_keys) for _ in range(2))
    one._secret = twin._secret  # keys without room meet in the same cells
    prepared = [one.prepare(question, SUBJECTS) for question in questions]
    for move, number in moves:
        if move == "hit":
            decision, expected = one.ask(prepared[number]), twin.hit(questions[number], SUBJECTS)
            assert (decision.reason, decision.readings) == (expected.reason, expected.readings)
        elif move == "wait":
            clock.advance(us=number * 1_000_000)
        elif move == "reset":
            assert one.reset(KEYS[number]) is twin.reset(KEYS[number])
        elif move == "ban":
            made, expected_ban = (store.bans.ban(BANNED[number], 9_000_000, "", "op") for store in (one, twin))
            assert made == expected_ban
        elif move == "unban":
            assert one.bans.unban(BANNED[number], "op") is twin.bans.unban(BANNED[number], "op")
        else:
            assert one.reset_all() is twin.reset_all()
    assert one.key_count() == twin.key_count()


def test_questions_keep_no_windows_that_were_swept_or_reset(rng: random.Random) -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    bucket = Bucket("rule", parse_limits("64/hour"))
    keys = [f"client-{rng.random()}" for _ in range(2_000)]

    def held() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    def spend() -> int:
        for key in keys:
            for _ in range(30):
                clock.advance(us=1)
                store.hit(((bucket, key, 1),))
        return held()

    tracemalloc.start()
    try:
        questions = [store.prepare(((bucket, key, 1),)) for key in keys]
        for question in questions:
            store.ask(question)
        store.reset_all()
        before = held()
        spent = spend() - before
        store.reset_all()
        assert held() - before < spent / 10
        assert spend() - before > spent / 2
        other = Bucket("other", bucket.limits)
        for _ in range(200):
            clock.advance("1h")
            store.hit(((other, "bob", 1),))
        assert held() - before < spent / 10
    finally:
        tracemalloc.stop()
    assert store.key_count() < 9, "its table is gone"
    assert [store.ask(question).remaining for question in questions] == [63] * len(questions)
    assert {store.hit(((bucket, key, 1),)).remaining for key in keys} == {62}
