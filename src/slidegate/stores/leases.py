"""The permits of concurrency limits that requests of this process hold in a shared store, and their lease.

The permits of a worker expire with its lease, so those of a killed worker become free. A worker renews all permits of
requests in progress together, three times per lease, so two renewals may fail. A permit whose decision was garbage
collected is no longer renewed, because nothing can return it.

A permit that expires while its request is in progress is lost: its worker was stopped for longer than a lease, or its
store has lost data. The request continues, and the permit is not restored.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import timedelta
from inspect import isawaitable
from typing import Any, Final
from weakref import WeakValueDictionary

from ..core.limits import parse_span_us
from ..core.reservation import Permit
from ..core.store import Event
from .forks import begin_anew_in_child

DEFAULT_PERMIT_LEASE: Final = "10s"
WORKER_BYTES: Final = 8
RENEWALS: Final = 3
"""How often a worker renews its permits per lease."""
AGAIN: Final = 4
"""A failed renewal is retried after 1/AGAIN of the usual interval."""

_MIN_US: Final = 1_000_000
_MAX_US: Final = 600_000_000


def permit_lease_us(value: str | float | timedelta) -> int:
    """Return the length of a lease in microseconds.

    Raises:
        ConfigurationError: The value is not a duration from 1 s to 10 minutes.
    """
    return parse_span_us(value, "permit_lease", _MIN_US, _MAX_US, "10s")


def permits_lost(store: str, lost: int) -> Event:
    """Return the event for permits that expired while their requests were in progress.

    Args:
        store: The name of the store.
        lost: The number of lost permits.
    """
    message = f"{store}: {lost} permits of requests in progress expired: not renewed in time, or the store lost data"
    return Event("permits_lost", message, {"lost": lost})


class HeldPermits:
    """The permits that requests of this process hold, as long as their decisions exist.

    A forked child holds none of those of its parent, and has a name of its own.

    Args:
        lease_us: How long a permit stays taken without a renewal, in microseconds.

    Attributes:
        lease_us: The argument.
        worker: The name of this process in the store.
    """

    def __init__(self, lease_us: int) -> None:
        self.lease_us = lease_us
        self._begin_anew()
        begin_anew_in_child(self._begin_anew)

    def _begin_anew(self) -> None:
        self.worker = os.urandom(WORKER_BYTES)
        # Iteration over `weakref.WeakSet` raises if another thread adds to it.
        self._by_id: WeakValueDictionary[int, Permit] = WeakValueDictionary()

    def __bool__(self) -> bool:
        return bool(self._by_id)

    def __contains__(self, permit: Permit) -> bool:
        return id(permit) in self._by_id

    def add(self, permit: Permit) -> None:
        """Add a permit, which is held as long as its decision exists."""
        self._by_id[id(permit)] = permit

    def discard(self, permit: Permit) -> None:
        """Remove a permit, if it is held."""
        self._by_id.pop(id(permit), None)

    def under_way(self) -> list[Permit]:
        """Return the permits of requests in progress, and remove the others."""
        under_way = []
        for reference in self._by_id.valuerefs():
            permit = reference()
            if permit is not None and permit.ended:
                self.discard(permit)
            elif permit is not None:
                under_way.append(permit)
        return under_way

    def count(self) -> int:
        """Return how many permits this process holds, without lost ones."""
        return sum(permit.units for permit in self.under_way() if not permit.lost)


class LeaseRenewer:
    """Renews permits from each event loop that has taken one, until none are left.

    Args:
        held: The permits.
        renew: Renews them; returns an awaitable if it has to wait.

    Attributes:
        held: The argument.
    """

    def __init__(self, held: HeldPermits, renew: Callable[[], Any]) -> None:
        self.held = held
        self._renew = renew
        self._tasks: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}
        self._interval_s = held.lease_us / RENEWALS / 1_000_000
        self._is_open = True

    def start(self) -> None:
        """Start renewing from the running event loop, until no permits are left; does nothing without asyncio."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if loop not in self._tasks:
            self._tasks[loop] = loop.create_task(self._keep_renewing(loop))

    def close(self) -> None:
        """Stop renewing."""
        self._is_open = False

    async def _keep_renewing(self, loop: asyncio.AbstractEventLoop) -> None:
        pause_s = self._interval_s
        try:
            while True:
                await asyncio.sleep(pause_s)
                if not self._is_open or not self.held:
                    return
                try:
                    answer = self._renew()
                    if isawaitable(answer):
                        await answer
                    pause_s = self._interval_s
                except Exception:  # `renew` reports its own failures
                    pause_s = self._interval_s / AGAIN
        finally:
            del self._tasks[loop]
