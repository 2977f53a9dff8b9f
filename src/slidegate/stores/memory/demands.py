"""The windows of a demand in the tables of a memory store: bookings are stored, and charges are handed back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ...core.decision import Check, Decision, Reason
from ...core.demand import judge_all
from ...core.limits import Limit
from ...core.windows.bookings import BookedWindow, Entry, Note
from .tables import Table, ring_of

Flat: TypeAlias = list[tuple[Table, Limit, str, int]]
"""A demand, limit by limit: the table of its window, the limit, the key and the cost."""


def judge_and_keep(checks: Sequence[Check], flat: Flat, windows: list[Entry], now_us: int) -> Decision:
    """Like `judge_all`; then store each `BookedWindow` that it created in the place of its ring."""
    before = windows.copy()
    decision = judge_all(checks, windows, now_us)
    for (table, _, key, _), window, after in zip(flat, before, windows, strict=True):
        if after is not window:
            table.replace(key, window, after)
    if decision.reason is Reason.WAITED:
        for table, _, key, _ in flat:
            table.wait_in_cell(key, now_us + decision.wait_us)
    return decision


def hand_back(decision: Decision, flat: Flat, now_us: int) -> bool:
    """Take the units that `decision` charged out of the windows that still hold them; return whether any did."""
    changed = False
    for noted, (table, _, key, cost) in zip(decision.charge, flat, strict=True):
        if noted is None:
            continue
        note = noted if isinstance(noted, Note) else Note(noted, decision.now_us, cost)
        for window in table.charged(key, ring_of(note.window)):
            changed |= window.remove(now_us, note.spent_us, note.units)
            if note.waits and isinstance(window, BookedWindow):
                changed |= window.leave(note.spent_us)
    if changed:
        decision.charge.clear()
    return changed
