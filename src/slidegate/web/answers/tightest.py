"""Which of several decisions about one request matters most."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Final

from ...core.decision import Decision

_NONE: Final = Fraction(0)


def tightest(decisions: Iterable[Decision]) -> Decision:
    """Return the decision that matters most to the client: a refusal, else the one after which the fewest more such
    requests fit."""
    return min(decisions, key=_order)


def _order(decision: Decision) -> tuple[bool, bool, Fraction, int]:
    state = decision.binding
    if state is None:
        return decision.allowed, True, _NONE, 0
    return decision.allowed, False, Fraction(state.remaining, max(state.cost, 1)), -state.more_after_us
