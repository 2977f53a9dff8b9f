"""Decides, charges and refunds all windows of a demand at once, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

from ...core.decision import Bucket, Check, Decision, Reason
from ...core.demand import LIMITED, OK, TOO_LARGE, charge_all, judge_all
from ...core.limits import Limit
from ...core.memo import remember
from ...core.windows.bookings import BookedWindow, Note
from ...core.windows.theory import NEVER
from .session import Session
from .window_rows import Charged, Slot, row_of


class Judge:
    """Decides demands. It remembers only the limits of each bucket and their digests."""

    def __init__(self) -> None:
        self._bound: dict[Bucket, tuple[tuple[bytes, Limit], ...]] = {}

    def hit(self, checks: Sequence[Check], session: Session) -> Decision:
        """Charge all windows or none, or book them, or charge a refusal."""
        now_us = session.now_us
        if len(checks) == 1:
            bucket, key, cost = checks[0]
            bound = self._bound.get(bucket) or self._bind(bucket)
            if len(bound) == 1 and not bucket.count_denied and not bucket.wait_us:
                ((digest, limit),) = bound
                slot = session.slot(key, digest, limit)
                reading = slot.window.spend(now_us, limit.amount, cost)
                wait_us = reading[3]
                if wait_us:
                    session.asked = (slot,)
                    return Decision(False, TOO_LARGE if wait_us == NEVER else LIMITED, now_us, checks, (reading,))
                return Decision(True, OK, now_us, checks, (reading,), [slot])
        slots = self._find(checks, session)
        session.asked = slots
        windows = [slot.window for slot in slots]
        decision = judge_all(checks, windows, now_us)
        for slot, window in zip(slots, windows, strict=True):
            slot.window = window  # a new one, if this was its first booking
        if decision.charge:
            decision.charge = _noted(decision.charge, slots)
        if decision.reason is Reason.WAITED:
            for (key, digest), slot in zip(self._names(checks), slots, strict=True):
                if slot.shared:
                    session.wait_in_cell(key, digest, now_us + decision.wait_us)
        return decision

    def charge(self, checks: Sequence[Check], session: Session) -> Decision:
        """Charge all windows, whatever their limits."""
        slots = self._find(checks, session)
        decision = charge_all(checks, [slot.window for slot in slots], session.now_us)
        decision.charge = _noted(decision.charge, slots)
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
            note = noted if isinstance(noted, Charged) else Charged(noted, decision.now_us, cost)
            for slot in _holding(note.slot, row_of(*name), limit, session):
                changed |= slot.window.remove(session.now_us, note.spent_us, note.units)
                if note.waits and isinstance(slot.window, BookedWindow):
                    changed |= slot.window.leave(note.spent_us)
        if changed:
            session.undo.append(partial(decision.charge.extend, charge))
            decision.charge.clear()
        return changed

    def _find(self, checks: Sequence[Check], session: Session) -> list[Slot]:
        return [
            session.slot(key, digest, limit)
            for bucket, key, _ in checks
            for digest, limit in self._bound.get(bucket) or self._bind(bucket)
        ]

    def _names(self, checks: Sequence[Check]) -> list[tuple[str, bytes]]:
        """Return the key and the digest of each window of a demand."""
        return [
            (key, digest) for bucket, key, _ in checks for digest, _ in self._bound.get(bucket) or self._bind(bucket)
        ]

    def _bind(self, bucket: Bucket) -> tuple[tuple[bytes, Limit], ...]:
        """Work out the digests of a bucket's limits; with a key, each of them names a window."""
        return remember(self._bound, bucket, tuple((_digest(bucket.rule, limit), limit) for limit in bucket.limits))


def _digest(rule: str, limit: Limit) -> bytes:
    """Return the digest that all windows of a limit have in their rows, whatever its amount."""
    return blake2b(f"{rule}\n{limit.window_us}\n{limit.resolution}".encode(), digest_size=8).digest()


def _holding(charged: Slot, own_row: bytes, limit: Limit, session: Session) -> list[Slot]:
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


def _noted(charge: Sequence[Any], slots: Sequence[Slot]) -> list[Slot | Charged]:
    """Return a charge with the slots in the places of their windows."""
    return [
        Charged(slot, note.spent_us, note.units, note.waits) if isinstance(note, Note) else slot
        for note, slot in zip(charge, slots, strict=True)
    ]
