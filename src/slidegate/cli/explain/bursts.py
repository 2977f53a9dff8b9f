"""The most that limits let through in a span of time, whenever the span begins.

Each ring binds in its own way (see `core.ring`). Units of a limit that keeps times leave W after they came,
so a span T holds at most N for each W that begins in it. Of a limit that counts in slices of s, any k + 1 slices that
follow each other hold at most N, and a span T that begins with the last microsecond of a slice touches
1 + ceil((T - 1) / s) slices: a burst there and another k slices later are closest.

One limit alone is used up to this number by a client that takes each unit as soon as it can. Several limits together
are bounded by cutting the span: whole rounds of one limit, and the rest under the others. That is never too low.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...core.limits import Limit

_MOST_CUT: Final = 6


def most_units(limits: Sequence[Limit], span_us: int) -> int:
    """Return a number of units that no client exceeds in any half-open span of that length.

    Args:
        limits: The limits, which all apply; at least one.
        span_us: The length, 0 or more.
    """
    if span_us <= 0:
        return 0
    best = min(_alone(limit, span_us) for limit in limits)
    # Each further limit doubles the ways to cut, and a limit that is left out makes no number too low.
    for limit in sorted(limits, key=lambda limit: _alone(limit, span_us))[:_MOST_CUT]:
        rounds, rest_us = _rounds(limit, span_us)
        shorter = [other for other in limits if _round_us(other) < _round_us(limit)]
        if rounds and shorter:
            best = min(best, rounds * limit.amount + most_units(shorter[:_MOST_CUT], rest_us))
    return best


def back_after_us(limits: Sequence[Limit]) -> tuple[int, int]:
    """Return the shortest and the longest wait of a client that has spent as much as it could at one moment.

    They differ where slices are counted: a burst late in its slice waits less than an early one.
    """
    burst = min(limit.amount for limit in limits)
    spent = [limit for limit in limits if limit.amount == burst]
    return max(map(_soonest_us, spent)), max(map(_round_us, spent))


def steady_us(limits: Sequence[Limit], units: int = 1) -> int:
    """Return the shortest time between two requests of a client that is never refused.

    Args:
        limits: The limits.
        units: The units of each request, at most the smallest amount.
    """
    return max(-(-_round_us(limit) // (limit.amount // units)) for limit in limits)


def _alone(limit: Limit, span_us: int) -> int:
    if limit.exact:
        return -(-span_us // limit.window_us) * limit.amount
    touched = 1 - (1 - span_us) // limit.slice_us
    return -(-touched // (limit.slices + 1)) * limit.amount


def _rounds(limit: Limit, span_us: int) -> tuple[int, int]:
    """Return how many times a limit can be spent whole within a span, and the length of the rest behind that."""
    round_us = _round_us(limit)
    # The first slice may be met with its last microsecond, so the rounds of slices take that much less of the span.
    saved_us = 0 if limit.exact else limit.slice_us - 1
    rounds = (span_us + saved_us) // round_us
    return rounds, span_us + saved_us - rounds * round_us


def _round_us(limit: Limit) -> int:
    return limit.window_us if limit.exact else (limit.slices + 1) * limit.slice_us


def _soonest_us(limit: Limit) -> int:
    return limit.window_us if limit.exact else limit.slices * limit.slice_us + 1
