"""The charges of a demand in the tables of a memory store: how they are named and handed back."""

from __future__ import annotations

from typing import TypeAlias

from ...core.decision import Decision
from ...core.demand import Note
from ...core.limits import AnyLimit
from ...core.protocols import Clock
from ...core.quotas import Quota
from ...core.windows.periods import PeriodCount
from ...core.windows.rings import Entry
from .generations import Charged
from .tables import Table

Flat: TypeAlias = list[tuple[Table, AnyLimit, str, int]]
"""A demand, limit by limit: the table of its window, the limit, the key and the cost."""


def name_charges(decision: Decision, flat: Flat) -> Decision:
    """Put a name in the place of each window that was charged: the generation alone, or a `Charged`."""
    if decision.charge:
        decision.charge = [
            _name(charged, decision.now_us, table, key, cost)
            for charged, (table, _, key, cost) in zip(decision.charge, flat, strict=True)
        ]
    return decision


def hand_back(decision: Decision, flat: Flat, now_us: int, unix_us: Clock) -> bool:
    """Take the units that `decision` charged out of the windows that still hold them; return whether any did."""
    changed = False
    for noted, (table, limit, key, cost) in zip(decision.charge, flat, strict=True):
        if noted is None:
            continue
        charged = noted if isinstance(noted, Charged) else Charged(noted, decision.now_us, cost)
        for window in table.charged(key, charged):
            if isinstance(window, PeriodCount) and isinstance(limit, Quota):
                at_us = unix_us()
                window.enter(limit.period_at(at_us).end_us, now_us - at_us)
            changed |= window.remove(now_us, charged.spent_us, charged.units)
    if changed:
        decision.charge = ()
    return changed


def _name(charged: Entry | Note, now_us: int, table: Table, key: str, cost: int) -> int | Charged:
    generation = table.generations.latest
    in_cell = key not in table.rows
    if isinstance(charged, Note):
        return Charged(generation, charged.spent_us, charged.units, in_cell)
    return Charged(generation, now_us, cost, in_cell=True) if in_cell else generation
