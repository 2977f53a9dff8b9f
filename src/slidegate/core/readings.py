"""The readings of a decision: what each limit has left, and which limit binds.

A store returns a bare `WindowState` for each window. Names and spans are computed when they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nlargest
from itertools import islice
from typing import Final, NamedTuple, TypeAlias, TypeVar

from .buckets import Bucket, Check
from .limits import AnyLimit
from .ring import WindowState

_ENDLESS: Final = 2**62
"""Longer than any finite wait. `OPEN` and `NEVER`, which is the longer one, are added to it."""

_T = TypeVar("_T")
_LimitReading: TypeAlias = tuple[Bucket, str, int, int, _T]
"""The bucket, the key, the index of a limit in the bucket, the cost, and the reading of its window."""


class LimitState(NamedTuple):
    """The window of a key under one limit, as a decision has left it. All spans are microseconds from then."""

    name: str
    rule: str
    key: str
    limit: AnyLimit
    remaining: int
    """Units left, never below 0."""
    retry_after_us: int | None
    """How long this limit refuses the request's cost: 0 if it does not, None if for ever or until others are back:
    permits, or what requests under way may hand back."""
    more_after_us: int
    """How long until the oldest spent unit leaves; 0 if nothing is spent, and for permits."""
    reset_after_us: int
    """How long until all spent units have left; 0 if nothing is spent, and for permits."""
    used: int
    """Units that count now."""
    label: str
    """The name of the rule in stats."""
    shadow: bool
    """Whether the rule only reports, and never refuses."""


def state_of(limit_read: _LimitReading[WindowState], now_us: int) -> LimitState:
    """Return the state of a limit, given the reading of its window at a time."""
    bucket, key, at, _, (spent, leaves_us, mark, wait_us) = limit_read
    limit = bucket.limits[at]
    more_after_us = reset_after_us = 0
    # Permits have no times: all of theirs are 0.
    if spent:
        more_after_us = max(leaves_us - now_us, 0)
        reset_after_us = more_after_us
        # The units of a window leave after their moments, the newest last. Those of a quota, whose span is 0, leave
        # together.
        if limit.span_us:
            reset_after_us = max(mark + limit.span_us - now_us, 0)
    retry_after_us: int | None = wait_us
    if wait_us < 0:
        retry_after_us = None
    return LimitState(
        bucket.names[at],
        bucket.name,
        key,
        limit,
        remaining=max(limit.amount - spent, 0),
        retry_after_us=retry_after_us,
        more_after_us=more_after_us,
        reset_after_us=reset_after_us,
        used=spent,
        label=bucket.label,
        shadow=bucket.shadow,
    )


def tightest_of(checks: Sequence[Check], readings: Sequence[WindowState], most: int) -> Sequence[int]:
    """Return the indices of the tightest limits, in the order of the checks.

    Args:
        most: How many to return at most.
    """
    if len(readings) <= most:
        return range(len(readings))
    limits = limits_read(checks, readings)
    return sorted(nlargest(most, range(len(limits)), key=lambda at: tightness(limits[at])))


def limits_read(checks: Sequence[Check], readings: Sequence[_T]) -> list[_LimitReading[_T]]:
    """Return each limit of some checks with the reading of its window; none if no limit was checked."""
    if not readings:
        return []
    limits = [(bucket, key, at, cost) for bucket, key, cost in checks for at in range(len(bucket.limits))]
    return [(*limit, reading) for limit, reading in zip(limits, readings, strict=True)]


def by_check(checks: Sequence[Check], readings: Iterable[WindowState]) -> list[Sequence[WindowState]]:
    """Return the readings of each check, given those of all limits in order."""
    rest = iter(readings)
    return [[*islice(rest, len(bucket.limits))] for bucket, _, _ in checks]


def tightness(limit: _LimitReading[WindowState]) -> tuple[int, float, int]:
    """Rank a limit: by its wait, then by how few further requests of this cost it admits, then by its oldest units."""
    bucket, _, at, cost, (spent, leaves_us, _, wait_us) = limit
    if wait_us < 0:
        wait_us += _ENDLESS
    remaining = bucket.limits[at].amount - spent
    # A cost of 0 counts as 1: it means that the cost is only known after the request.
    return wait_us, -remaining / max(cost, 1), leaves_us


def ceil_s(span_us: int) -> int:
    """Round microseconds up to whole seconds."""
    return -(-span_us // 1_000_000)
