"""Refusals that last.

A refusal is remembered together with the rows that it was decided on. As long as these rows are the same, and nothing
has expired in their windows, the same demand is refused. To find that out takes a reading transaction, which waits for
nobody, and no look into the windows. A refund or a reset, in any process, changes a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...core.decision import Check, Decision
from ...core.demand import LIMITED
from ...core.memo import remember
from ...core.windows.codec import pack_window
from ...core.windows.periods import PeriodCount
from ...core.windows.theory import Reading
from .session import Session
from .window_rows import HEAD_BYTES, Slot


class _Known(NamedTuple):
    """A remembered refusal: when it holds, its readings, and (row, is a cell, window) of the rows it was decided on."""

    from_us: int
    until_us: int
    readings: Sequence[Reading]
    rows: Sequence[tuple[bytes, bool, bytes]]


class Refusals:
    """Remembers refusals, by demand."""

    def __init__(self) -> None:
        self.known: dict[Sequence[Check], _Known] = {}

    def remember(self, decision: Decision, slots: Sequence[Slot]) -> None:
        """Record a refusal by the windows of `slots`, unless the next demand may be answered in another way.

        The count of a quota is read each time, because its period ends by another clock.
        """
        if any(bucket.count_denied for bucket, _, _ in decision.checks):
            return
        if any(isinstance(slot.window, PeriodCount) for slot in slots):
            return
        until_us = min(reading[1] for reading in decision.readings if reading[0])
        rows = [(slot.row, slot.shared, pack_window(slot.window)) for slot in slots]
        known = _Known(decision.now_us, until_us, decision.readings, rows)
        remember(self.known, tuple(decision.checks), known)

    def lasts(self, checks: Sequence[Check], now_us: int) -> bool:
        """Return whether a demand is refused if its rows are still the same."""
        known = self.known.get(checks)
        if known is None:
            return False
        if known.from_us <= now_us < known.until_us:
            return True
        self.known.pop(checks, None)
        return False

    def answer(self, checks: Sequence[Check], session: Session) -> Decision | None:
        """Return the refusal of a demand that `lasts`; None if a row has changed."""
        known = self.known.get(checks)
        if known is None:
            return None
        for row, shared, window in known.rows:
            packed = session.txn.get(row, None, session.dbs.cells if shared else session.dbs.windows)
            if packed is None or packed[HEAD_BYTES:] != window:
                self.known.pop(checks, None)
                return None
        now_us = max(session.now_us, known.from_us)
        if now_us >= known.until_us:
            return None  # it ended meanwhile
        passed_us = now_us - known.from_us
        readings = [
            (spent, leaves_us, newest_us, wait_us and wait_us - passed_us)
            for spent, leaves_us, newest_us, wait_us in known.readings
        ]
        return Decision(False, LIMITED, now_us, checks, readings)
