"""Waiters for room under one rule and key: the requests of one queue, and what the first of them was told."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeAlias

import anyio

from ..core.buckets import Check
from ..core.decision import Decision, Reason
from ..core.ring import OPEN, WindowState
from ..stores.shared import running_loop

PAUSE_S: Final = 0.2
"""How long the first waiter sleeps at most before it asks again."""
LATE_S: Final = 0.01
"""The tolerance of bounds for late timers: without it the second request of a burst would miss its turn."""

Name: TypeAlias = tuple[str, str]
"""The name of a queue: that of the rule's bucket, and the key."""


class Waiter:
    """A request that waits. It sleeps in its own event loop, of asyncio or trio; any thread may wake it.

    Args:
        tenant: The tenant whose share of the permits it takes.
        is_gone: Returns whether its client has left. Callable from any thread.
        wait_us: How long it may wait.

    Attributes:
        tenant: The tenant whose share of the permits it takes.
        is_gone: Returns whether its client has left.
        until_s: When its time is over; see `now_s`.
    """

    def __init__(self, tenant: str, is_gone: Callable[[], bool], wait_us: int) -> None:
        self.tenant = tenant
        self.is_gone = is_gone
        self.until_s = now_s() + wait_us / 1_000_000 + LATE_S
        self._event = anyio.Event()
        self._call_soon: Callable[[Callable[[], object]], object]
        loop = running_loop()
        if loop is not None:
            self._call_soon = loop.call_soon_threadsafe
        else:
            self._call_soon = sys.modules["trio"].lowlevel.current_trio_token().run_sync_soon

    def wake(self) -> None:
        """End the sleep. Callable from any thread."""
        with suppress(RuntimeError):  # its event loop has ended
            self._call_soon(lambda: self._event.set())

    async def sleep(self, pause_s: float) -> None:
        """Sleep for a while, until its time is over, or until it is woken."""
        with anyio.move_on_after(min(pause_s, self.until_s - now_s())):
            await self._event.wait()
        self._event = anyio.Event()


class Queue:
    """The waiters of one rule and key. Who adds or removes some holds the lock of `Queues`.

    Attributes:
        waiters: The waiters, in order of arrival.
        refused_waiter: The waiter that was refused last.
        refusal: Its refusal.
        room_s: When it expects room for its own cost; see `now_s`.
    """

    def __init__(self) -> None:
        self.waiters: dict[Waiter, None] = {}
        self.refused_waiter: Waiter | None = None
        self.refusal: Decision | None = None
        self.room_s = 0.0

    def is_hopeless(self, waiter: Waiter) -> bool:
        """Return whether the time of a waiter is over before there is room, for all that is known."""
        # Who was refused and still waits is before it. If they have left, there may be room already.
        room_s = 0.0
        if self.refused_waiter in self.waiters:
            room_s = self.room_s
        return max(now_s(), room_s) >= waiter.until_s

    def note_refusal(self, waiter: Waiter, refusal: Decision, room_us: int) -> None:
        """Note what the first waiter was told, for all that wait behind it.

        Args:
            waiter: The first waiter.
            refusal: Its refusal.
            room_us: When it has room; 0 for a permit, which nobody announces.
        """
        self.refused_waiter = waiter
        self.refusal = refusal
        self.room_s = now_s() + room_us / 1_000_000

    def make_room(self, tenant: str) -> bool:
        """Remove waiters whose clients have left, else the newest one of the tenant with the most.

        Returns:
            False if nobody was removed: every client is there, and no tenant has more waiters than `tenant` would have.
        """
        removed = [waiter for waiter in self.waiters if waiter.is_gone()]
        if not removed:
            newest = self._newest_of_greediest(tenant)
            if newest is None:
                return False
            removed = [newest]
        for waiter in removed:
            del self.waiters[waiter]
            waiter.wake()
        return True

    def _newest_of_greediest(self, tenant: str) -> Waiter | None:
        """Return the newest waiter of the tenant with the most; None if no other has more than `tenant` would have."""
        waiting = Counter([waiter.tenant for waiter in self.waiters])
        waiting[tenant] += 1
        most = max(waiting.values())
        if waiting[tenant] == most:
            return None
        for waiter in reversed(self.waiters):
            if waiting[waiter.tenant] == most:
                return waiter
        return None

    def refusal_of(self, name: Name) -> Decision | None:
        """Return the refusal, as of now, of a waiter that did not ask: what the last one says of the rule and its key.

        Returns:
            None if nobody was refused under them yet.
        """
        last = self.refusal
        if last is None:
            return None
        left_us = max(round((self.room_s - now_s()) * 1_000_000), 1)
        checks: list[Check] = []
        readings: list[WindowState] = []
        at = 0
        for check in last.checks:
            bucket, key, _ = check
            of_check = last.readings[at : at + len(bucket.limits)]
            at += len(bucket.limits)
            # Other rules were asked about this waiter's own keys, which the last refusal does not know.
            if (bucket.name, key) != name:
                continue
            wait_us = left_us
            if bucket.is_permit:  # nobody knows when one comes back
                wait_us = OPEN
            checks.append(check)
            for spent, leave_us, newest_us, _ in of_check:
                readings.append((spent, leave_us, newest_us, wait_us))
        if not checks:
            return None
        return Decision(False, Reason.LIMITED, last.now_us, checks, readings)


def pause_before(room_us: int) -> float:
    """Return how long the first waiter sleeps before it asks again, if it has room then."""
    if not room_us:  # a permit, whose return nobody announces
        return PAUSE_S
    return min(room_us / 1_000_000, PAUSE_S)


def now_s() -> float:
    """Return monotonic time in seconds, the same in all threads and event loops.

    The loops of asyncio go by it, but trio's clock begins anywhere. A loop is asked for its own, because its timers go
    by that, in tests too.
    """
    loop = running_loop()
    if loop is None:
        return time.monotonic()
    return loop.time()
