"""What one worker has counted in slices of time, and what of that is not in the store yet."""

from __future__ import annotations

from typing import Any, TypeAlias

from .. import Limiter
from .stats_rows import CLIENTS, KEYS, STEPS, pause
from .tally import Clients, Series, Tally

Name: TypeAlias = tuple[str, int]
"""The kind of a slice and its number: the time when it began, by its length."""


class Slices:
    """The slices of a worker. A row has all that it has counted in its slice, so that a write may be repeated.

    Args:
        limiter: The limiter that keeps the rows.

    Attributes:
        current: What was counted in the slices that were not over when something was added.
    """

    def __init__(self, limiter: Limiter) -> None:
        self.current: dict[Name, Series | Clients] = {}
        self._unwritten: dict[Name, Series | Clients] = {}
        self._limiter = limiter

    def add(self, tally: Tally, now_us: int) -> None:
        """Add a tally to the slices that are current now. One thread at a time adds.

        Args:
            tally: What was counted since the last call.
            now_us: The store's time.
        """
        current: dict[Name, Series | Clients] = {}
        of_clients = {CLIENTS: tally.clients, KEYS: tally.keys}
        for kind, (step_us, _) in STEPS.items():
            name = kind, now_us // step_us
            slice_ = self.current.get(name)
            counted: Any = of_clients.get(kind, tally.series)
            if counted:
                # A new object: a call that is writing the slice sees that there is more to write.
                slice_ = counted.added_to(slice_)
                self._unwritten[name] = slice_
            if slice_ is not None:
                current[name] = slice_
        self.current = current

    async def write(self) -> None:
        """Write the rows that have changed.

        Raises:
            StoreError: The store does not answer; the next call writes them.
        """
        for name in [*self._unwritten]:
            # As it is now: another call may add more, or write all there is, while this one waits for the store.
            slice_ = self._unwritten.get(name)
            if slice_ is None:
                continue
            kind, number = name
            step_us, kept = STEPS[kind]
            await self._limiter.keep_row(kind, number, slice_.packed(), (kept + 1) * step_us)
            # Else more was added during the write.
            if self._unwritten.get(name) is slice_:
                del self._unwritten[name]
            await pause()
