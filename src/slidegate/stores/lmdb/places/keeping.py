"""When the lease on places is renewed: every third of its length, from each event loop that has taken a place.

Where no event loop of asyncio runs, each question about places renews a lease that has less than half its length left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import isawaitable
from typing import Any, Final
from weakref import WeakSet

from ....core.charge import RENEWALS
from ....core.errors import StoreError
from .own_places import OwnPlaces

AGAIN: Final = 4
"""After a renewal that failed or has to wait, the next comes so many times as soon."""


class Keeper:
    """Renews a lease.

    Args:
        held: The places of this process.
        renew: Renews the lease; returns an awaitable if that has to wait.
    """

    def __init__(self, held: OwnPlaces, renew: Callable[[], Any]) -> None:
        self._held = held
        self._renew = renew
        self._loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        self._usual_s = held.lease_us / RENEWALS / 1_000_000
        self._is_open = True

    def start(self) -> None:
        """Renew from the running event loop as long as there are places."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if loop not in self._loops:
            self._loops.add(loop)
            loop.call_later(self._usual_s, self._next, loop)

    def close(self) -> None:
        """Renew no more."""
        self._is_open = False

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_open or not self._held.holds_any():
            self._loops.discard(loop)
            return
        pause_s = self._usual_s
        try:
            answer = self._renew()
        except StoreError:
            pause_s /= AGAIN
        else:
            if isawaitable(answer):
                asyncio.ensure_future(answer).add_done_callback(_look_at)
                pause_s /= AGAIN
        loop.call_later(pause_s, self._next, loop)


def _look_at(renewed: asyncio.Future[Any]) -> None:
    """Look at an error, of which the next renewal will tell, if it lasts."""
    if not renewed.cancelled():
        renewed.exception()
