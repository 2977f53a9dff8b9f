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
            if self._made is not None and self._is_fresh(self._made[0]):
                found = self._made[1]
            else:
                found = await self._make_again()
        if isinstance(found, StoreError):
            raise found.with_traceback(None)  # it is raised for each viewer
        return found

    def _is_fresh(self, made_at: float) -> bool:
        # The system clock may step back, which makes no value last longer.
        return 0 <= time.time() - made_at < self._interval_s

    async def _make_again(self) -> T | StoreError:
        """Return a new value, or the failure to make one, and share it."""
        changes = self._changes
        found: T | StoreError
        try:
            found = await self._make()
        except StoreError as error:
            found = error
        # What was read before a change, or during it, is not for the viewers after it.
        self._made = None
        if self._changes == changes:
            self._made = time.time(), found
        return found

    def forget(self) -> None:
        """Make the value again for the next viewer, after a change."""
        self._made = None
        self._changes += 1
