"""The places of one concurrency limit, in memory.

Places belong to requests under way in this process, and end with it: they need no lease. Nor do they need a bound of
their own, because a key has an entry only as long as a request of it is under way, or until the next visit.
"""

from __future__ import annotations

from itertools import islice

from ...core.windows.places import Places
from ...core.windows.rings import Entry, Ring
from ...core.windows.theory import Reading
from ...core.windows.timestamps import TimestampWindow
from .cold import Rows
from .generations import Charged
from .tables import Table


class PlaceTable(Table):
    """The places of keys, by key. It has no rows, no cells and no twin, and a step of the clock moves nothing in it."""

    __slots__ = ()

    @property
    def held(self) -> int:
        """The places that are taken, of all keys."""
        return sum(places.spent for places in self.windows.values())

    def is_empty(self) -> bool:
        """Tell whether no key has an entry."""
        return not self.windows

    def new_window(self) -> Ring:
        """Return a ring for rows, of which there are none here."""
        return TimestampWindow(1)

    def wake(self, key: str) -> Entry:
        """Return the places of a key."""
        places = self.windows.get(key)
        if places is None:
            places = self.windows[key] = Places()
            self.idle = False
        return places

    def find(self, place: str | int, now_us: int) -> Entry:
        """Return a copy of the places of a key."""
        known = self.windows.get(place) if isinstance(place, str) else None
        return Places() if known is None else Places(known.spent)

    def spend_at_rest(self, key: str, now_us: int, amount: int, cost: int) -> Reading | None:
        """Take the first place of a key; None if the store has let go of the table."""
        return None if self.dropped else self.wake(key).spend(now_us, amount, cost)

    def charged(self, key: str, charge: Charged) -> list[Entry]:
        """Return the places that hold a charge. The entry goes when none of them is left; see `visit`."""
        return [self.wake(key)]

    def forget(self, key: str) -> bool:
        """Forget nothing: requests that are under way stay so."""
        return False

    def forget_all(self, generation: int) -> tuple[Rows, dict[int, Entry]]:
        """Forget nothing, for the same reason."""
        return Rows(), {}

    def step_back(self, now_us: int, generation: int) -> None:
        """Do nothing: places know no time."""

    def visit(self, now_us: int, most: int) -> tuple[int, int]:
        """Let go of entries without a place; see `Table.visit`. They count as no keys of the store."""
        if self._walk is None:
            self._walk = iter(list(self.windows))
        visits = 0
        for key in islice(self._walk, most):
            visits += 1
            if isinstance(key, str) and key in self.windows and not self.windows[key].spent:
                del self.windows[key]
        if visits < most:
            self._walk = None
        return visits, 0
