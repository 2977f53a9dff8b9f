"""The leases that a worker holds: when it takes them, and how their last units go back."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from threading import Lock
from typing import Any, Final
from weakref import WeakKeyDictionary

from ...core.decision import Bucket
from ...core.errors import ConfigurationError
from ...core.memo import MEMO_SIZE
from ...core.protocols import Clock, Store
from ..failsafe import Failsafe
from ..running_loop import on_asyncio
from .lease import MAX_LIFE_US, Lease

SHARE: Final = 4
"""A lease takes at most one in so many of the units that are left."""
MAX_SHARES: Final = MEMO_SIZE
MAX_WAITING: Final = 1_000
_SOONEST_S: Final = 0.001


class Share:
    """One bucket and key: its lease, and how many units to ask for next.

    Attributes:
        lease: The last lease; None once it is given up.
        flight: The task that fetches the next lease; its result is whether the store answered.
        waiting: How many requests wait for `flight`.
        remaining: How many units were left in the store at its last answer.
        used: Units admitted since the last lease was asked for.
        heard_us: The local time of the last answer.
    """

    __slots__ = ("bucket", "flight", "heard_us", "key", "lease", "remaining", "used", "waiting")

    def __init__(self, bucket: Bucket, key: str) -> None:
        self.bucket = bucket
        self.key = key
        self.lease: Lease | None = None
        self.flight: asyncio.Task[bool] | None = None
        self.waiting = self.remaining = self.used = self.heard_us = 0

    def covers(self, cost: int, now_us: int) -> bool:
        """Return whether the lease has so many units."""
        return self.lease is not None and self.lease.covers(cost, now_us)

    def take(self, cost: int, now_us: int) -> Lease | None:
        """Spend units of the lease, and return it; None if it does not have so many."""
        lease = self.lease
        if lease is None or not lease.covers(cost, now_us):
            return None
        lease.units -= cost
        self.used += cost
        return lease

    def size(self, cost: int, now_us: int) -> int:
        """Return how many units to lease for a request and those after it; 0 if it should ask for itself."""
        if now_us - self.heard_us > 2 * MAX_LIFE_US:
            self.used = 0
        units = min(self.bucket.lease, self.remaining // SHARE, 2 * self.used)
        return units if units > cost else 0

    def learn(self, spent: Sequence[int], now_us: int) -> None:
        """Record how many units the store counts under each limit."""
        counted = zip(self.bucket.limits, spent, strict=True)
        self.remaining = max(min(limit.amount - units for limit, units in counted), 0)
        self.heard_us = now_us


class Shares:
    """The leases of all event loops of a limiter.

    Args:
        store: The store.
        safe: Asks the store.
        clock: Returns microseconds that never run back and go on while the machine sleeps.
    """

    def __init__(self, store: Store, safe: Failsafe, clock: Clock) -> None:
        self._store = store
        self._safe = safe
        self._clock = clock
        self._closed = False
        self._lock = Lock()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[Bucket, str], Share]] = (
            WeakKeyDictionary()
        )
        self._last: tuple[asyncio.AbstractEventLoop | None, dict[tuple[Bucket, str], Share]] = None, {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def find(self, bucket: Bucket, key: str) -> Share | None:
        """Return the share of a bucket and key in this event loop; None if all shares are taken and in use."""
        loop = asyncio.get_running_loop()
        known, shares = self._last
        if known is not loop:
            with self._lock:
                shares = self._by_loop.setdefault(loop, {})
            self._last = loop, shares
        share = shares.get((bucket, key))
        if share is None:
            if len(shares) >= MAX_SHARES:
                idle = next((other for other in shares.values() if other.flight is None), None)
                if idle is None:
                    return None
                self._end(shares.pop((idle.bucket, idle.key)))
            share = shares[bucket, key] = Share(bucket, key)
        return share

    async def prepare(self, share: Share, cost: int) -> bool:
        """Wait for a lease for a request, if it is worth one; return False if the store did not answer."""
        if share.lease is not None and share.lease.units <= 0:
            self._give_up(share)
        if share.flight is None:
            size = 0 if self._closed else share.size(cost, self._clock())
            if not size and share.lease is None:
                return True
            share.flight = self.start(self._renew(share, size))
        if share.waiting >= MAX_WAITING:
            return True
        # The flight belongs to no request: one that gives up does not cancel it for the others.
        flight = share.flight
        share.waiting += 1
        try:
            await asyncio.wait((flight,))
        finally:
            share.waiting -= 1
        return flight.cancelled() or flight.result()

    def start(self, work: Coroutine[Any, Any, bool]) -> asyncio.Task[bool]:
        """Start a task that no request waits for; `close` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def forget(self, key: str | None) -> None:
        """Let no thread spend the leases of a key whose windows are about to be forgotten; None for all keys.

        Each event loop gives its own leases up later, because that is not safe from another thread.
        """
        with self._lock:
            tables = list(self._by_loop.values())
        for shares in tables:
            for share in shares.copy().values():
                if key in (share.key, None) and (lease := share.lease) is not None:
                    lease.void()

    def is_empty(self) -> bool:
        """Return whether nothing was asked of a lease, so that a close needs no event loop."""
        return not self._by_loop

    async def close(self) -> None:
        """Hand all leases back; requests ask for themselves from now on."""
        self._closed = True
        await self._settle()  # first finish pending renewals, then refund their units
        with self._lock:
            tables = list(self._by_loop.values())
            self._by_loop.clear()
        for shares in tables:
            for share in shares.copy().values():
                self._end(share)
        self._last = None, {}
        await self._settle()

    async def _renew(self, share: Share, size: int) -> bool:
        """Hand back a lease that is too small for a request, and take a new one of `size` units, if any."""
        try:
            if share.lease is not None:
                lease = self._give_up(share)
                if lease.units > 0:
                    await self._safe.refund(lease.part(lease.units))
            if not size:
                return True
            sent_us = self._clock()
            checks = ((share.bucket, share.key, size),)
            share.used = 0
            decision = await self._safe.ask(lambda: self._store.hit(checks), None, checks)
        except ConfigurationError:
            return True  # the requests that wait hear it from the store themselves
        finally:
            share.flight = None
        if decision is None:
            return False
        if decision.readings:
            share.learn([reading[0] for reading in decision.readings], self._clock())
        if decision.charge:
            lease = share.lease = Lease(decision, sent_us)
            self._end_later(share, lease)
        return True

    def _end_later(self, share: Share, lease: Lease) -> None:
        left_us = lease.until_us - self._clock()
        lease.timer = lease.loop.call_later(max(left_us / 1_000_000, _SOONEST_S), self._due, share, lease)

    def _due(self, share: Share, lease: Lease) -> None:
        if share.lease is lease:
            if lease.lasts(self._clock()):
                self._end_later(share, lease)
            else:
                self._end(share)

    def _end(self, share: Share) -> None:
        """End a lease, and hand its last units back."""
        if share.lease is not None:
            lease = self._give_up(share)
            if lease.units > 0:
                self.start(self._safe.refund(lease.part(lease.units)))

    def _give_up(self, share: Share) -> Lease:
        lease, share.lease = share.lease, None
        assert lease is not None
        lease.close()
        return lease

    async def _settle(self) -> None:
        loop = asyncio.get_running_loop() if on_asyncio() else None
        while tasks := [task for task in list(self._tasks) if task.get_loop() is loop]:
            await asyncio.wait(tasks)
