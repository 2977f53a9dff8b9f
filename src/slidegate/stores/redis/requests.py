"""Questions, and requests, which share script calls: how each is packed when it is sent, and how its answer is read."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ...core.bans.ban import BanSubject
from ...core.buckets import Check
from ...core.limits import Limit
from ...core.ring import Ring, Terms
from ..leases import HeldPermits
from .protocol import HIT, LEASE, Packed, Packing

_LATELY_NS: Final = 1_100_000_000
"""A little longer than a lease lasts."""
Read: TypeAlias = Callable[[Any, int], Any]
"""Returns a result, given the answer of the script, which is no failure, and the server's time in microseconds."""


@dataclass(slots=True, eq=False)
class Request(ABC):
    """What shares a script call with others.

    Attributes:
        future: Receives the result, unless it is cancelled.
        has_permits: Whether it is about permits, so that its call waits for the answers to others that are, too.
    """

    future: asyncio.Future[Any]
    has_permits: bool

    @abstractmethod
    def pack(self) -> Packed:
        """Pack it; called when it is sent."""

    @abstractmethod
    def deliver(self, answer: Any, now_us: int, sent_ns: int) -> None:
        """Deliver the answer.

        Args:
            answer: The answer of the script, which is no failure.
            now_us: The server's time.
            sent_ns: When it was sent (monotonic).
        """

    def is_awaited(self) -> bool:
        """Return whether anybody still awaits the result."""
        return not self.future.done()

    def answer(self, result: Any) -> None:
        """Complete the future with a result, unless it was cancelled."""
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        """Complete the future with an error, unless it was cancelled."""
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(slots=True, eq=False)
class Command(Request):
    """A request whose answer is the result, perhaps after it was read.

    Attributes:
        packer: Packs it.
        read: Returns the result. What it raises fails the request: a `StoreError` as it is, anything else as that of an
            unexpected answer.
    """

    packer: Callable[[], Packed]
    read: Read

    def pack(self) -> Packed:
        return self.packer()

    def deliver(self, answer: Any, now_us: int, sent_ns: int) -> None:
        self.answer(self.read(answer, now_us))


def read_page(answer: Any, now_us: int) -> tuple[bytes, Sequence[bytes]]:
    """Return the next cursor, and a page of names.

    Raises:
        ValueError: The answer is no pair.
        TypeError: It is none of these.
    """
    cursor, names = answer
    b"".join(names)
    return cursor, names


def concern_permits(checks: Iterable[Check]) -> bool:
    """Return whether some checks are about permits."""
    return any(bucket.is_permit for bucket, _, _ in checks)


class Question:
    """Checks and the subjects of bans, which remember how they are packed: packing takes half of a hit's time.

    The store has one object for equal checks of one client.

    Args:
        subjects: Further keys and addresses whose bans refuse it.
        leases: Whether the store has leases.

    Attributes:
        checks: The checks, as a tuple.
        refusing: All keys and addresses whose bans refuse it.
        counts_denied: Whether a refusal is charged, so that it cannot be repeated.
        has_permits: See `Request`.
        may_lease: Whether units may be charged ahead: an admission takes units and no permit, and a refusal nothing.
    """

    __slots__ = (
        "_asked_ns",
        "_remembered",
        "checks",
        "counts_denied",
        "has_permits",
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
        takes_units = min((cost for _, _, cost in checks), default=0) > 0
        self.may_lease = leases and takes_units and not (self.counts_denied or self.has_permits)
        self._remembered: tuple[list[tuple[Ring, Terms]], Packed] | None = None
        """The terms with which a hit was packed last, by counter, and how: in one, because threads share it."""
        self._asked_ns = 0

    def pack(self, packing: Packing, permits: HeldPermits) -> Packed:
        """Pack a hit. It is remembered while its limits have the same terms, unless it changes with time.

        Args:
            packing: Packs it.
            permits: The permits of the worker that asks.
        """
        if self._remembered is not None:
            terms, packed = self._remembered
            if all(counter.terms is then for counter, then in terms):  # else an operator has changed an amount
                return packed
        limits = [limit for bucket, _, _ in self.checks for limit in bucket.limits]
        counters = [limit.counter for limit in limits if isinstance(limit, Limit)]
        terms = [(counter, counter.terms) for counter in counters]
        what = HIT
        if self.may_lease:
            what = LEASE
        packed = packing.question(what, self.checks, self.refusing, permits)
        if len(counters) == len(limits):  # no quota, which depends on the time, and no permits
            self._remembered = terms, packed
        return packed

    def note_asked(self, now_ns: int) -> bool:
        """Record the time of a hit (monotonic); return whether there was another one in about a second."""
        before_ns, self._asked_ns = self._asked_ns, now_ns
        return now_ns - before_ns < _LATELY_NS
