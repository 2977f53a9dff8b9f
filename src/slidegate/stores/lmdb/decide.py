"""Decides, charges and refunds all windows of a demand at once, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import partial
from hashlib import blake2b
from typing import Any

from ...core.decision import Bucket, Check, Decision
from ...core.demand import LIMITED, OK, TOO_LARGE, Note, charge_all, enter_periods, holds_places, judge_all
from ...core.limits import AnyLimit
from ...core.memo import remember
from ...core.quotas import Quota
from ...core.windows.periods import PeriodCount
from ...core.windows.theory import NEVER
from ...core.windows.views import Snapshot
from .places.own_places import OwnPlaces, Place
from .places.place_rows import PlaceRow
from .session import Session
from .window_rows import Charged, Slot, row_of


class Judge:
    """Decides demands. It remembers only the limits of each bucket and their digests.

    Args:
        held: The places of this process.
    """

    def __init__(self, held: OwnPlaces) -> None:
        self._held = held
        self._plain: dict[Bucket, tuple[bytes, AnyLimit]] = {}  # those of one window that decide by nothing else
        self._bound: dict[Bucket, tuple[tuple[bytes, AnyLimit], ...]] = {}

    def hit(self, checks: Sequence[Check], session: Session, *, looks: bool = False) -> Decision:
        """Charge all windows or none, or charge a refusal; where it only `looks`, without places."""
        now_us = session.now_us
        if len(checks) == 1:
            bucket, key, cost = checks[0]
            plain = self._plain.get(bucket) or self._bind_plain(bucket)
            if plain:
                digest, limit = plain
                slot = session.slot(key, digest, limit)
                reading = slot.window.spend(now_us, limit.amount, cost)
                wait_us = reading[3]
                if wait_us:
                    session.asked = (slot,)
                    return Decision(False, TOO_LARGE if wait_us == NEVER else LIMITED, now_us, checks, (reading,))
                return Decision(True, OK, now_us, checks, (reading,), [slot])
        takes = holds_places(checks)
        if takes and not looks:
            session.places_of(self._held).attend()
        slots = self._find(checks, session)
        session.asked = () if takes else slots  # type: ignore[assignment] # no places, so all of them are windows
        windows = [slot.window for slot in slots]
        enter_periods(checks, windows, session.now_us, session.unix_us())
        decision = judge_all(checks, windows, now_us)
        if decision.charge and not looks:
            decision.charge = self._noted(checks, decision.charge, slots, session)
        return decision

    def inspect(self, key: str, buckets: Sequence[Bucket], session: Session) -> Snapshot:
        """Return the windows of a key, those of quotas in the period of now, in a session that is not saved."""
        checks = [(bucket, key, 0) for bucket in buckets]
        windows = [copy(found.window) for found in self._find(checks, session)]
        enter_periods(checks, windows, session.now_us, session.unix_us())
        return Snapshot(session.now_us, windows)

    def charge(self, checks: Sequence[Check], session: Session) -> Decision:
        """Charge all windows, whatever their limits."""
        if holds_places(checks):
            session.places_of(self._held).attend()
        slots = self._find(checks, session)
        windows = [slot.window for slot in slots]
        enter_periods(checks, windows, session.now_us, session.unix_us())
        decision = charge_all(checks, windows, session.now_us)
        decision.charge = self._noted(checks, decision.charge, slots, session)
        return decision

    def refund(self, decision: Decision, session: Session) -> bool:
        """Take what `decision` charged out of the windows that still hold it; return whether there was any."""
        charge, changed = list(decision.charge), False
        if not charge:
            return False  # another refund came first
        asked = [(limit, cost) for bucket, _, cost in decision.checks for limit in bucket.limits]
        for noted, (limit, cost), name in zip(charge, asked, self._names(decision.checks), strict=True):
            if noted is None:
                continue
            if isinstance(noted, Place):
                places = session.places_of(self._held)
                places.attend()
                changed |= places.leave(noted)
                continue
            note = noted if isinstance(noted, Charged) else Charged(noted, decision.now_us, cost)
            for slot in _holding(note.slot, row_of(*name), limit, session):
                if isinstance(slot.window, PeriodCount) and isinstance(limit, Quota):
                    unix_us = session.unix_us()
                    slot.window.enter(limit.period_at(unix_us).end_us, session.now_us - unix_us)
                changed |= slot.window.remove(session.now_us, note.spent_us, note.units)
        if changed:
            session.undo.append(partial(decision.charge.extend, charge))
            decision.charge.clear()
        return changed

    def _find(self, checks: Sequence[Check], session: Session) -> list[Slot | PlaceRow]:
        return [
            session.places_of(self._held).find(row_of(key, digest)) if bucket.held else session.slot(key, digest, limit)
            for bucket, key, _ in checks
            for digest, limit in self._bound.get(bucket) or self._bind(bucket)
        ]

    def _noted(
        self, checks: Sequence[Check], charge: Sequence[Any], slots: Sequence[Slot | PlaceRow], session: Session
    ) -> list[Slot | Charged | Place]:
        """Return a charge with the slots in the places of their windows, and the places that were taken."""
        limits = [limit for bucket, _, _ in checks for limit in bucket.limits]
        noted: list[Slot | Charged | Place] = []
        for note, slot, limit in zip(charge, slots, limits, strict=True):
            if isinstance(slot, PlaceRow):
                noted.append(session.places_of(self._held).take(slot, limit.amount))
            elif isinstance(note, Note):
                noted.append(Charged(slot, note.spent_us, note.units))
            else:
                noted.append(slot)
        return noted

    def _names(self, checks: Sequence[Check]) -> list[tuple[str, bytes]]:
        """Return the key and the digest of each window of a demand."""
        return [
            (key, digest) for bucket, key, _ in checks for digest, _ in self._bound.get(bucket) or self._bind(bucket)
        ]

    def _bind_plain(self, bucket: Bucket) -> tuple[bytes, AnyLimit] | None:
        """Return the digest and the limit of a bucket that has one window, and counts no refusals."""
        bound = self._bound.get(bucket) or self._bind(bucket)
        if len(bound) != 1 or bucket.count_denied or bucket.held:
            return None
        if isinstance(bound[0][1], Quota):
            return None
        return remember(self._plain, bucket, bound[0])

    def _bind(self, bucket: Bucket) -> tuple[tuple[bytes, AnyLimit], ...]:
        """Work out the digests of a bucket's limits; with a key, each of them names a window."""
        return remember(self._bound, bucket, tuple((_digest(bucket.rule, limit), limit) for limit in bucket.limits))


def _digest(rule: str, limit: AnyLimit) -> bytes:
    """Return the digest that all windows of a limit have in their rows, whatever its amount."""
    return blake2b("\n".join((rule, *map(str, limit.same_window))).encode(), digest_size=8).digest()


def _holding(charged: Slot, own_row: bytes, limit: AnyLimit, session: Session) -> list[Slot]:
    """Return the windows that hold a charge to a slot: its own, and the copy that the key has taken since."""
    found = []
    slot = session.find_same_kind(charged.row, limit, shared=charged.shared)
    if slot is not None and slot.serial == charged.serial:  # else it was reset or deleted since
        found.append(slot)
    if charged.shared:
        own = session.find_same_kind(own_row, limit, shared=False)
        if own is not None and own.origin == charged.serial:
            found.append(own)
    return found
