"""The internal interface between limiter, middlewares and store.

A `Limiter` parses its users' arguments: limits, keys, costs, durations. Its `Engine` queries the store, through the
failure policy if the store can fail::

    Limiter.hit(key, limits)  --->  Engine.ask(question)  --->  [Failover.ask  --->]  store.ask
    middleware: its buckets and keys  ----^

A middleware validates its limits once, when it is created, and avoids a coroutine if the store answers synchronously.
So it uses `limiter.engine` directly. Nothing here is public: any release may change it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from inspect import isawaitable
from itertools import count
from typing import Any, ClassVar, Final, TypeAlias, TypeVar
from weakref import WeakSet, ref

from ..core.bans.ban import Ban, BanSubject
from ..core.bans.policy import BanPolicy
from ..core.decision import Check, Decision, Reason
from ..core.errors import ConfigurationError, StoreUnavailable
from ..core.question import Question
from ..core.reservation import Reservation
from ..core.store import BanStore, Clock, Event, Store, closed
from ..stores.memory.store import MemoryStore
from ..stores.system_clock import SYSTEM, monotonic_us, system_us
from .aio import COMMAND_DEADLINE_S, within
from .failover import Failover, OnError, check_failure_policy
from .inspect import Callers, Guard
from .keys import Keys
from .observers import AnyObserver, ObserverHub, listed_observers
from .operators import NetworkLookup
from .outcome import outcome_of_question
from .overrides import Overrides
from .queues import Queues
from .rows import Rows

T = TypeVar("T")
_NS_PER_US: Final = 1_000


Decide: TypeAlias = Callable[[Sequence[Check], Sequence[BanSubject]], Decision | Awaitable[Decision]]
"""A function that charges every check or none, as `Store.hit` does."""
Ask: TypeAlias = Callable[[Any], Decision | Awaitable[Decision]]
"""A function that charges every check of a prepared question or none, as `Store.ask` does."""


class Engine:
    """Queries a store on behalf of a limiter and its middlewares.

    Args:
        store: The store.
        secret: The user's key for digests; None for none.
        observers: The first observers of events, the store's and the limiter's, and of outcomes.
        deadline: How long the store may take to answer a request.
        on_error: What decides if the store takes longer.
        networks: The files that map addresses to operators, for bans of operators.

    Attributes:
        networks: Those files.
        counting: Whether limits count and refuse. A test may turn that off for all limiters; see `all_limiters`.
        is_on: Whether they do, as far as operators decide; see `switch`.
        per_process: Whether every process has separate counts.
        prepare: Returns a question in a form that the store answers faster; see `Store.prepare`.
        ask: Charges every check of such a question or none; its decision refers to the question. Not a coroutine, so a
            synchronous store's decision is returned directly.
        decide: Does the same for checks that are asked once.
        unix_us: Returns Unix time in microseconds, by the system clock.
        observers: The observers.
        emit: Emits an event of the limiter or a middleware.
        now_us: Returns Unix time in microseconds, measured once and advanced by the monotonic clock, so that a step of
            the system clock does not distort durations.
        keys: Normalizes keys.
        failover: Queries a store that can fail; None for a memory store.
        queues: The queues of waiting requests.
        callers: The middlewares, functions and transports that use this limiter.
        ending: Coroutine functions to await when the application ends or the limiter is closed.
        forgetting: Functions that `forget` calls.
        overrides: The limits that operators have changed temporarily.
        rows: What the workers of the store keep for each other.

    Raises:
        ConfigurationError: The secret, the deadline or `on_error` is invalid.
    """

    counting: ClassVar[bool] = True

    def __init__(
        self,
        store: Store,
        secret: str | bytes | None,
        observers: Iterable[AnyObserver],
        deadline: str | float | timedelta,
        on_error: OnError,
        networks: Sequence[NetworkLookup],
    ) -> None:
        self.store = store
        self.networks = networks
        self.prepare = store.prepare
        check_failure_policy(deadline, on_error)
        memory = store if isinstance(store, MemoryStore) else None
        self.per_process = memory is not None
        self.unix_us: Clock = system_us if memory is None else memory.unix_us
        self.ending: list[Callable[[], Awaitable[None]]] = []
        self.forgetting: list[Callable[[], object]] = []
        self.observers = ObserverHub(self.unix_us, self.ending, self.forgetting)
        for observer in listed_observers(observers):
            self.observers.subscribe(observer)
        self.emit: Callable[[Event], None] = self.observers.emit
        store.observe(self.emit)
        self.callers = Callers()
        self.failover: Failover | None = None
        if memory is None:  # a memory store never waits or fails
            self.failover = Failover(store, deadline, on_error, self.emit, buckets=self.callers.all_buckets)
        self.keys = Keys(secret)
        clock = None if memory is None else memory.clock
        self.now_us: Clock = clock or _steady_clock()
        self.queues = Queues(self.refund)
        self.rows = Rows(self)
        self.overrides = Overrides(self)
        self._counts_permits = store.permits_held() is not None  # read once: counting them may be slow
        self._owners: dict[str, dict[int, ref[object]]] = {}
        self._closed = False
        self.is_on = True
        self.rebuild()
        _every.add(self)

    def unique_id(self, rule: str, owner: object) -> str:
        """Return an identity for counts without a name: `rule` for the first owner, ``rule#2`` for the next.

        An owner that asks again gets the same one.

        Args:
            rule: What identifies them in one owner.
            owner: The middleware that counts. An identity is free again when its owner is gone.

        Raises:
            ConfigurationError: There is another owner, and the store is shared: workers may create them in another
                order, and would count in each other's windows.
        """
        owners = self._owners.setdefault(rule, {})
        alive = {number for number, other in owners.items() if other() not in (None, owner)}
        if alive and not self.per_process:
            raise ConfigurationError(
                f"two middlewares of one limiter have limits without a name ({rule.partition(':')[0]!r}), and workers "
                'may create them in another order; write RateLimitMiddleware(..., name="admin") for one of them'
            )
        own = [number for number, other in owners.items() if other() is owner]
        number = own[0] if own else next(number for number in count(1) if number not in alive)
        owners[number] = ref(owner)
        return rule if number == 1 else f"{rule}#{number}"

    async def peek(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision:
        """Return what `decide` would return now. Changes nothing."""
        self._expect_open()
        answer = self._backend.peek(checks, subjects)
        return answer if isinstance(answer, Decision) else await answer

    async def charge(self, checks: Sequence[Check]) -> Decision:
        """Record every cost, whatever the limits."""
        self._expect_open()
        answer = self._backend.charge(checks)
        return answer if isinstance(answer, Decision) else await answer

    async def refund(self, reservations: Sequence[Reservation]) -> bool:
        """Refund what a decision charged; False if nothing could be refunded, or the limiter is closed."""
        if self._closed or not reservations:
            return False
        try:
            answer = (self.failover or self.store).refund(reservations)
            return answer if isinstance(answer, bool) else await answer
        finally:
            self.queues.refunded(reservations)

    async def command(self, ask: Callable[[], T | Awaitable[T]], deadline_s: float = COMMAND_DEADLINE_S) -> T:
        """Return the store's answer to a command of an operator, which has a longer deadline than a request.

        Args:
            ask: Queries the store.
            deadline_s: The deadline of the whole command; each of its steps has `COMMAND_DEADLINE_S`.

        Raises:
            StoreError: The store does not answer.
        """
        self._expect_open()
        self.store.keep_deadline(COMMAND_DEADLINE_S)
        return await within(ask(), deadline_s)

    def expect_permits(self) -> None:
        """Check that the store supports concurrency limits.

        Raises:
            ConfigurationError: It does not.
        """
        if not self._counts_permits:
            raise ConfigurationError(f"concurrency: {self.store!r} counts no permits; use MemoryStore(), for example")

    async def find_ban(self, subjects: Sequence[BanSubject]) -> Ban | None:
        """Return a ban that refuses one of `subjects`; None if none is known."""
        self._expect_open()
        answer = self._bans.find(subjects)
        return await answer if isawaitable(answer) else answer

    def strike(self, key: str, policy: BanPolicy, weight: int, reason: str) -> Ban | Awaitable[Ban | None] | None:
        """Count a strike. The caller has normalized `key`, cleaned `reason` and checked `may_ban`."""
        self._expect_open()
        return self._bans.strike(policy, key, weight, reason)

    def unanswered(self) -> Decision:
        """Return the refusal of a request whose query failed, with ``on_error="deny"``."""
        self._expect_open()
        assert self.failover is not None, "a memory store never fails"
        return self.failover.decide("hit", ())

    async def close(self) -> None:
        """Run `end`, and close the store.

        From then on there is no failover: all queries raise `StoreUnavailable`.
        """
        try:
            await self.end()
            waiting = self.store.close()
            if waiting is not None:
                await waiting
        finally:
            self._closed = True
            self.rebuild()
            self.observers.log.rest()

    async def end(self) -> None:
        """Await the cleanup functions in `ending`, which must not raise. After `close` there is nothing to clean up."""
        if self._closed:
            return
        for end in [*self.ending]:
            await end()

    def forget(self) -> None:
        """Clear windows, bans and stats of a memory store. For tests.

        Requests in progress keep their permits. Shared stores are not cleared.
        """
        if isinstance(self.store, MemoryStore):
            if not self.store.closed:
                self.store.reset_all()
            self.store.bans.forget_all()
            for forget in self.forgetting:
                forget()

    @property
    def counts(self) -> bool:
        """Whether limits count and refuse."""
        return self.counting and self.is_on

    def switch(self, *, on: bool) -> None:
        """Switch all limits and middlewares on or off, as ``limiter.override("*", "off", "10m")`` does."""
        self.is_on = on
        self.rebuild()
        self.restart_middlewares()

    def restart_middlewares(self) -> None:
        """Let all middlewares treat the next request like the first one: they then check whether they are on."""
        for caller in self.callers.listed():
            if isinstance(caller, Guard):
                caller.begin_anew()

    def rebuild(self) -> None:
        """Set what answers: the store; after `close`, nothing; `_NoLimits` while nothing counts."""
        self._backend: Store | Failover | _NoLimits = self.failover or self.store
        self._bans: BanStore | Failover | _NoLimits = self.failover or self.store.bans
        if not self.counts:
            self._backend = self._bans = _NoLimits()
        self.decide: Decide = self._backend.hit
        self.ask: Ask = self._backend.ask
        if self._closed and self.counts:
            self.decide = self.ask = self._raise_closed

    def report_outcome(self, decision: Decision) -> None:
        """Pass the outcome of a question without HTTP to the observers of requests, if there are any."""
        if self.observers.requests:
            self.observers.request(outcome_of_question(decision, self.now_us()))

    def _expect_open(self) -> None:
        if self._closed and self.counts:
            raise self._closed_error()

    def _closed_error(self) -> StoreUnavailable:
        return closed(f"the limiter on {self.store!r}")

    def _raise_closed(self, checks: Sequence[Check], subjects: Sequence[BanSubject] = ()) -> Decision:
        raise self._closed_error()


_every: WeakSet[Engine] = WeakSet()


def all_engines() -> list[Engine]:
    """Return the engines of all limiters of this process."""
    return list(_every)


def _steady_clock() -> Clock:
    """Return a clock of Unix time that follows no step of the system clock."""
    ahead_us = system_us() - monotonic_us()
    return lambda: SYSTEM.monotonic_ns() // _NS_PER_US + ahead_us


class _NoLimits:
    """Answers in place of a store while nothing counts: exempts every question, and bans nobody."""

    def ask(self, question: Question) -> Decision:
        return Decision(True, Reason.EXEMPT)

    def hit(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision:
        return Decision(True, Reason.EXEMPT)

    def peek(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision:
        return Decision(True, Reason.EXEMPT)

    def charge(self, checks: Sequence[Check]) -> Decision:
        return Decision(True, Reason.EXEMPT)

    def find(self, subjects: Sequence[BanSubject]) -> Ban | None:
        return None

    def strike(self, policy: BanPolicy, key: str, weight: int, reason: str) -> Ban | None:
        return None
