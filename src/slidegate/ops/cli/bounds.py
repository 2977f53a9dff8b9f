"""What limits admit in a span, and when a client may retry: the arithmetic of ``slidegate explain LIMITS``.

The bound follows from the ring. Units of an exact limit expire W after they were spent, so a span T contains at most N
units for each window W that begins in it. With slices of length s, any k + 1 consecutive slices contain at most N
units. A span T touches the most slices, 1 + ceil((T - 1) / s), if it begins with the last microsecond of a slice. The
worst case is a burst in that microsecond, and another as soon as k slices have passed.

For one limit the bound is tight: a client that sends each request as soon as it is allowed reaches it. For several
limits, the lowest of their bounds is returned, which may not be reachable.
"""

from __future__ import annotations

from collections.abc import Sequence

from ... import Limit


def most_units(limits: Sequence[Limit], span_us: int) -> int:
    """Return an upper bound of the units of one client in any half-open span.

    Args:
        limits: The limits, which all apply; at least one.
        span_us: The length of the span in microseconds, at least 1.
    """
    return min(_most_under(limit, span_us) for limit in limits)


def wait_after_burst_us(limits: Sequence[Limit]) -> tuple[int, int]:
    """Return the shortest and the longest wait after the largest possible burst.

    They differ for limits that count in slices: a burst late in its slice waits less than an early one.
    """
    burst = min(limit.amount for limit in limits)
    spent = [limit for limit in limits if limit.amount == burst]
    return max(map(_shortest_wait_us, spent)), max(map(_longest_wait_us, spent))


def steady_us(limits: Sequence[Limit]) -> int:
    """Return the shortest interval between the requests of a client that is never refused."""
    return max(-(-_longest_wait_us(limit) // limit.amount) for limit in limits)


def _most_under(limit: Limit, span_us: int) -> int:
    if limit.exact:
        return -(-span_us // limit.window_us) * limit.amount
    touched = 1 - (1 - span_us) // limit.slice_us
    return -(-touched // (limit.slices + 1)) * limit.amount


def _shortest_wait_us(limit: Limit) -> int:
    return limit.window_us if limit.exact else limit.slices * limit.slice_us + 1


def _longest_wait_us(limit: Limit) -> int:
    return limit.window_us if limit.exact else (limit.slices + 1) * limit.slice_us
