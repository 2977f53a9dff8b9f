"""Which of several decisions about one request matters most."""

from __future__ import annotations

from collections.abc import Iterable
from math import lcm

from ...core.decision import Decision, LimitState


def tightest(decisions: Iterable[Decision]) -> Decision:
    """Return the decision that matters most to the client: a refusal, else the one after which the fewest more such
    requests fit."""
    asked = [(decision, decision.binding) for decision in decisions]
    # Units that are left are compared as numbers of requests, whose costs differ; a common multiple keeps them whole.
    multiple = lcm(*(max(state.cost, 1) for _, state in asked if state is not None))
    return min(asked, key=lambda pair: _order(pair[0], pair[1], multiple))[0]


def _order(decision: Decision, state: LimitState | None, multiple: int) -> tuple[bool, bool, int, int]:
    if state is None:
        return decision.allowed, True, 0, 0
    return decision.allowed, False, state.remaining * multiple // max(state.cost, 1), -state.more_after_us
