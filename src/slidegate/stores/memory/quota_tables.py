"""Where a memory store keeps the counts of one quota.

Periods end by Unix time, while a store goes by a clock that is never set. So the moments here are worked out anew at
each look, and a count is kept for a while after its period (`KEPT_US`): a system clock that is set back finds it there.
"""

from __future__ import annotations

from ...core.limits import AnyLimit
from ...core.protocols import Clock
from ...core.quotas import KEPT_US
from ...core.windows.codec import end_us
from ...core.windows.packed import Row
from ...core.windows.periods import PeriodCount
from ...core.windows.rings import Entry
from .tables import Shared, Table


class QuotaTable(Table):
    """The counts of keys under one quota.

    Args:
        rule: The rule of the counts.
        limit: The quota.
        due_us: When to look for counts of periods that are over first.
        shared: What the tables of a store share.
        unix_us: Returns Unix time in microseconds.
    """

    __slots__ = ("_unix_us",)

    def __init__(self, rule: str, limit: AnyLimit, due_us: int, shared: Shared, unix_us: Clock) -> None:
        super().__init__(rule, limit, due_us, shared)
        self._unix_us = unix_us

    def holds(self, window: Entry, now_us: int) -> bool:
        """Tell whether the count is still needed: for its period, or for a clock that may be set back."""
        assert isinstance(window, PeriodCount), "a quota has counts of periods"
        return window.spent > 0 and self._unix_us() < window.end_us + KEPT_US

    def holds_at_rest(self, row: Row, now_us: int) -> bool:
        """See `holds`."""
        assert isinstance(row, bytes), "the count of a period is written as bytes"
        return self._unix_us() < end_us(row) + KEPT_US

    def forget(self, key: str) -> bool:
        """See `Table.forget`. A count that begins later is told from this one even if nothing is kept; see `_began`."""
        forgotten = super().forget(key)
        self.kept.pop(key, None)
        return forgotten

    def step_back(self, now_us: int, generation: int) -> None:
        """Move nothing: periods do not go by the clock of the store."""
        self.due_us = min(self.due_us, self.limit.leaves_us(now_us))

    def _began(self, place: str | int) -> None:
        """Note that there is a count where there was none; a charge of before is not handed back from it."""
        self.idle = False
        self.since[place] = self.generations.begin()
