"""The promises of the two rings, on random traffic.

Each property takes the code under test as a `Kit`, so that `test_mutations` can show that broken code fails it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate.core import NEVER, Limit, new_window
from slidegate.testing.contract.programs import YEAR_2100_US, Dice
from slidegate.testing.reference.model_window import Answer, Charge, ModelWindow


class Kit(NamedTuple):
    """The code under test: how limits and rings are made."""

    limit: Callable[..., Any] = Limit
    window: Callable[[Any], Any] = new_window


class Demand(NamedTuple):
    """After `span_us`, which is negative where the clock steps back, ask for `cost` or hand back an earlier charge."""

    span_us: int
    cost: int
    refund: int | None = None


class Traffic(NamedTuple):
    """A limit, the time at first, and demands."""

    amount: int
    window_us: int
    resolution: int
    start_us: int
    demands: list[Demand]

    def limit(self, kit: Kit) -> Any:
        window = timedelta(microseconds=self.window_us)
        return kit.limit(self.amount, window, resolution=self.resolution)


def traffic(rolled: bytes) -> Traffic:
    """Make traffic out of drawn bytes; time goes on."""
    dice = Dice(rolled)
    limit = dice.limit()
    start_us = dice.pick((0, dice.below(10**9), YEAR_2100_US))
    demands = []
    while dice:
        span_us = dice.span_us([limit])
        demands.append(Demand(dice.pick((0, span_us, span_us)), dice.cost([limit])))
    return Traffic(limit.amount, limit.window_us, limit.resolution, start_us, demands)


def unsteady(rolled: bytes) -> Traffic:
    """Make traffic with a clock that now and then steps back, and with refunds: the last bytes say where."""
    made, dice = traffic(rolled), Dice(rolled[::-1])
    for number, demand in enumerate(made.demands):
        turn = dice.below(16)
        if turn == 1:
            made.demands[number] = demand._replace(span_us=-demand.span_us)
        elif 2 <= turn < 5:
            made.demands[number] = demand._replace(refund=turn - 2)
    return made


BYTES = st.one_of(st.binary(max_size=60), st.binary(min_size=200, max_size=1_000))
TRAFFIC = BYTES.map(traffic)
UNSTEADY = BYTES.map(unsteady)


class Asked(NamedTuple):
    """One demand and the answer to it."""

    now_us: int
    cost: int
    wait_us: int
    before: Any
    """A copy of the ring as it was before."""


def run(kit: Kit, made: Traffic) -> Iterator[Asked]:
    """Ask for everything, the clock never stepping back."""
    window, now_us = kit.window(made.limit(kit)), made.start_us
    for demand in made.demands:
        now_us += demand.span_us
        before = copy(window)
        *_, wait_us = window.spend(now_us, made.amount, demand.cost)
        yield Asked(now_us, demand.cost, wait_us, before)


def answer_of(limit: Any, reading: tuple[int, int, int, int], now_us: int) -> Answer:
    """Read a ring's numbers as a `Decision` does."""
    spent, leaves_us, newest_us, wait_us = reading
    return Answer(
        max(limit.amount - spent, 0),
        None if wait_us == NEVER else wait_us,
        leaves_us - now_us if spent else 0,
        newest_us + limit.span_us - now_us if spent else 0,
    )


# -- the properties ------------------------------------------------------------------------------------------------


def agrees_with_the_reference(kit: Kit, made: Traffic) -> None:
    """Every number is the one that a plain list of charges gives, also when the clock steps back or units come back."""
    limit = made.limit(kit)
    window, model = kit.window(limit), ModelWindow(made.window_us, made.resolution)
    now_us = made.start_us
    charged: list[tuple[int, Charge]] = []
    for demand in made.demands:
        now_us = max(now_us + demand.span_us, 0)
        if demand.span_us < 0:
            charged.clear()  # a charge that is moved to another time cannot be found again
        model.touch(made.amount, now_us)
        if demand.refund is not None and charged:
            spent_us, charge = charged.pop(-1 - demand.refund % len(charged))
            known = charge in model.charges
            assert window.remove(now_us, spent_us, charge.cost) is known
            if known:
                model.charges.remove(charge)
        assert window.total(now_us) == model.spent(now_us)
        wait_us = model.wait_us(made.amount, demand.cost, now_us)
        if wait_us == 0 and demand.cost:
            model.charges.append(Charge(now_us, demand.cost))
            charged.append((now_us, model.charges[-1]))
        reading = window.spend(now_us, made.amount, demand.cost)
        assert answer_of(limit, reading, now_us) == model.answer(made.amount, wait_us, now_us), demand


def keeps_the_bound(kit: Kit, made: Traffic) -> None:
    """Promise 1: no half-open interval as long as the window holds more than the amount."""
    admitted = [asked for asked in run(kit, made) if not asked.wait_us]
    for first in admitted:
        end_us = first.now_us + made.window_us
        assert sum(asked.cost for asked in admitted if first.now_us <= asked.now_us < end_us) <= made.amount


def refuses_only_what_would_break_the_bound(kit: Kit, made: Traffic) -> None:
    """Promise 2: over k + 1 slices, or over the window itself where the resolution is no smaller than the amount."""
    slice_us = -(-made.window_us // made.resolution)
    slices = -(-made.window_us // slice_us)
    admitted: list[Asked] = []
    for asked in run(kit, made):
        if made.amount <= made.resolution:
            since_us = asked.now_us - made.window_us + 1
        else:
            since_us = (asked.now_us // slice_us - slices) * slice_us
        if asked.wait_us:
            recent = sum(earlier.cost for earlier in admitted if earlier.now_us >= since_us)
            assert recent + max(asked.cost, 1) > made.amount
            assert asked.now_us - since_us < made.window_us + 2 * slice_us
        else:
            admitted.append(asked)


def waits_exactly_as_long_as_it_says(kit: Kit, made: Traffic) -> None:
    """Promise 3: admitted after the wait, refused one microsecond earlier, and a cost above the amount never."""
    for asked in run(kit, made):
        assert (asked.wait_us == NEVER) is (asked.cost > made.amount)
        if asked.wait_us > 0:
            early, late = copy(asked.before), copy(asked.before)
            *_, refused_us = early.spend(asked.now_us + asked.wait_us - 1, made.amount, asked.cost)
            *_, admitted_us = late.spend(asked.now_us + asked.wait_us, made.amount, asked.cost)
            assert (refused_us, admitted_us) == (1, 0)


def refuses_for_free(kit: Kit, made: Traffic) -> None:
    """Promise 5: a window that was asked in vain says the same as one that was not asked."""
    for asked in run(kit, made):
        if asked.wait_us:
            spared, refused = copy(asked.before), copy(asked.before)
            refused.spend(asked.now_us, made.amount, asked.cost)
            for later_us in (0, 1, made.window_us // 3, made.window_us):
                at_us = asked.now_us + later_us
                assert refused.total(at_us) == spared.total(at_us)
                assert copy(refused).spend(at_us, made.amount, 1) == copy(spared).spend(at_us, made.amount, 1)


PROPERTIES = (
    agrees_with_the_reference,
    keeps_the_bound,
    refuses_only_what_would_break_the_bound,
    waits_exactly_as_long_as_it_says,
    refuses_for_free,
)


@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda holds: holds.__name__)
def test_a_ring(holds: Callable[[Kit, Traffic], None]) -> None:
    @given(TRAFFIC)
    def check(made: Traffic) -> None:
        holds(Kit(), made)

    check()


@given(UNSTEADY)
def test_a_ring_agrees_with_the_reference_when_the_clock_steps_back_and_units_come_back(made: Traffic) -> None:
    agrees_with_the_reference(Kit(), made)


@given(UNSTEADY)
def test_no_step_of_the_clock_freezes_a_key_longer_than_k_plus_1_slices(made: Traffic) -> None:
    limit = made.limit(Kit())
    window, now_us = new_window(limit), made.start_us
    for demand in made.demands:
        now_us = max(now_us + demand.span_us, 0)
        *_, wait_us = window.spend(now_us, made.amount, demand.cost)
        assert wait_us <= (limit.window_us if limit.exact else (limit.slices + 1) * limit.slice_us)


@given(UNSTEADY)
def test_a_step_back_never_revives_what_was_spent(made: Traffic) -> None:
    window, now_us = new_window(made.limit(Kit())), made.start_us
    for demand in made.demands:
        now_us = max(now_us + demand.span_us, 0)
        before = window.spent
        spent, *_, wait_us = window.spend(now_us, made.amount, demand.cost)
        if demand.span_us < 0:
            assert spent == before + (0 if wait_us else demand.cost)
