"""Decides how much load is shed: a level that rises while a limit is passed, and falls step by step afterwards.

The level is looked at again every `TICK_S`. At 0 nothing is shed. Requests with n priorities below theirs among those
that were seen are shed in a share of ``level - n``, so those of the next priority are touched only when nearly all
below are shed. The few that always pass show when the overload is over.
"""

from __future__ import annotations

from typing import Final

TICK_S: Final = 0.05
"""How often the level is looked at."""
RISE: Final = 0.03
"""How much the level rises in a tick of overload at the limit itself; beyond it, up to three times as much."""
MOST_TICKS: Final = 6.0
"""The largest number of ticks for which one counts."""
SUDDEN: Final = 4.0
"""A load of so many times its limit is overload at once; a smaller one has to last for two ticks."""
FALL: Final = 0.01
"""How much the level falls in a tick without overload: from 1 to 0 takes five seconds."""
MOST: Final = 0.98
"""The largest share of the highest priority that is shed."""
HIGHEST: Final = 9
"""The highest priority."""


class Controller:
    """The level of shedding of one event loop.

    Args:
        seen: The priorities that were seen, of all rules of a gate that shed.

    Attributes:
        level: From 0, where nothing is shed, to the number of priorities below the highest one, and `MOST`.
    """

    __slots__ = ("_lasting", "_owed", "_seen", "_top", "level")

    def __init__(self, seen: set[int] | None = None) -> None:
        self._seen = set() if seen is None else seen
        self.level = 0.0
        self._owed = [0.0] * (HIGHEST + 1)
        self._top = 0
        self._lasting = False

    def tick(self, load: float, ticks: float = 1.0) -> None:
        """Adjust the level.

        Args:
            load: The lag or the latency as a part of its limit, whichever is larger; above 1 is overload.
            ticks: How many ticks this one stands for: a loop that is held up for long has none meanwhile.
        """
        if load <= 1:
            self._lasting = False
            self.level = max(self.level - FALL, 0.0)
        elif self._lasting or load > SUDDEN:
            self._lasting = True
            self.level = min(self.level + RISE * min(load, 3.0) * min(ticks, MOST_TICKS), self._below(self._top) + MOST)
        else:
            self._lasting = True

    def sheds(self, priority: int) -> bool:
        """Tell whether the next request of a priority, 0 to 9, is shed: evenly, so that the share holds exactly."""
        self._seen.add(priority)
        self._top = max(self._top, priority)
        share = self.level - self._below(priority)
        if share <= 0:
            return False
        owed = self._owed[priority] + min(share, 1.0)
        shed = owed >= 1
        self._owed[priority] = owed - shed
        return shed

    def _below(self, priority: int) -> int:
        return sum(other < priority for other in self._seen)
