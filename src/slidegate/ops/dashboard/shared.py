"""Values that all viewers of the dashboard share, so that many of them cost the store as much as one."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import anyio

from ... import StoreError

T = TypeVar("T")


class Shared(Generic[T]):
    """A value that all viewers share: made again on demand, once per interval, by one of them at a time.

    A failure of the store is shared like a value, so that viewers do not wait for the store one after the other.

    Args:
        make: Makes the value.
        interval_s: How long a value is used.
    """

    def __init__(self, make: Callable[[], Awaitable[T]], interval_s: float) -> None:
        self._make = make
        self._interval_s = interval_s
        self._lock = anyio.Lock()
        self._made: tuple[float, T | StoreError] | None = None
        self._changes = 0

    async def get(self) -> T:
        """Return the value.

        Raises:
            StoreError: The store did not answer when the value was made.
        """
        async with self._lock:
            # The system clock may step back, which makes no value last longer.
            if self._made is None or not 0 <= time.time() - self._made[0] < self._interval_s:
                changes = self._changes
                try:
                    found: T | StoreError = await self._make()
                except StoreError as error:
                    found = error
                # What was read before a change, or during it, is not for the viewers after it.
                self._made = (time.time(), found) if self._changes == changes else None
            else:
                found = self._made[1]
        if isinstance(found, StoreError):
            raise found.with_traceback(None)  # it is raised for each viewer
        return found

    def forget(self) -> None:
        """Make the value again for the next viewer, after a change."""
        self._made = None
        self._changes += 1
