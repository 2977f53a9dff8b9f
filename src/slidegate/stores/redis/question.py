"""Questions: checks, and how they are packed; the store has one object for equal checks of one client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...core.bans.ban import BanSubject
from ...core.buckets import Check
from ...core.limits import Limit
from ...core.ring import Ring, Terms
from ..leases import HeldPermits
from .protocol import HIT, LEASE, Packed, Packing
from .requests import concern_permits

_LATELY_NS: Final = 1_100_000_000
"""A little longer than a lease lasts."""


class Question:
    """Checks and the subjects of bans, which remember how they are packed: packing takes half of a hit's time.

    Args:
        checks: The checks.
        subjects: Further keys and addresses whose bans refuse it.
        leases: Whether the store has leases.

    Attributes:
        checks: The checks, as a tuple.
        subjects: The argument.
        refusing: All keys and addresses whose bans refuse it.
        counts_denied: Whether a refusal is charged, so that it cannot be repeated.
        has_permits: See `Request`.
        may_lease: Whether units may be charged ahead: an admission takes units and no permit, and a refusal nothing.
        is_repeated: Whether it was asked twice in about a second, in a store with leases.
    """

    __slots__ = (
        "_asked_ns",
        "_remembered",
        "checks",
        "counts_denied",
        "has_permits",
        "is_repeated",
        "may_lease",
        "refusing",
        "subjects",
    )

    def __init__(self, checks: Sequence[Check], subjects: Sequence[BanSubject], *, leases: bool = False) -> None:
        self.checks = tuple(checks)
        self.subjects = subjects
        self.refusing: tuple[BanSubject, ...] = (*subjects, *[key for _, key, _ in checks])
        self.counts_denied = any(bucket.count_denied for bucket, _, _ in checks)
        self.has_permits = concern_permits(checks)
        is_free = not checks or not all(cost for _, _, cost in checks)
        self.may_lease = leases and not (self.counts_denied or self.has_permits or is_free)
        self._remembered: tuple[list[tuple[Ring, Terms]], Packed] | None = None
        """The counters of the limits, with the terms with which a hit is packed, and how; one for all threads."""
        self._asked_ns = 0
        self.is_repeated = False

    def pack(self, packing: Packing, held: HeldPermits) -> Packed:
        """Pack a hit. It is remembered while its limits have the same terms, unless it changes with time.

        Args:
            packing: Packs it.
            held: The permits of the worker that asks.
        """
        if self._remembered is not None:
            terms, packed = self._remembered
            if all(counter.terms is then for counter, then in terms):  # else an operator has changed the amount
                return packed
        limits = [limit for bucket, _, _ in self.checks for limit in bucket.limits]
        counters = [limit.counter for limit in limits if isinstance(limit, Limit)]
        terms = [(counter, counter.terms) for counter in counters]
        what = HIT
        if self.may_lease:
            what = LEASE
        packed = packing.question(what, self.checks, self.refusing, held)
        if len(counters) == len(limits):  # no quota, which depends on the time, and no permits
            self._remembered = terms, packed
        return packed

    def note_asked(self, now_ns: int) -> None:
        """Record the time of a hit (monotonic)."""
        self.is_repeated = now_ns - self._asked_ns < _LATELY_NS
        self._asked_ns = now_ns
