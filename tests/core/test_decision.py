"""Decisions whose charges change, and the memo of questions; what is read of a decision is in values.txt."""

from hypothesis import example, given
from hypothesis import strategies as st

from slidegate import Decision, MemoryStore, parse_limits
from slidegate.core import Bucket, Check, Reason
from slidegate.core.memo import key_bytes, remember
from slidegate.testing import FakeClock

from ..contract.programs import SECOND_US

NOW_US = 1_000 * SECOND_US


def check(limits: str, cost: int = 1) -> Check:
    return Bucket("api", parse_limits(limits)), "ann", cost


def test_a_later_charge_is_shown_and_what_was_admitted_can_still_be_refunded() -> None:
    clock, tokens = FakeClock(NOW_US), Bucket("tokens", parse_limits("7/minute @1"))
    store, checks = MemoryStore(clock=clock), [check("9/minute @1"), (tokens, "ann", 2)]
    admitted = store.hit(checks)
    clock.advance("70s")
    admitted.recount(1, store.charge([(tokens, "ann", 3)]))
    shown = [(state.used, state.reset_after_us) for state in admitted.states]
    assert shown == [(1, 80 * SECOND_US), (5, 70 * SECOND_US)], "slices are whole minutes, counted for another one"
    assert store.refund(admitted.begin_refund(1))
    assert [state.used for state in (*admitted.states, *store.peek(checks).states)] == [1, 3, 2, 5]


def test_taking_back_one_check_leaves_the_others() -> None:
    login, service = Bucket("login", parse_limits("5/m; 50/h")), Bucket("service", parse_limits("100/s"))
    readings = [(2, 60, 9, 0), (2, 99, 9, 0), (7, 50, 9, 0)]
    decision = Decision(True, Reason.OK, 5, [(login, "ann", 2), (service, "all", 1)], readings, None)
    (part,) = decision.begin_refund(0)
    assert (part.check, part.marks, part.units) == ((login, "ann", 2), [9, 9], [2, 2])
    assert [(state.name, state.rule, state.key, state.remaining) for state in decision.states] == [
        ("login_60", "login", "ann", 5),
        ("login_3600", "login", "ann", 50),
        ("service", "service", "all", 93),
    ]
    assert [(part.index, part.units) for part in decision.begin_refund()] == [(1, [1])]
    assert readings[0] == (2, 60, 9, 0), "the states of the store are not touched"


@example([*range(200)], 128)
@given(st.lists(st.integers(0, 500), max_size=400), st.integers(1, 300))
def test_a_full_memo_gives_up_a_few_of_its_oldest_entries(keys: list[int], max_size: int) -> None:
    memo: dict[int, int] = {}
    for key in dict.fromkeys(keys):
        before = list(memo)
        assert remember(memo, key, -key, max_size) == -key
        gone = len(before) + 1 - len(memo)
        assert len(memo) <= max_size
        assert gone <= 1 + max_size // 64
        assert gone == 0 or len(before) == max_size
        assert memo == {one: -one for one in [*before[gone:], key]}


def test_a_key_with_more_bytes_is_not_remembered() -> None:
    memo: dict[object, int] = {}
    most = key_bytes(("x" * 100, 5, None))
    for length in (100, 101):
        remember(memo, ("x" * length, 5, None), length, max_bytes=most)
    assert list(memo.values()) == [100]
