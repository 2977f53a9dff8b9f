"""The steps of the window theorem, each by z3 in milliseconds; the whole of it is proofs/window.v, which Coq checks.

Take any interval [x, x + W). A charge is *near* if its slice reaches into the interval: it was made before the interval
ends, and its moment is not before x. Of all near charges together, `used` units were used in the interval, `unused` are
leased and not used yet, and `kept` is what the ring still has of them. The invariant is

    used + unused <= kept <= N    and    used, unused >= 0

so no more than N are used in the interval. Each step of a store and of a worker keeps it: z3 is asked for numbers with
which a step breaks it, over all integers, and finds none.
"""

from typing import Any

import pytest

from slidegate.stores.redis.unit_leases import CLOCK_ERROR, ROUNDING_US

z3 = pytest.importorskip("z3", reason="z3-solver publishes no wheel for this interpreter and system")

W, s, span, N, x, k = z3.Ints("W s span N x k")
at, moment, now, use = z3.Ints("at_us moment_us now_us use_us")
used, unused, kept, others, units = z3.Ints("used unused kept others units")

LIMIT = z3.And(W > 0, s > 0, span >= W, N >= 0)
CHARGE = z3.And(at <= moment, moment < at + s)
NEAR = z3.And(at < x + W, moment >= x)
INVARIANT = z3.And(used >= 0, unused >= 0, used + unused <= kept, kept <= N)


def after(**changed: Any) -> Any:
    """Return the invariant of the numbers after a step."""
    before = {"used": used, "unused": unused, "kept": kept}
    return z3.substitute(INVARIANT, *[(before[name], value) for name, value in changed.items()])


def counterexample(premise: Any, conclusion: Any) -> Any:
    """Return numbers for which the premise is true and the conclusion false, None if there are none."""
    solver = z3.Solver()
    solver.add(premise, z3.Not(conclusion))
    answer = solver.check()
    assert answer != z3.unknown
    return solver.model() if answer == z3.sat else None


STEPS = {
    "a near charge counts until the interval ends": (z3.And(LIMIT, CHARGE, NEAR, now < x + W), now < moment + span),
    "a unit that is used in the interval is of a near charge": (
        z3.And(LIMIT, CHARGE, at <= use, use <= moment, x <= use, use < x + W),
        NEAR,
    ),
    # All near charges count at the time of a new one, so the ring says `kept` and the units of others, perhaps debts.
    "a store admits a request, which uses its units at once": (
        z3.And(LIMIT, CHARGE, NEAR, INVARIANT, others >= 0, units >= 1, units + kept + others <= N),
        after(kept=kept + units, used=used + units),
    ),
    "a store admits a lease, whose units are not used yet": (
        z3.And(LIMIT, CHARGE, NEAR, INVARIANT, others >= 0, units >= 1, units + kept + others <= N),
        after(kept=kept + units, unused=unused + units),
    ),
    "a worker uses a unit of its lease": (z3.And(INVARIANT, unused >= 1), after(used=used + 1, unused=unused - 1)),
    "a worker hands units of its lease back": (
        z3.And(INVARIANT, units >= 1, units <= unused),
        after(kept=kept - units, unused=unused - units),
    ),
    "a request is refunded": (
        z3.And(INVARIANT, units >= 1, units <= used),
        after(kept=kept - units, used=used - units),
    ),
    "k slices and a microsecond, where k slices are at least a window, cover it": (
        z3.And(W > 0, s > 0, k * s >= W),
        k * s + 1 >= W,
    ),
    "a unit of an exact limit is used at the time of its charge": (
        z3.And(CHARGE, s == 1, at <= use, use <= moment),
        use == at,
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_every_step_keeps_the_invariant(step: str) -> None:
    assert counterexample(*STEPS[step]) is None


sent, charged, came, length, part = z3.Ints("sent charged came length part")
CLOCKS = z3.And(
    sent <= charged,
    # The clock of the worker goes at most this much slower than that of the store; both are rounded down.
    (use - at - 1) * CLOCK_ERROR <= (came - charged + 1) * (CLOCK_ERROR + 1),
    length >= 0,
    moment == at + length,
    part * CLOCK_ERROR <= length,
    length < (part + 1) * CLOCK_ERROR,
)
"""A lease of `length` microseconds, less `part`; a unit is used when the worker's clock says `came`."""


def test_what_a_worker_spends_before_its_lease_ends_it_spends_in_the_slice() -> None:
    assert counterexample(z3.And(CLOCKS, came < sent + length - part - ROUNDING_US), use < moment) is None


# Each is a rule of the proof that is broken by a little.
WRONG = {
    "units that count for a microsecond less than a window": (
        z3.And(CHARGE, NEAR, W > 0, s > 0, span == W - 1, now < x + W),
        now < moment + span,
    ),
    "a unit that is used a microsecond after its moment": (
        z3.And(LIMIT, CHARGE, at <= use, use <= moment + 1, x <= use, use < x + W),
        NEAR,
    ),
    "a charge that is admitted beside one unit too many": (
        z3.And(LIMIT, INVARIANT, units >= 1, units + kept <= N + 1),
        after(kept=kept + units, used=used + units),
    ),
    "a lease that is handed back and used": (
        z3.And(INVARIANT, unused >= 1),
        after(kept=kept - 1, used=used + 1, unused=unused - 1),
    ),
    "a lease that is not shortened by what the clock may be slow": (
        z3.And(CLOCKS, came < sent + length - ROUNDING_US),
        use < moment,
    ),
}


@pytest.mark.parametrize("rule", WRONG)
def test_a_rule_that_is_broken_by_a_little_has_a_counterexample(rule: str) -> None:
    assert counterexample(*WRONG[rule]) is not None
