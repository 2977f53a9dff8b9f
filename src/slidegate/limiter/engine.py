"""How a limiter asks its store; the middlewares of this package use it, users do not.

A `Limiter` reads what its users write: limits, keys, costs, durations. Behind it stands one `Engine`, which puts the
question to the store, by way of the failure policy where the store can fail::

    Limiter.hit(key, limits)  --->  Engine.decide(checks, subjects)  --->  [Failover.hit  --->]  store.hit
    middleware: its buckets and keys  ----^

A middleware checks its limits once, when it is made, and must not pay for a coroutine where the store answers at once.
So it asks here, by `limiter.engine`. Nothing here is promised to users: every release may change it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from inspect import isawaitable
from time import monotonic_ns, time_ns
from typing import ClassVar, Final, Protocol, TypeVar
from weakref import WeakSet

from ..core.bans.ban import Ban, BanSubject
from ..core.bans.policy import BanPolicy
from ..core.decision import Check, Decision, Reason
from ..core.errors import ConfigurationError, StoreUnavailable
from ..core.reservation import Reservation
from ..core.store import BanStore, Clock, Event, Store, closed
from ..stores.memory.store import MemoryStore
from .aio import COMMAND_DEADLINE_S, within
from .failover import Failover, OnError, check_failure_policy
from .inspect import Callers
from .keys import Keys
from .observers import ObserverHub, outcome_of_question
from .operators import NetworkLookup
from .overrides import Overrides
from .waiting import Queues

T = TypeVar("T")
_NS_PER_US: Final = 1_000


class Decide(Protocol):
    """A function that charges every check or none, as `Store.hit` does."""

    def __call__(self, checks: Sequence[Check], subjects: Sequence[BanSubject] = ()) -> Decision | Awaitable[Decision]:
        """Charge every check or none."""


class Engine:
    """A store, and the one way to ask it.

    Args:
        store: The store.
        secret: The key for digests, as the user gave it; None for none.
        observers: The observers of all events, the store's and the limiter's own.
        deadline: How long the store may take.
        on_error: The answer when the store takes longer.
        networks: The files that know the operators of addresses, for bans of operators.

    Attributes:
        networks: The same.
        counting: Whether limits count and refuse. A test may switch that off for all limiters; see `rebuild`.
        per_process: Whether every process counts for itself.
        prepare: Returns checks in a form that the store answers faster, see `Store.prepare`.
        decide: Charges every check or none, without a coroutine of its own where the store answers at once.
        observers: The observers.
        emit: Passes an event that happened above the store to the observers.
        now_us: Returns Unix time in microseconds as it was when the limiter was made, carried on by the monotonic
            clock, so that no step of the system's clock makes a request long.
        keys: Spells keys.
        failover: Asks a store that can fail; None for one in memory.
        queues: The requests that wait for their turn.
        callers: The middlewares, functions and transports that ask this limiter.
        ending: Awaited when the application ends, or the limiter is closed.
        forgetting: Called by `forget`.
        overrides: The limits that operators have changed for a while.

    Raises:
        ConfigurationError: The secret, the deadline or `on_error` cannot be used.
    """

    counting: ClassVar[bool] = True

    def __init__(
        self,
        store: Store,
        secret: str | bytes | None,
        observers: ObserverHub,
        deadline: str | float | timedelta,
        on_error: OnError,
        networks: Sequence[NetworkLookup] = (),
    ) -> None:
        self.store = store
        self.networks = networks
        self.prepare = store.prepare
        self.observers = observers
        self.emit: Callable[[Event], None] = observers.emit
        store.observe(self.emit)
        check_failure_policy(deadline, on_error)
        self.per_process = isinstance(store, MemoryStore)
        self.callers = Callers()
        # A store in memory has nothing to wait for, and needs nobody to stand in for it.
        self.failover = (
            None
            if self.per_process
            else Failover(store, deadline, on_error, self.emit, buckets=self.callers.all_buckets)
        )
        self._backend: Store | Failover = store if self.failover is None else self.failover
        self.keys = Keys(secret)
        ahead_us = (time_ns() - monotonic_ns()) // _NS_PER_US
        self.now_us: Clock = self.clock or (lambda: monotonic_ns() // _NS_PER_US + ahead_us)
        self.queues = Queues(self)
        self.ending: list[Callable[[], Awaitable[None]]] = []
        self.forgetting: list[Callable[[], object]] = []
        self.overrides = Overrides(self)
        self._counts_permits = store.permits_held() is not None  # asked once: to count them may take long
        self._ids: dict[str, int] = {}
        self._closed = False
        self.rebuild()
        _every.add(self)

    @property
    def clock(self) -> Clock | None:
        """The clock given to a store of this process; None for the store's own."""
        return self.store.clock if isinstance(self.store, MemoryStore) else None

    @property
    def _bans(self) -> BanStore | Failover:
        return self.store.bans if self.failover is None else self.failover

    def unique_id(self, rule: str) -> str:
        """Return a rule identity that nobody else has: `rule` for the first caller, ``rule#2`` for the next."""
        count = self._ids[rule] = self._ids.get(rule, 0) + 1
        return rule if count == 1 else f"{rule}#{count}"

    async def peek(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision:
        """Say what `decide` would answer now. Changes nothing."""
        self._expect_open()
        answer = self._backend.peek(checks, subjects)
        return answer if isinstance(answer, Decision) else await answer

    async def charge(self, checks: Sequence[Check]) -> Decision:
        """Record every cost, whatever the limits."""
        self._expect_open()
        answer = self._backend.charge(checks)
        return answer if isinstance(answer, Decision) else await answer

    async def refund(self, reservations: Sequence[Reservation]) -> bool:
        """Hand back what a decision has charged; False if nothing could be handed back.

        That is so for a request that outlives its limiter, too.
        """
        if self._closed or not reservations:
            return False
        try:
            answer = self._backend.refund(reservations)
            return answer if isinstance(answer, bool) else await answer
        finally:
            self.queues.freed([reservation.check for reservation in reservations])

    async def command(self, ask: Callable[[], T | Awaitable[T]], deadline_s: float = COMMAND_DEADLINE_S) -> T:
        """Return what the store answers to a command of an operator, who has more time than a request.

        Args:
            ask: Asks the store.
            deadline_s: How long it may take; a step of it no longer than any other command.

        Raises:
            StoreError: The store does not answer.
        """
        self._expect_open()
        self.store.keep_deadline(COMMAND_DEADLINE_S)
        return await within(ask(), deadline_s)

    def expect_permits(self) -> None:
        """See that the store can hold requests to concurrency limits.

        Raises:
            ConfigurationError: It cannot.
        """
        if not self._counts_permits:
            raise ConfigurationError(f"concurrency: {self.store!r} counts no permits; use MemoryStore(), for example")

    async def find_ban(self, subjects: Sequence[BanSubject]) -> Ban | None:
        """Return a ban that refuses one of some keys and addresses, if one is known."""
        self._expect_open()
        answer = self._bans.find(subjects)
        return await answer if isawaitable(answer) else answer

    def strike(self, key: str, policy: BanPolicy, weight: int, reason: str) -> Ban | Awaitable[Ban | None] | None:
        """Count a strike of a key in its spelling that the policy may ban, with a clean reason."""
        self._expect_open()
        return self._bans.strike(policy, key, weight, reason)

    def unanswered(self) -> Decision:
        """Return the refusal of a request about which a store was asked in vain, with ``on_error="deny"``."""
        self._expect_open()
        assert self.failover is not None, "a store in memory answers"
        return self.failover.fallback("hit", ())

    async def close(self) -> None:
        """End what stands on the limiter, close the store, and wait a while for observers with a thread.

        From then on nothing stands in for the store: every question raises `StoreUnavailable`.
        """
        try:
            await self.end()
            waiting = self.store.close()
            if waiting is not None:
                await waiting
        finally:
            self._closed = True
            self.rebuild()
            await self.observers.close()

    async def end(self) -> None:
        """Have everybody in `ending` do the last that they do, before the application ends. They must not raise."""
        if self._closed:  # the application has closed it, and its server ends
            return
        for end in self.ending:
            await end()

    def forget(self) -> None:
        """Forget what a store of this process has counted and banned, and its stats. For tests.

        Requests under way keep their permits, and stores that others share keep everything.
        """
        if isinstance(self.store, MemoryStore):
            if not self.store.closed:
                self.store.reset_all()
            self.store.bans.forget_all()
            for forget in self.forgetting:
                forget()

    def rebuild(self) -> None:
        """Choose the function that decides: where limits do not count, it lets everything pass."""
        self.decide: Decide = self._backend.hit if self.counting else _let_pass
        if self.counting and self._closed:
            self.decide = self._answer_nobody

    def tell_outcome(self, decision: Decision) -> None:
        """Tell the observers of requests what became of a question without HTTP, if there are any."""
        if self.observers.requests:
            self.observers.request(outcome_of_question(decision, self.now_us()))

    def _expect_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> StoreUnavailable:
        return closed(f"the limiter on {self.store!r}")

    def _answer_nobody(self, checks: Sequence[Check], subjects: Sequence[BanSubject] = ()) -> Decision:
        raise self._closed_error()


_every: WeakSet[Engine] = WeakSet()


def all_engines() -> list[Engine]:
    """Return those of all limiters of this process."""
    return list(_every)


def _let_pass(checks: Sequence[Check], subjects: Sequence[BanSubject] = ()) -> Decision:
    return Decision(True, Reason.EXEMPT)
