"""Queues of requests that wait for room, one for each rule and key of this process: first come, first served, or fair.

::

    admitted  <--  first  <--  second  <--  third      at most `wait_max`
                     |            '-----------'------- sleep until they are first, or their time is over
                     '-- asks the store, sleeps for its retry-after, asks again

While a queue exists, new requests of its rule and key join it without a question about them; other limits and bans are
checked first, so that requests that they refuse take no places from others. Nothing is charged or
reserved for a waiter before its turn. A request that leaves the queue, admitted or not, wakes the next one; so does
every refund or release under its rule and key in this process. Nothing else wakes a waiter, so the first one asks at
least every `PAUSE_S`. Other processes have queues of their own, and may be admitted first.

If a rule shares its permits among tenants, the first waiter is the oldest of the tenant that has the fewest permits in
this process. The state of a queue belongs to no event loop: waiters of any loop, in any thread, share it.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from math import inf
from typing import Final, TypeAlias

import anyio

from ..core.buckets import Check
from ..core.decision import Decision, Reason, refused_later
from ..core.open_reservations import SOON_US
from ..core.quotas import Quota
from ..core.readings import limits_read
from ..stores.forks import ForkHook, ProcessLock
from ..stores.shared import running_loop

PAUSE_S: Final = 0.2
"""How long the first waiter sleeps at most before it asks again."""
LATE_S: Final = 0.01
"""The tolerance of bounds for late timers: without it the second request of a burst would miss its turn."""

Name: TypeAlias = tuple[str, str]
"""The name of a queue: that of the rule's bucket, and the key."""
Ask: TypeAlias = Callable[[], Awaitable[Decision]]
"""Asks the store the whole question of a request."""


class Waiter:
    """A request that waits. It sleeps in its own event loop, of asyncio or trio; any thread may wake it.

    Args:
        tenant: The tenant whose share of the permits it takes.
        is_gone: Returns whether its client has left. Callable from any thread.
        wait_us: How long it may wait.

    Attributes:
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
            self._call_soon(lambda: self._event.set())  # the event of then: each sleep has its own

    async def sleep(self, pause_s: float) -> None:
        """Sleep for a while, until its time is over, or until it is woken."""
        with anyio.move_on_after(min(pause_s, self.until_s - now_s())):
            await self._event.wait()
        self._event = anyio.Event()


class Queue:
    """The waiters of one rule and key. Code that adds or removes some holds the lock of `Queues`.

    Attributes:
        waiters: The waiters, in order of arrival.
        refused_waiter: The waiter that was refused last.
        refusal: Its refusal.
        refused_s: When that was; see `now_s`.
        room_s: When that waiter expects room for its own cost.
    """

    def __init__(self) -> None:
        self.waiters: dict[Waiter, None] = {}
        self.refused_waiter: Waiter | None = None
        self.refusal: Decision | None = None
        self.refused_s = self.room_s = 0.0

    def is_hopeless(self, waiter: Waiter) -> bool:
        """Return whether the time of a waiter is over before there is room, for all that is known."""
        # A refused waiter that still waits is before it. If it has left, there may be room already.
        room_s = 0.0
        if self.refused_waiter in self.waiters:
            room_s = self.room_s
        return max(now_s(), room_s) >= waiter.until_s

    def note_refusal(self, waiter: Waiter, refusal: Decision, room_us: int) -> None:
        """Record the refusal of the first waiter, for all that wait behind it.

        Args:
            room_us: In how long it has room, see `room_in_us`; 0 for a permit, which another process may return at any
                moment.
        """
        self.refused_waiter = waiter
        self.refusal = refusal
        self.refused_s = now_s()
        self.room_s = self.refused_s + room_us / 1_000_000

    def make_room(self, tenant: str) -> bool:
        """Remove waiters whose clients have left, else the newest one of the tenant with the most.

        Returns:
            False if none was removed: every client is there, and no tenant has more waiters than `tenant` would have.
        """
        leaving = [waiter for waiter in self.waiters if waiter.is_gone()]
        if not leaving:
            newest = self._newest_of_greediest(tenant)
            if newest is None:
                return False
            leaving = [newest]
        for waiter in leaving:
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
            None if none was refused by these yet.
        """
        last = self.refusal
        if last is None:
            return None
        # Other rules were asked about this waiter's own keys, which the last refusal does not know.
        checks = [check for check in last.checks if (check[0].name, check[1]) == name]
        limits = limits_read(last.checks, last.readings)
        readings = [reading for bucket, key, _, _, reading in limits if (bucket.name, key) == name]
        passed_us = round((now_s() - self.refused_s) * 1_000_000)
        refusal = refused_later(readings, last.now_us, last.now_us + passed_us, checks)
        if last.at_least_us == SOON_US:  # only reservations refused it; else until the ban of another client ends
            refusal.at_least_us = SOON_US
        if not refusal.violated:
            return None
        return refusal


def now_s() -> float:
    """Return monotonic time in seconds, the same in all threads and event loops.

    The loops of asyncio use it, but trio's clock starts anywhere. A running loop returns its own time, by which its
    timers go, in tests too.
    """
    loop = running_loop()
    if loop is None:
        return time.monotonic()
    return loop.time()


class Queues:
    """The queues of one limiter."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._queues: dict[Name, Queue] = {}
        self._permits: dict[Name, Counter[str]] = {}
        self._in_child = ForkHook(self.forget)

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return sum([len(queue.waiters) for queue in list(self._queues.values())])

    def is_queued(self, name: Name) -> bool:
        """Return whether requests wait already, so that a new one has to join them without asking."""
        return name in self._queues

    def count_permit(self, name: Name, tenant: str, change: int) -> None:
        """Record that a tenant has one more permit, or one less. Call it for all permits of a rule that is fair."""
        with self._lock:
            permits = self._permits.setdefault(name, Counter())
            permits[tenant] += change
            # Of a tenant without permits nothing is kept: clients may choose its name.
            if permits[tenant] <= 0:
                del permits[tenant]
            if not permits:
                del self._permits[name]
        self._wake(name)  # another waiter may be the first one now

    def refunded(self, checks: Iterable[Check]) -> None:
        """Wake the first waiter of each rule and key whose units or permits were refunded."""
        if not self._queues:
            return
        for bucket, key, _ in checks:
            self._wake((bucket.name, key))

    def wake(self) -> None:
        """Wake the first waiter of each queue: windows were reset, or amounts changed."""
        for name in self._queues.copy():
            self._wake(name)

    def forget(self) -> None:
        """Drop all queues, as in a child of `fork`: the requests that wait in the parent never run in the child."""
        self._queues.clear()
        self._permits.clear()

    async def wait(
        self,
        name: Name,
        refused: Decision | None,
        ask: Ask,
        *,
        wait_us: int,
        wait_max: int,
        tenant: str = "",
        is_gone: Callable[[], bool] = lambda: False,
    ) -> Decision:
        """Wait until `ask` admits a request, or its time is over.

        Args:
            name: The bucket of the rule, and the key.
            refused: The refusal of the request; None for one that joins a queue without having asked.
            ask: Asks the store the whole question. What it admits is refunded if it is cancelled meanwhile.
            wait_us: The longest wait, in microseconds.
            wait_max: The most waiters.
            tenant: The tenant of the request, if the rule is fair; the caller records its permit with `count_permit`.
            is_gone: Returns whether the client has left. Callable from any thread.

        Returns:
            The last decision; an admission after a wait has the reason WAITED. A request that cannot be admitted in
            time, by the retry-after of the first waiter, is refused immediately.
        """
        waiter = Waiter(tenant, is_gone, wait_us)
        with self._lock:
            queue = self._queues.get(name) or Queue()
            joins = len(queue.waiters) < wait_max or queue.make_room(tenant)
            if joins:
                self._queues[name] = queue
                queue.waiters[waiter] = None
        try:
            decision = await self._wait_for_turn(name, queue, waiter, refused, ask)
            # It never asked, or so long ago that its answer is out of date: the last refusal is newer.
            if decision is None:
                decision = queue.refusal_of(name)
            # The first waiter is still asking for the first time.
            if decision is None:
                decision = await ask()
        finally:
            if joins:
                self._leave(name, queue, waiter)
        if decision.reason is Reason.OK:
            decision.reason = Reason.WAITED
        return decision

    async def _wait_for_turn(
        self, name: Name, queue: Queue, waiter: Waiter, decision: Decision | None, ask: Ask
    ) -> Decision | None:
        """Sleep, and ask as the first waiter, until there is an answer or the time is over.

        Args:
            decision: Its refusal before it waits, if it has asked.

        Returns:
            The decision as of now; None if it has slept since it asked, or never asked.
        """
        while waiter in queue.waiters and not waiter.is_gone():
            pause_s = inf
            if self._first(name) is waiter:
                if decision is None:
                    decision = await ask()
                room_us = room_in_us(decision)
                # It is admitted, or refused for something that no wait changes.
                if room_us is None:
                    return decision
                queue.note_refusal(waiter, decision, room_us)
                pause_s = PAUSE_S
                if room_us:  # 0 for a permit, whose return nobody can foretell
                    pause_s = min(room_us / 1_000_000, PAUSE_S)
            if queue.is_hopeless(waiter):
                return decision
            await waiter.sleep(pause_s)
            decision = None
        return decision

    def _leave(self, name: Name, queue: Queue, waiter: Waiter) -> None:
        """Remove a waiter from its queue, and wake the new first one."""
        with self._lock:
            queue.waiters.pop(waiter, None)
            if not queue.waiters and self._queues.get(name) is queue:
                del self._queues[name]
        self._wake(name)

    def _wake(self, name: Name) -> None:
        """Wake the first waiter of a queue, if there is one."""
        waiter = self._first(name)
        if waiter is not None:
            waiter.wake()

    def _first(self, name: Name) -> Waiter | None:
        """Return the oldest waiter of the tenant that has the fewest permits."""
        with self._lock:
            queue = self._queues.get(name)
            if queue is None:
                return None
            # Only rules that are fair count permits by tenant.
            permits = self._permits.get(name)
            if not permits:
                return next(iter(queue.waiters), None)
            return min(queue.waiters, key=lambda waiter: permits[waiter.tenant], default=None)


def is_too_late(decision: Decision, wait_us: int) -> bool:
    """Return whether a decision is a refusal that waiting for `wait_us` microseconds does not change."""
    room_us = room_in_us(decision)
    return not decision.allowed and (room_us is None or room_us > wait_us)


def room_in_us(decision: Decision) -> int | None:
    """Return when a refused request has room, in microseconds from the decision; 0 for what may come back soon.

    Permits may, and open reservations.

    Returns:
        None if it is of no use to wait: the request is admitted, was not refused by limits, costs more than a limit
        allows, or has spent a quota, whose next period is not waited for.
    """
    if decision.reason is not Reason.LIMITED:
        return None
    violated = decision.violated
    if not violated or any(isinstance(state.limit, Quota) and state.retry_after_us for state in violated):
        return None
    return max(state.retry_after_us or 0 for state in violated)
