"""Queues of requests that wait for room, within one process: first come, first served, or fair among tenants.

There is a queue for each rule and key, whether requests wait for units of windows or for permits::

    admitted  <--  first  <--  second  <--  third      at most `Terms.wait_max`
                     |            '-----------'------- sleep until they are first, or time out
                     '-- queries the store, sleeps for its retry-after, queries again

While a queue exists, new requests of its key join it without a query. Nothing is charged or reserved for a waiter, so a
queue holds no units, permits or locks. A request that leaves the queue, admitted or not, wakes the next one; so does
every refund or release. A permit has no retry-after, so the first waiter queries at least every `PAUSE_S`. Other
processes do not see the queue, and may be admitted first.

If a rule shares its permits fairly among tenants, the first waiter is the oldest of the tenant that holds the fewest
permits in this process. A full queue then still accepts a new request if another tenant has more requests in it: the
newest request of that tenant is removed, and refused.

A request that cannot be admitted in time, according to the retry-after of the first waiter, is refused immediately.
Repeated queries are not counted as denied; with `count_denied`, a refusal after waiting is counted once.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio

from ..core.bans.ban import BanSubject
from ..core.decision import Bucket, Check, Decision, Reason, uncounted
from ..core.limits import AnyLimit
from ..core.quotas import Quota
from ..core.reservation import Reservation
from ..core.ring import NEVER, OPEN
from ..stores.forks import begin_anew_in_child, hold_over_fork
from .aio import on_asyncio, to_the_end
from .terms import terms_of

if TYPE_CHECKING:
    from .engine import Engine

PAUSE_S: Final = 0.2
"""How long the first waiter sleeps before it queries for a permit again, if nothing wakes it."""
LATE_S: Final = 0.01
"""The tolerance of timeouts for late timers; without it the second request of a burst would miss its turn."""

Name: TypeAlias = tuple[str, str]
"""The identity of a rule, and a key."""


class Queue:
    """The waiting requests of one rule and key.

    Args:
        held: The number of permits that each tenant holds, if they are shared fairly.

    Attributes:
        waiters: The requests, in order of arrival.
        asks_s: When the first waiter queries the store next, in its event loop's time.
    """

    __slots__ = ("_held", "asks_s", "waiters")

    def __init__(self, held: Counter[str | None]) -> None:
        self.waiters: list[Waiter] = []
        self.asks_s = anyio.current_time()
        self._held = held

    @property
    def first(self) -> Waiter:
        """The request to admit next: the oldest of the tenant that holds the fewest permits."""
        return min(self.waiters, key=lambda waiter: self._held[waiter.tenant]) if self._held else self.waiters[0]

    def make_room(self, waiter: Waiter) -> bool:
        """Remove the newest request of the tenant with the most waiters; False if that is the new request's tenant."""
        waiting = Counter(one.tenant for one in (*self.waiters, waiter))
        most = max(waiting.values())
        if waiting[waiter.tenant] == most:
            return False
        newest = next(one for one in reversed(self.waiters) if waiting[one.tenant] == most)
        self.waiters.remove(newest)
        newest.gave_way = True
        newest.wake()
        return True


class Queues:
    """The queues of one limiter.

    Args:
        engine: Queries the store.

    Attributes:
        by_name: The queues that are not empty.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        hold_over_fork(self._lock)
        self.by_name: dict[Name, Queue] = {}
        self._held: dict[Name, Counter[str | None]] = {}
        begin_anew_in_child(self.forget)

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return sum([waiter.waits for queue in list(self.by_name.values()) for waiter in list(queue.waiters)])

    def decide(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision | Awaitable[Decision]:
        """Charge every check or none; without a query, return `not_asked` if the request has to queue first.

        With `count_denied`, every request that may wait queues first; otherwise it would be charged for a refusal
        before waiting.
        """
        fair = False
        for check in checks:
            bucket = check[0]
            terms = terms_of(bucket)
            if terms.wait_us and (bucket.count_denied or (self.by_name and (bucket.name, check[1]) in self.by_name)):
                return not_asked(check, checks)
            fair = fair or terms.tenant is not None
        return self._query(checks, subjects) if fair else self._engine.decide(checks, subjects)

    def _query(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision | Awaitable[Decision]:
        """Charge every check or none, and record the permits that this grants to tenants."""
        answer = self._engine.decide(checks, subjects)
        return self._hold(answer) if isinstance(answer, Decision) else self._hold_later(answer)

    async def _hold_later(self, answer: Awaitable[Decision]) -> Decision:
        return self._hold(await answer)

    def _hold(self, decision: Decision) -> Decision:
        if not decision.allowed or all(terms_of(bucket).tenant is None for bucket, _, _ in decision.checks):
            return decision
        granted = {name: tenant for name, tenant in _tenants(decision.reservations).items() if tenant is not None}
        with self._lock:
            for name, tenant in granted.items():
                self._held.setdefault(name, Counter())[tenant] += 1
        for name in granted if self.by_name else ():
            self._wake(name)  # another request may be first now, and only the first queries the store
        return decision

    def _let_go(self, name: Name, tenant: str | None) -> None:
        """Remove a permit of a tenant, and the whole entry when no request holds or awaits a permit."""
        with self._lock:
            held = self._held.get(name, Counter())
            held[tenant] -= 1
            if held[tenant] <= 0:
                del held[tenant]
            if not held and name not in self.by_name:
                self._held.pop(name, None)

    def forget(self) -> None:
        """Drop all queues, as in a child of `fork`: the requests that wait in the parent never run in the child."""
        self.by_name.clear()
        self._held.clear()

    def freed(self, reservations: Sequence[Reservation]) -> None:
        """Wake the first waiter of each rule and key whose units or permits were refunded."""
        if not self.by_name and not self._held:
            return
        for name, tenant in _tenants(reservations).items():
            if tenant is not None:
                self._let_go(name, tenant)
            self._wake(name)

    def reset(self, key: str | None = None) -> None:
        """Wake the first waiter of each queue of a key, or of all: windows were reset, or amounts changed."""
        for name in list(self.by_name):
            if key is None or name[1] == key:
                self._wake(name)

    def join(self, name: Name, waiter: Waiter, max_waiting: int) -> Queue | None:
        """Append a waiter to a queue, and return it; None if it is full. Call `leave` afterwards."""
        with self._lock:
            queue = self.by_name.get(name) or Queue(self._held.setdefault(name, Counter()))
            if len(queue.waiters) >= max_waiting and not queue.make_room(waiter):
                return None
            self.by_name[name] = queue
            queue.waiters.append(waiter)
            return queue

    def leave(self, name: Name, waiter: Waiter) -> None:
        """Remove a waiter from its queue, and wake the new first one."""
        with self._lock:
            if waiter.gave_way:
                return
            queue = self.by_name[name]
            queue.waiters.remove(waiter)
            if not queue.waiters:
                del self.by_name[name]
                if not self._held[name]:
                    del self._held[name]
        self._wake(name)

    def _wake(self, name: Name) -> None:
        with self._lock:
            queue = self.by_name.get(name)
            if queue is not None:
                queue.first.wake()

    async def ask(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision:
        """Query the store. If the caller is cancelled meanwhile, an admission is refunded."""
        answer = self._query(checks, subjects)
        return answer if isinstance(answer, Decision) else await self._unless_cancelled(answer)

    async def _unless_cancelled(self, answer: Awaitable[Decision]) -> Decision:
        given_up, decision = False, None

        async def heard() -> Decision:
            nonlocal decision
            decision = await answer
            if given_up:
                await self._engine.refund(decision.take_back())
            return decision

        try:
            return await to_the_end(heard())
        except BaseException:
            given_up = True
            if decision is not None:
                await to_the_end(self._engine.refund(decision.take_back()))
            raise

    async def wait(
        self, refused: Decision, subjects: Sequence[BanSubject] = (), begins: Callable[[], object] | None = None
    ) -> Decision:
        """Wait for room, as long as the rules of the request allow.

        Args:
            refused: The refusal of the request, or what `not_asked` returned.
            subjects: Further keys whose bans refuse the request.
            begins: Called when the request starts to sleep, if it has to.

        Returns:
            The final decision of the store; an admission after a wait has the reason `WAITED`.
        """
        return await Waiter(self, self._engine, refused, subjects, begins).wait()


def _tenants(reservations: Sequence[Reservation]) -> dict[Name, str | None]:
    """Return the rules and keys that were charged, with the tenant of each; after an outage two stores charge each."""
    charged = [reservation.check for reservation in reservations if any(reservation.units)]
    return {(bucket.name, key): terms_of(bucket).tenant for bucket, key, _ in charged}


class Waiter:
    """A waiting request, which may pass through several queues.

    It sleeps in its event loop, and can be woken from any thread.

    Args:
        queues: The queues.
        engine: Queries the store.
        refused: As for `Queues.wait`.
        subjects: As for `Queues.wait`.
        begins: As for `Queues.wait`.

    Attributes:
        tenant: Its tenant under the rule of its queue; None if that rule does not share permits fairly.
        waits: Whether it counts as waiting, because it could not be admitted immediately.
        gave_way: Whether it was removed from its queue in favor of another tenant.
    """

    def __init__(
        self,
        queues: Queues,
        engine: Engine,
        refused: Decision,
        subjects: Sequence[BanSubject],
        begins: Callable[[], object] | None,
    ) -> None:
        self.tenant: str | None = None
        self.waits = self.gave_way = False
        self._queues = queues
        self._engine = engine
        self._checks = refused.checks
        self._subjects = subjects
        self._began_s = self._until_s = anyio.current_time()
        self._begins = begins
        self._refusal = None if _is_not_asked(refused) else refused
        self._lacks = _queue_of(refused) if self._refusal is None else _longest(_lacking(refused) or ())
        self._event = anyio.Event()
        self._soon: Callable[[Callable[[], object]], object]
        if on_asyncio():
            self._soon = asyncio.get_running_loop().call_soon_threadsafe
        else:
            self._soon = sys.modules["trio"].lowlevel.current_trio_token().run_sync_soon

    def wake(self) -> None:
        """End the sleep. Callable from any thread; the event itself is set in its event loop."""
        with suppress(RuntimeError):  # its event loop has ended
            self._soon(lambda: self._event.set())

    async def _sleep(self, wait_s: float) -> None:
        """Sleep until woken, for at most `wait_s` seconds."""
        with anyio.move_on_after(wait_s):
            await self._event.wait()
        self._event = anyio.Event()

    async def _turn(self, queue: Queue) -> bool:
        """Sleep until it is first in a queue; return False if it times out, or was removed."""
        while not self.gave_way and queue.first is not self:
            left_s = self._until_s + LATE_S - anyio.current_time()
            if left_s <= 0:
                return False
            await self._sleep(left_s)
        return not self.gave_way

    def _repeated(self) -> list[Check]:
        """Return the checks of a repeated query, which is not counted as denied."""
        return [(uncounted(bucket), key, cost) for bucket, key, cost in self._checks]

    async def wait(self) -> Decision:
        """See `Queues.wait`."""
        decision = None
        while decision is None:  # it now has to wait in another queue
            decision = await self._queue()
        if not decision.allowed:
            decision = await self._refused(decision)
        elif self.waits and decision.reason is Reason.OK:
            decision.reason = Reason.WAITED
        if decision.readings:
            decision.checks = self._own(decision.checks)
        return decision

    async def _queue(self) -> Decision | None:
        """Wait in one queue; return None to continue in another one."""
        bucket, key, _ = self._lacks
        name = bucket.name, key
        self._until_s = self._began_s + terms_of(bucket).wait_us / 1_000_000
        self.gave_way = False
        self.tenant = self._tenant_under(name)
        queue = self._queues.join(name, self, terms_of(bucket).wait_max)
        if queue is None:
            return await self._turned_away(0)
        try:
            if queue.first is not self:
                if not self._is_in_time(queue.asks_s):
                    return await self._turned_away(queue.asks_s)
                self._count()
                if not await self._turn(queue):
                    return await self._turned_away(queue.asks_s)
                self._refusal = None
            return await self._first(queue, name)
        finally:
            self._queues.leave(name, self)

    async def _first(self, queue: Queue, name: Name) -> Decision | None:
        """As the first waiter of a queue, query the store and sleep for its retry-after, until admitted or late."""
        while True:
            decision, self._refusal = self._refusal, None
            if decision is None:
                decision = await self._queues.ask(self._repeated(), self._subjects)
            lacks = _lacking(decision)
            if decision.allowed or lacks is None:
                return decision
            self._until_s = min(
                self._until_s, self._began_s + min(terms_of(bucket).wait_us for bucket, _, _ in lacks) / 1_000_000
            )
            wait_us = max(wait_us for *_, wait_us in lacks)
            queue.asks_s = anyio.current_time() + wait_us / 1_000_000
            if any(wait_us == OPEN for *_, wait_us in lacks):
                queue.asks_s = max(queue.asks_s, anyio.current_time() + PAUSE_S)
                queue.asks_s = min(queue.asks_s, max(self._until_s, anyio.current_time() + LATE_S))
            if not self._is_in_time(queue.asks_s):
                return decision
            self._lacks = _longest(lacks)
            if (self._lacks[0].name, self._lacks[1]) != name:
                self._refusal = decision
                return None
            self._count()
            await self._sleep(queue.asks_s - anyio.current_time())
            if not await self._turn(queue):
                return await self._turned_away(queue.asks_s)

    def _tenant_under(self, name: Name) -> str | None:
        """Return the tenant of the request under the rule of a queue: each rule may have tenants of its own."""
        own = (terms_of(bucket).tenant for bucket, key, _ in self._checks if (bucket.name, key) == name)
        return next((tenant for tenant in own if tenant is not None), None)

    def _is_in_time(self, asks_s: float) -> bool:
        """Return whether an admission at a time, in seconds of the event loop, would be before the timeout."""
        return max(asks_s, anyio.current_time()) < self._until_s + LATE_S

    def _count(self) -> None:
        """Count the request as waiting, once."""
        if not self.waits:
            self.waits = True
            if self._begins is not None:
                self._begins()

    async def _turned_away(self, asks_s: float) -> Decision:
        """Return the refusal of a request that timed out or found no place, even if the store has room by now."""
        decision = await self._engine.peek(self._repeated(), self._subjects)
        if not decision.allowed or not decision.readings:
            return decision
        later_us = max(round((asks_s - anyio.current_time()) * 1_000_000), 1)
        queues_for, whose, _ = self._lacks
        waits = [
            0 if (bucket.name, key) != (queues_for.name, whose) else OPEN if bucket.is_permit else later_us
            for bucket, key, _ in decision.checks
            for _ in bucket.limits
        ]
        readings = [(*reading[:3], wait_us) for reading, wait_us in zip(decision.readings, waits, strict=True)]
        return Decision(False, Reason.LIMITED, decision.now_us, decision.checks, readings)

    def _own(self, checks: Sequence[Check]) -> list[Check]:
        """Replace the `uncounted` checks by the original ones."""
        own = {(uncounted(bucket), key): (bucket, key, cost) for bucket, key, cost in self._checks}
        return [own.get((bucket, key), (bucket, key, cost)) for bucket, key, cost in checks]

    async def _refused(self, decision: Decision) -> Decision:
        """Return the final refusal; with `count_denied` it is charged now, once."""
        counted = [check for check in self._checks if check[0].count_denied]
        if counted and decision.readings and decision.reason is Reason.LIMITED:
            await self._engine.charge(counted)
            decision = await self._turned_away(0)
        return decision


def not_asked(check: Check, checks: Sequence[Check]) -> Decision:
    """Return the provisional refusal of a request that has to queue, before the store was queried.

    Args:
        check: The check whose queue the request has to join.
        checks: All checks of the request.
    """
    readings = [(0, 0, 0, OPEN if other is check else 0) for other in checks for _ in other[0].limits]
    return Decision(False, Reason.LIMITED, 0, checks, readings, at_least_us=OPEN)


def _is_not_asked(decision: Decision) -> bool:
    return decision.at_least_us == OPEN


def _queue_of(provisional: Decision) -> Check:
    """Return the check whose queue a request has to join that `not_asked` has refused."""
    queued = [check for check in provisional.checks for _ in check[0].limits]
    waits = [wait_us for *_, wait_us in provisional.readings]
    return queued[waits.index(OPEN)]


Lacking: TypeAlias = list[tuple[Bucket, str, int]]
"""What a request waits for: the limits, the key, and the wait in microseconds."""


def may_wait(decision: Decision) -> bool:
    """Return whether a request may wait: it was not admitted, and all that it lacks will become available."""
    return _is_not_asked(decision) or bool(_lacking(decision))


def _lacking(decision: Decision) -> Lacking | None:
    """Return what a refused request lacks; None if it may not wait for that, or was not refused by limits."""
    if decision.allowed or not decision.readings:
        return None
    lacks: Lacking = []
    waits = iter(decision.readings)
    for bucket, key, _ in decision.checks:
        for limit in bucket.limits:
            wait_us = next(waits)[3]
            if wait_us and not _comes_back(bucket, limit, wait_us):
                return None
            if wait_us:
                lacks.append((bucket, key, wait_us))
    return lacks


def _comes_back(bucket: Bucket, limit: AnyLimit, wait_us: int) -> bool:
    """Return whether a request may wait for a limit: not for a quota's next period, nor if the cost can never fit."""
    return bool(terms_of(bucket).wait_us) and wait_us != NEVER and not isinstance(limit, Quota)


def _longest(lacks: Sequence[tuple[Bucket, str, int]]) -> tuple[Bucket, str, int]:
    """Return the longest wait: queueing for it does not block requests that wait for less."""
    return max(lacks, key=lambda lack: lack[2])
