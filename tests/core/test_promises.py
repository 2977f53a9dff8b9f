"""The promises about one window, on random traffic, as a store keeps them.

Every answer is compared with the reference by the contract of stores; here the promises are written down by themselves.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from hypothesis import given

from slidegate import Decision, Limit, MemoryStore
from slidegate.core import Bucket
from slidegate.testing import FakeClock

from ..contract.programs import YEAR_2100_US, Choices, drawn


class Traffic(NamedTuple):
    """A limit, the time at first, and questions: the span before each, negative for a step back, and its cost."""

    limit: Limit
    start_us: int
    questions: list[tuple[int, int]]


def traffic(dice: Choices, steps_back: bool = False) -> Traffic:
    """Make traffic by choices; time goes on, or now and then `steps_back`."""
    limit = dice.limit()
    start_us = dice.pick((0, dice.below(10**9), YEAR_2100_US))
    questions = []
    while dice:
        span_us = dice.span_us([limit])
        direction = -1 if steps_back and dice.below(16) == 1 else 1
        questions.append((direction * dice.pick((0, span_us, span_us)), dice.cost([limit])))
    return Traffic(limit, start_us, questions)


CHOICES = drawn(200, 1_000)
TRAFFIC = CHOICES.map(traffic)
UNSTEADY = CHOICES.map(partial(traffic, steps_back=True))


class Key:
    """One key under one limit in a store."""

    def __init__(self, limit: Limit, start_us: int) -> None:
        self.clock = FakeClock(start_us)
        self.store = MemoryStore(clock=self.clock)
        self.bucket = Bucket("rule", (limit,))

    def hit(self, cost: int) -> Decision:
        return self.store.hit(((self.bucket, "ann", cost),))

    def look(self, after_us: int, cost: int) -> Decision:
        """Ask without charging what would be answered later."""
        self.clock.advance(us=after_us)
        seen = self.store.peek(((self.bucket, "ann", cost),))
        self.clock.advance(us=-after_us)
        return seen


class Hit(NamedTuple):
    """One question, the answer to it, and the key afterwards."""

    now_us: int
    cost: int
    answer: Decision
    key: Key


def run(made: Traffic) -> Iterator[Hit]:
    key = Key(made.limit, made.start_us)
    for span_us, cost in made.questions:
        key.clock.set(max(key.clock() + span_us, 0))
        yield Hit(key.clock(), cost, key.hit(cost), key)


@given(TRAFFIC)
def test_no_window_holds_more_than_the_amount(made: Traffic) -> None:
    """Promise 1: no half-open interval as long as the window holds more than the amount."""
    admitted = [one for one in run(made) if one.answer]
    for first in admitted:
        end_us = first.now_us + made.limit.window_us
        assert sum(one.cost for one in admitted if first.now_us <= one.now_us < end_us) <= made.limit.amount


@given(TRAFFIC)
def test_only_what_would_break_the_bound_is_refused(made: Traffic) -> None:
    """Promise 2: over k + 1 slices, or over the window itself where the resolution is no smaller than the amount."""
    limit = made.limit
    slice_us = -(-limit.window_us // limit.resolution)
    slices = -(-limit.window_us // slice_us)
    admitted: list[Hit] = []
    for one in run(made):
        if limit.amount <= limit.resolution:
            since_us = one.now_us - limit.window_us + 1
        else:
            since_us = (one.now_us // slice_us - slices) * slice_us
        if one.answer:
            admitted.append(one)
        else:
            recent = sum(earlier.cost for earlier in admitted if earlier.now_us >= since_us)
            assert recent + max(one.cost, 1) > limit.amount
            assert one.now_us - since_us < limit.window_us + 2 * slice_us


@given(TRAFFIC)
def test_a_refusal_says_exactly_how_long_to_wait(made: Traffic) -> None:
    """Promise 3: admitted after the wait, refused one microsecond earlier, and a cost above the amount never."""
    for one in run(made):
        wait_us = one.answer.retry_after_us
        assert (wait_us is None) is (one.cost > made.limit.amount)
        if wait_us:
            assert one.key.look(wait_us - 1, one.cost).retry_after_us == 1
            assert one.key.look(wait_us, one.cost)


@given(TRAFFIC)
def test_a_refusal_costs_nothing(made: Traffic) -> None:
    """Promise 5: a window that was asked in vain says the same as one that was not asked."""
    spared = Key(made.limit, made.start_us)
    for one in run(made):
        spared.clock.set(one.now_us)
        if one.answer:
            spared.hit(one.cost)
            continue
        for later_us in (0, 1, made.limit.window_us // 3, made.limit.window_us):
            for cost in (0, 1):
                assert one.key.look(later_us, cost).states == spared.look(later_us, cost).states


@given(UNSTEADY)
def test_no_step_of_the_clock_freezes_a_key_longer_than_k_plus_1_slices(made: Traffic) -> None:
    limit = made.limit
    longest_us = limit.window_us if limit.exact else (limit.slices + 1) * limit.slice_us
    assert all((one.answer.retry_after_us or 0) <= longest_us for one in run(made))


@given(UNSTEADY)
def test_a_step_back_never_revives_what_was_spent(made: Traffic) -> None:
    left, before_us = made.limit.amount, made.start_us
    for one in run(made):
        remaining = one.answer.remaining
        assert remaining is not None
        if one.now_us < before_us:
            assert remaining == left - (one.cost if one.answer else 0)
        left, before_us = remaining, one.now_us
