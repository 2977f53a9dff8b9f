"""Refusals that last.

A refusal is remembered together with the windows that it was decided on. As long as their rows hold the same bytes, and
nothing has left these windows, the same demand is refused. To find that out takes a reading transaction, which waits
for nobody, and no look into the windows. A refund or a reset, in any process, changes a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ...core.decision import Check, Decision, refused_later
from ...core.memo import remember
from ...core.ring import WindowState, reserved_until_us
from .windows import HEAD_BYTES, Transaction


class _Known(NamedTuple):
    """A remembered refusal: when it holds, its readings, and (row, is a cell, window) of the rows it was decided on."""

    from_us: int
    until_us: int
    readings: Sequence[WindowState]
    rows: Sequence[tuple[bytes, bool, bytes]]


_BANNED: Final = _Known(0, 2**63, (), ())


class Refusals:
    """Remembers refusals, by demand."""

    def __init__(self) -> None:
        self.known: dict[Sequence[Check], _Known] = {}

    def remember(self, decision: Decision, transaction: Transaction) -> None:
        """Record the last refusal of a transaction, unless the next such demand may be answered in another way.

        A refusal that counts changes its windows. The period of a quota ends by another clock, and a permit comes back
        at any time. What is kept for those who wait is kept until then, and no longer.
        """
        for bucket, _, _ in decision.checks:
            if bucket.count_denied or not bucket.plain:
                return
        rows = [(row, windows is transaction.cells, windows[row]) for _, _, windows, row in transaction.asked]
        if any(reserved_until_us(window) > decision.now_us for _, _, window in rows):
            return
        until_us = min(reading[1] for reading in decision.readings if reading[0])
        known = _Known(decision.now_us, until_us, decision.readings, rows)
        remember(self.known, tuple(decision.checks), known)

    def remember_ban(self, checks: Sequence[Check]) -> None:
        """Record that a demand was refused by a ban: the next one looks for a ban first, which takes no writing."""
        remember(self.known, tuple(checks), _BANNED)

    def lasts(self, checks: Sequence[Check], now_us: int) -> bool:
        """Return whether a demand is refused if its rows are still the same."""
        known = self.known.get(checks)
        if known is None:
            return False
        if known.from_us <= now_us < known.until_us:
            return True
        self.known.pop(checks, None)
        return False

    def answer(self, checks: Sequence[Check], transaction: Transaction) -> Decision | None:
        """Return the refusal of a demand that `lasts`; None if a row has changed."""
        known = self.known.get(checks)
        if known is None or known is _BANNED:
            self.known.pop(checks, None)
            return None
        for row, shared, window in known.rows:
            stored = transaction.txn.get(row, None, transaction.dbs.cells if shared else transaction.dbs.windows)
            if stored is None or stored[HEAD_BYTES:] != window:
                self.known.pop(checks, None)
                return None
        now_us = max(transaction.now_us, known.from_us)
        if now_us >= known.until_us:
            return None  # it ended meanwhile
        return refused_later(known.readings, known.from_us, now_us, checks)
