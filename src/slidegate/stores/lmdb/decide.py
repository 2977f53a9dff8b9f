"""Decides, charges and refunds all windows of a demand at once, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import blake2b

from ...core.decide import Place as Where
from ...core.decide import charge_all, decide, refund_all
from ...core.decision import Bucket, Check, Decision
from ...core.limits import AnyLimit
from ...core.memo import remember
from ...core.views import Snapshot
from .places.own_places import OwnPlaces, Place
from .session import Session
from .window_rows import head_of, row_of


class Judge:
    """Decides demands. It remembers only the limits of each bucket, and what their rows are called and begin with.

    Args:
        held: The places of this process.
    """

    def __init__(self, held: OwnPlaces) -> None:
        self._held = held
        self._bound: dict[Bucket, tuple[tuple[bytes, bytes, AnyLimit], ...]] = {}

    def hit(self, checks: Sequence[Check], session: Session, *, first_in_line: bool = False) -> Decision:
        """Charge all windows or none; see `core.decide`."""
        session.asked = self._find(checks, session, attends=True)
        decision = decide(checks, session.asked, session.now_us, first_in_line=first_in_line)
        return self._take_places(decision, session) if decision.allowed and session.places else decision

    def peek(self, checks: Sequence[Check], session: Session) -> Decision:
        """Return what `hit` would answer, in a session that is not saved."""
        decision = decide(checks, self._find(checks, session), session.now_us)
        decision.charge = ()
        return decision

    def inspect(self, key: str, buckets: Sequence[Bucket], session: Session) -> Snapshot:
        """Return the windows of a key, those of quotas in the period of now."""
        found = self._find([(bucket, key, 0) for bucket in buckets], session)
        return Snapshot(session.now_us, [windows[row] for _, _, windows, row in found])

    def charge(self, checks: Sequence[Check], session: Session) -> Decision:
        """Charge all windows, whatever their limits."""
        found = self._find(checks, session, attends=True)
        return self._take_places(charge_all(checks, found, session.now_us), session)

    def refund(self, decision: Decision, session: Session) -> bool:
        """Hand back what `decision` charged; return whether there was anything left of it."""
        charge = list(decision.charge)
        if not charge:
            return False  # another refund came first
        changed = False
        for noted in charge:
            if isinstance(noted, Place):
                places = session.places_of(self._held)
                places.attend()
                changed |= places.leave(noted)
        spent = Decision(True, decision.reason, decision.now_us, decision.checks)
        spent.charge = [None if isinstance(noted, Place) else noted for noted in charge]
        found = self._find(decision.checks, session, makes=False)
        latest_us = session.upkeep.latest_us
        changed |= refund_all(spent, found, session.now_us, latest_us=latest_us, floor_us=session.reset_us())
        if changed:
            session.undo.append(partial(decision.charge.extend, charge))
            decision.charge.clear()
        return changed

    def _find(
        self, checks: Sequence[Check], session: Session, *, makes: bool = True, attends: bool = False
    ) -> list[Where]:
        """Return where the windows of a demand lie.

        Args:
            checks: The demand.
            session: The transaction.
            makes: Whether keys get new windows.
            attends: Whether places may be taken, for which this process needs a lease.
        """
        found: list[Where] = []
        for bucket, key, cost in checks:
            for digest, head, limit in self._bound.get(bucket) or self._bind(bucket):
                if bucket.held:
                    windows, row = session.places_of(self._held).window(row_of(key, digest), attends)
                else:
                    windows, row = session.place(key, digest, head, limit, makes)
                found.append((limit, cost, windows, row))
        return found

    def _take_places(self, decision: Decision, session: Session) -> Decision:
        """Take the places that a decision has charged, and put them among its charges."""
        at = 0
        for bucket, key, _ in decision.checks:
            if bucket.held:
                ((digest, _, limit),) = self._bound.get(bucket) or self._bind(bucket)
                _, units = decision.charge[at]
                places = session.places_of(self._held)
                decision.charge[at] = places.take(row_of(key, digest), limit.amount, units) if units else None
            at += len(bucket.limits)
        return decision

    def _bind(self, bucket: Bucket) -> tuple[tuple[bytes, bytes, AnyLimit], ...]:
        """Work out the digests of a bucket's limits; with a key, each of them names a window."""
        bound = tuple((_digest(bucket.rule, limit), head_of(limit), limit) for limit in bucket.limits)
        return remember(self._bound, bucket, bound)


def _digest(rule: str, limit: AnyLimit) -> bytes:
    """Return the digest that all windows of a limit have in their rows, whatever its amount."""
    return blake2b("\n".join((rule, *map(str, limit.same_window))).encode(), digest_size=8).digest()
