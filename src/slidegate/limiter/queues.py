"""Queues of requests that wait for room, one for each rule and key of this process: first come, first served, or fair.

::

    admitted  <--  first  <--  second  <--  third      at most `wait_max`
                     |            '-----------'------- sleep until they are first, or their time is over
                     '-- asks the store, sleeps for its retry-after, asks again

While a queue exists, new requests of its rule and key join it without a question about them; other limits and bans are
looked at first, so that requests that they refuse take no places from others. Nothing is charged or
reserved for a waiter before its turn. A request that leaves the queue, admitted or not, wakes the next one; so does
every refund or release under its rule and key in this process. Nothing else wakes anybody, so the first waiter asks at
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
from ..core.decision import Decision, Reason
from ..core.quotas import Quota
from ..core.ring import OPEN
from ..stores.forks import InChild, ProcessLock
from ..stores.shared import running_loop

PAUSE_S: Final = 0.2
"""How long the first waiter sleeps at most before it asks again."""
LATE_S: Final = 0.01
"""The tolerance of bounds for late timers: without it the second request of a burst would miss its turn."""

Name: TypeAlias = tuple[str, str]
"""The name of a bucket, and a key."""
Ask: TypeAlias = Callable[[], Awaitable[Decision]]


class _Waiter:
    """A request that waits. It sleeps in its own event loop, of asyncio or trio; any thread may wake it.

    Attributes:
        tenant: The tenant whose share of the permits it takes.
        is_gone: Returns whether its client has left.
        until_s: When its time is over; see `_now_s`.
    """

    def __init__(self, tenant: str, is_gone: Callable[[], bool], wait_us: int) -> None:
        self.tenant = tenant
        self.is_gone = is_gone
        self.until_s = _now_s() + wait_us / 1_000_000 + LATE_S
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
        with anyio.move_on_after(min(pause_s, self.until_s - _now_s())):
            await self._event.wait()
        self._event = anyio.Event()


class _Queue:
    """The waiters of one rule and key.

    Attributes:
        waiters: The waiters, in order of arrival.
        refused: The waiter that was refused last.
        refusal: Its refusal.
        room_s: When it expects room for its own cost.
    """

    def __init__(self) -> None:
        self.waiters: dict[_Waiter, None] = {}
        self.refused: _Waiter | None = None
        self.refusal: Decision | None = None
        self.room_s = 0.0

    def is_hopeless(self, waiter: _Waiter) -> bool:
        """Return whether the time of a waiter is over before there is room, for all that is known."""
        room_s = self.room_s if self.refused in self.waiters else 0.0
        return max(_now_s(), room_s) >= waiter.until_s

    def make_room(self, tenant: str) -> bool:
        """Remove waiters whose clients have left, else the newest one of the tenant with the most.

        Returns:
            False if nobody was removed: every client is there, and no tenant has more waiters than `tenant` would have.
        """
        gone = [waiter for waiter in self.waiters if waiter.is_gone()]
        if not gone:
            waiting = Counter([tenant, *(waiter.tenant for waiter in self.waiters)])
            most = max(waiting.values())
            if waiting[tenant] == most:
                return False
            gone = [next(waiter for waiter in reversed(self.waiters) if waiting[waiter.tenant] == most)]
        for waiter in gone:
            del self.waiters[waiter]
            waiter.wake()
        return True

    def refusal_of(self, name: Name) -> Decision | None:
        """Return the refusal of a waiter that never asked: what the last refusal says about the rule and its key."""
        last = self.refusal
        if last is None:
            return None
        left_us = max(round((self.room_s - _now_s()) * 1_000_000), 1)
        pairs = zip([check for check in last.checks for _ in check[0].limits], last.readings, strict=True)
        own = [(check, reading) for check, reading in pairs if (check[0].name, check[1]) == name]
        readings = [(*reading[:3], OPEN if check[0].is_permit else left_us) for check, reading in own]
        checks = [*dict.fromkeys(check for check, _ in own)]
        return Decision(False, Reason.LIMITED, last.now_us, checks, readings) if own else None


class Queues:
    """The queues of one limiter."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._queues: dict[Name, _Queue] = {}
        self._permits: dict[Name, Counter[str]] = {}
        self._in_child = InChild(self.forget)

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
            if not +permits:
                del self._permits[name]
        self._wake(name)  # another waiter may be the first one now

    def refunded(self, checks: Iterable[Check]) -> None:
        """Wake the first waiter of each rule and key whose units or permits were refunded."""
        for bucket, key, _ in checks if self._queues else ():
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
        waiter = _Waiter(tenant, is_gone, wait_us)
        with self._lock:
            queue = self._queues.get(name) or _Queue()
            joins = len(queue.waiters) < wait_max or queue.make_room(tenant)
            if joins:
                self._queues[name] = queue
                queue.waiters[waiter] = None
        try:
            decision = await self._wait_for_turn(name, queue, waiter, refused, ask)
            if decision is None:
                decision = queue.refusal_of(name)
            if decision is None:  # the first waiter is still asking for the first time
                decision = await ask()
        finally:
            if joins:
                self._leave(name, queue, waiter)
        if decision.reason is Reason.OK:
            decision.reason = Reason.WAITED
        return decision

    async def _wait_for_turn(
        self, name: Name, queue: _Queue, waiter: _Waiter, decision: Decision | None, ask: Ask
    ) -> Decision | None:
        """Sleep, and ask as the first waiter, until there is an answer or the time is over; return the last answer."""
        has_slept = False
        while waiter in queue.waiters and not waiter.is_gone():
            pause_s = inf
            if self._first(name) is waiter:
                if decision is None or has_slept:
                    decision = await ask()
                room_us = room_in_us(decision)
                if room_us is None:
                    break
                wait_s = room_us / 1_000_000  # 0 for a permit
                queue.refused, queue.refusal, queue.room_s = waiter, decision, _now_s() + wait_s
                pause_s = min(wait_s or PAUSE_S, PAUSE_S)
            if queue.is_hopeless(waiter):
                break
            await waiter.sleep(pause_s)
            has_slept = True
        return decision

    def _leave(self, name: Name, queue: _Queue, waiter: _Waiter) -> None:
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

    def _first(self, name: Name) -> _Waiter | None:
        """Return the oldest waiter of the tenant that has the fewest permits."""
        with self._lock:
            queue, permits = self._queues.get(name), self._permits.get(name)
            if queue is None or not queue.waiters:
                return None
            waiters = queue.waiters
            return min(waiters, key=lambda waiter: permits[waiter.tenant]) if permits else next(iter(waiters))


def _now_s() -> float:
    """Return monotonic time in seconds, the same in all event loops: that of trio's begins anywhere."""
    loop = running_loop()
    return time.monotonic() if loop is None else loop.time()


def is_too_late(decision: Decision, wait_us: int) -> bool:
    """Return whether a decision is a refusal that waiting for `wait_us` microseconds does not change."""
    room_us = room_in_us(decision)
    return not decision.allowed and (room_us is None or room_us > wait_us)


def room_in_us(decision: Decision) -> int | None:
    """Return when a refused request has room, in microseconds from the decision; 0 for a permit, which may come soon.

    Returns:
        None if it is of no use to wait: the request is admitted, was not refused by limits, costs more than a limit
        allows, or has spent a quota, whose next period is not waited for.
    """
    lacking = decision.violated if decision.reason is Reason.LIMITED else ()
    if not lacking or any(isinstance(state.limit, Quota) for state in lacking):
        return None
    return max(state.retry_after_us or 0 for state in lacking)
