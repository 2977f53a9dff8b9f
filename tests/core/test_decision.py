"""Decisions: one answer, from which everything else is read."""

import pytest

from slidegate.core import NEVER, Bucket, Decision, Limit, Reason, parse_limits
from slidegate.core.decision import Check
from slidegate.stores.memory.store import MemoryStore
from slidegate.testing import FakeClock

SECOND_US = 1_000_000
NOW_US = 1_000 * SECOND_US


def check(limits: str, cost: int = 1) -> Check:
    return Bucket("api", parse_limits(limits)), "ann", cost


def test_an_admission_tells_what_is_left_and_when_more_comes() -> None:
    state = 2, NOW_US + 20 * SECOND_US, NOW_US - 10 * SECOND_US, 0
    decision = Decision(True, Reason.OK, NOW_US, [check("5/minute")], [state])
    assert decision.allowed
    assert bool(decision) is True
    assert decision.reason == "ok"
    assert decision.binding is not None
    assert decision.binding.limit == Limit(5, "1m")
    assert (decision.remaining, decision.retry_after, decision.retry_after_us) == (3, 0, 0)
    assert decision.states[0].more_after_us == 20 * SECOND_US
    assert (decision.reset_after, decision.reset_after_us) == (50, 50 * SECOND_US)
    assert decision.violated == ()
    assert repr(decision) == "<Decision ok limit=5/1m remaining=3 retry_after_us=0 reset_after_us=50000000>"
    assert repr(decision.checks[0][0]) == "<Bucket 'api' 5/1m>"


@pytest.mark.parametrize(("span_us", "seconds"), [(1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2)])
def test_spans_are_rounded_up_to_whole_seconds(span_us: int, seconds: int) -> None:
    decision = Decision(False, Reason.LIMITED, 0, [check("1/hour")], [(1, span_us, 0, span_us)])
    assert (decision.retry_after_us, decision.retry_after) == (span_us, seconds)


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


@pytest.mark.parametrize(
    ("reason", "allowed", "retry_after"),
    [(Reason.BLOCKED, False, None), (Reason.ALLOWLISTED, True, 0), (Reason.EXEMPT, True, 0)],
)
def test_a_decision_without_limits_has_no_numbers(reason: Reason, allowed: bool, retry_after: int | None) -> None:
    decision = Decision(allowed, reason)
    assert decision.retry_after == retry_after
    assert (decision.binding, decision.remaining, decision.states) == (None, None, ())
    assert (decision.reset_after, decision.reset_after_us) == (0, 0)


def test_states_name_their_rule_key_and_limit_in_the_order_asked() -> None:
    first, second = Bucket("login", parse_limits("5/m; 50/h")), Bucket("api", parse_limits("9/s"))
    checks: list[Check] = [(first, "ann", 1), (second, "everyone", 2)]
    decision = Decision(True, Reason.OK, 0, checks, [(1, 1, 0, 0), (2, 1, 0, 0), (3, 1, 0, 0)])
    assert [(state.name, state.rule, state.key, state.remaining) for state in decision.states] == [
        ("login_60", "login", "ann", 4),
        ("login_3600", "login", "ann", 48),
        ("api", "api", "everyone", 6),
    ]


def test_taking_back_one_check_leaves_the_others() -> None:
    login, service = Bucket("login", parse_limits("5/m; 50/h")), Bucket("service", parse_limits("100/s"))
    readings = [(2, 60, 9, 0), (2, 99, 9, 0), (7, 50, 9, 0)]
    decision = Decision(True, Reason.OK, 5, [(login, "ann", 2), (service, "all", 1)], readings, None)
    (part,) = decision.begin_refund(0)
    assert (part.check, part.marks, part.units) == ((login, "ann", 2), [9, 9], [2, 2])
    assert [state.remaining for state in decision.states] == [5, 50, 93]
    assert [(part.index, part.units) for part in decision.begin_refund()] == [(1, [1])]
    assert readings[0] == (2, 60, 9, 0), "the states of the store are not touched"


def test_a_refusal_that_bans_lasts_as_long_as_the_ban() -> None:
    refusal = Decision(False, Reason.LIMITED, 0, [check("5/minute")], [(5, 20 * SECOND_US, 0, 20 * SECOND_US)])
    for ban_us, retry_after in ((77 * SECOND_US, 77), (SECOND_US, 20)):
        refusal.at_least_us = ban_us
        assert (refusal.allowed, refusal.retry_after) == (False, retry_after)
    endless = Decision(False, Reason.TOO_LARGE, 0, [check("5/minute", 6)], [(5, 20 * SECOND_US, 0, NEVER)])
    endless.at_least_us = SECOND_US
    assert endless.retry_after is None
