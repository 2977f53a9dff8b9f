"""The internal interface between limiter, middlewares and store.

A `Limiter` parses its users' arguments: limits, keys, costs, durations. Its `Engine` queries the store, through the
failure policy if the store can fail::

    Limiter.hit(key, limits)  --->  Engine.hit(checks)  --->  [Failover.hit  --->]  store.hit
    middleware: its buckets and keys  ----^

A middleware validates its limits once, when it is created, and avoids a coroutine if the store answers synchronously.
So it uses `limiter.engine` directly. Nothing here is public: any release may change it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar, Final, NoReturn, TypeVar
from weakref import WeakValueDictionary

from ..core.bans.ban import Ban
from ..core.bans.policy import BanPolicy
from ..core.buckets import Check
from ..core.decision import Decision, Reason
from ..core.errors import ConfigurationError, SlidegateError, closed
from ..core.open_reservations import OpenReservations
from ..core.passwords import AnySecret
from ..core.reservation import Reservation
from ..core.store import COMMAND_DEADLINE_S, Clock, CountsPermits, Store
from ..stores.forks import ProcessLock
from ..stores.memory.store import MemoryStore
from ..stores.system_clock import SYSTEM, SystemClock, system_us
from .aio import answer_of, finish, on_asyncio, to_the_end, within
from .bans import NetworkLookup
from .callers import BucketCaller, Caller, Callers, Owners, living
from .failover import Failover, OnError, deadline_us_of
from .keys import Keys
from .named_limits import NamedLimit
from .observers import AnyObserver, ObserverHub
from .overrides import Overrides
from .queues import Queues
from .refresh import FindBan, Hit, Refresher
from .rows import History, Rows
from .sync_runner import SyncRunner
from .workers import Workers

T = TypeVar("T")
BEGIN_S: Final = 1.0
"""How long an application that starts waits for its store at most, in seconds."""


class Engine:
    """Queries a store on behalf of a limiter and its middlewares.

    Args:
        secret: The key for digests, as for `Limiter`.
        observers: The first observers of events, the store's and the limiter's, and of outcomes.
        deadline: How long the store may take to answer a request.
        on_error: What decides if the store takes longer.
        networks: The files that map addresses to operators, for bans of operators.

    Attributes:
        networks: Those files.
        counting: Whether limits count and refuse. A test may turn that off for all limiters; see `switch_all`.
        per_process: Whether every process has separate counts.
        hit, peek, charge: Do what those of `Store` do. They are no coroutine functions: the decision of a store that
            answers at once is returned directly. Read them from the engine for each call, as a switch replaces them.
        find_ban, strike, ban: Do what `find`, `strike` and `ban` of `BanStore` do. The caller of `strike` has
            normalized the key, cleaned the reason and checked `may_ban`.
        unix_us: Returns Unix time in microseconds, by the system clock or that of a memory store.
        clock: The clock of durations: that of the system, or one that advances with that of a memory store.
        failover: Queries a store that can fail; None for a memory store.
        reservations: What requests of this process may still hand back.
        refunding: Held by the thread that begins a refund: what was refunded twice would be units of other requests.
        blocks: The callers of limited blocks, by rule and limits.
        callers: The middlewares, functions and transports that use this limiter.
        rows: What the workers of the store keep for each other.
        workers: This worker, and what all have published.
        overrides: The limits that operators have changed temporarily.
        refresher: Reads these from the store beside questions, and writes them.
        history: What operators and commands have done lately.
        owners: The middlewares that count without a name.
        closed: Whether all queries raise `StoreUnavailable`.

    Raises:
        ConfigurationError: The secret or the deadline is invalid, or another limiter of the store has another secret.
    """

    counting: ClassVar[bool] = True

    def __init__(
        self,
        store: Store,
        secret: AnySecret | None,
        observers: Iterable[AnyObserver],
        deadline: str | timedelta,
        on_error: OnError,
        networks: Sequence[NetworkLookup],
    ) -> None:
        self.store = store
        self.networks = networks
        deadline_us = deadline_us_of(deadline)
        self.unix_us, self.clock = _clocks_of(store)
        self.observers = ObserverHub(self.unix_us, observers)
        self.emit = self.observers.emit
        store.observe(self.emit)
        self.failover: Failover | None = None
        self._memory: MemoryStore | None = None
        if isinstance(store, MemoryStore):  # which never waits or fails
            self._memory = store
        else:
            self.failover = Failover(store, deadline_us, on_error, self.emit)
        self.per_process = self._memory is not None
        self.keys = Keys(secret)
        store.name_keys(self.keys.names_key)
        self.queues = Queues()
        self.reservations = OpenReservations()
        self.refunding = ProcessLock()
        self.callers = Callers()
        self.blocks: dict[object, BucketCaller] = {}
        self.rows = Rows(self.command, store.shared_rows, self.unix_us)
        self.workers = Workers(self.rows, self.callers.published, self.keys.fingerprint, self.emit)
        self.overrides = Overrides(self.callers, self.unix_us, self._change_amounts, self.emit)
        self.refresher = Refresher(
            self.rows,
            self.overrides,
            self.workers,
            self.clock,
            self.failover,
            self.refund,
            deadline_us / 1_000_000,
            answers_threads=store.answers_threads,
        )
        self.history = History(self.rows, self.unix_us)
        self.sync_runner = SyncRunner(deadline_us, answers_threads=store.answers_threads)
        self.owners = Owners(are_alone=self.per_process)
        self.closed = False
        all_engines[id(self)] = self
        self.rebuild()

    def register(self, caller: Caller) -> None:
        """List a caller as long as it exists, and apply overrides to its limits."""
        self.callers.add(caller)
        self.add_limits(caller.limits_by_name())

    def add_limits(self, limits: Iterable[NamedLimit]) -> None:
        """Apply overrides to new limits, and have them published beside their first question: none may follow."""
        self.overrides.register(limits)
        self.workers.pause_s = 1.0  # a worker that begins meets many
        self.refresher.fresh_until_ns = 0

    async def refund(self, *charges: Sequence[Reservation]) -> bool:
        """Refund what decisions charged, even if the caller is cancelled meanwhile.

        Args:
            charges: The reservations of each decision, which are refunded by themselves: in an outage, another store
                may have charged one of them.

        Returns:
            False if nothing could be refunded, or the limiter is closed.
        """
        work = self._refund(charges)
        # What never suspends cannot be cancelled: memory, or nothing to do.
        if self.per_process or not any(charges):
            return await work
        return await to_the_end(work)

    async def _refund(self, charges: Iterable[Sequence[Reservation]]) -> bool:
        has_refunded = False
        for reservations in charges:
            if reservations and not self.closed:
                try:
                    has_refunded |= await answer_of((self.failover or self.store).refund(reservations))
                finally:  # after a failure, too: the next waiter asks whether there is room
                    self.queues.refunded(reservation.check for reservation in reservations)
        return has_refunded

    async def settle(self, checks: Sequence[Check], charges: Collection[Sequence[Reservation]]) -> Decision | None:
        """Charge what was used beyond estimates and refund what was not, at once, even if the caller is cancelled.

        Args:
            charges: The reservations of each decision that are refunded; see `refund`.

        Returns:
            The decision about `checks`; None without any.
        """
        work = self._settle(checks, charges)
        if self.per_process:  # memory never suspends, so that it cannot be cancelled
            return await work
        return await to_the_end(work)

    async def _settle(self, checks: Sequence[Check], charges: Collection[Sequence[Reservation]]) -> Decision | None:
        if not checks:
            await self._refund(charges)
            return None
        if self.per_process or not charges or not on_asyncio():
            await self._refund(charges)
            return await answer_of(self.charge(checks))

        async def charge() -> Decision:
            return await answer_of(self.charge(checks))

        # In one iteration of the event loop, so that a store can answer both in one call.
        charged, _ = await asyncio.gather(charge(), self._refund(charges))
        return charged

    def release(self, decision: Decision) -> Sequence[Reservation]:
        """Release the permits of a decision in memory at once, else return the reservations to refund for it."""
        if self._memory is not None and self._memory.release(decision):
            self.queues.refunded(decision.checks)
            return ()
        return decision.begin_refund(permits=True)

    async def command(self, ask: Callable[[], T | Awaitable[T]], deadline_s: float = COMMAND_DEADLINE_S) -> T:
        """Return the store's answer to a command of an operator, which has a longer deadline than a request.

        Args:
            deadline_s: The deadline of the whole command.

        Raises:
            StoreError: The store does not answer.
        """
        if self.closed:
            self._raise_closed()
        return await within(ask(), deadline_s)

    def expect_permits(self) -> None:
        """Check that the store supports concurrency limits.

        Raises:
            ConfigurationError: It does not.
        """
        if not isinstance(self.store, CountsPermits):
            raise ConfigurationError(f"concurrency: {self.store!r} counts no permits; use MemoryStore(), for example")

    def unanswered(self) -> Decision:
        """Return the refusal of a request whose strike has raised, as one does with ``on_error="deny"`` alone.

        Raises:
            StoreUnavailable: The limiter is closed, or a memory store, which fails for no other reason.
        """
        if self.closed or self.failover is None:
            self._raise_closed()
        return self.failover.decide("hit", ())

    async def close(self) -> None:
        """Run `end`, and close the store, once. From then on all queries raise `StoreUnavailable`."""
        try:
            await self.end()
        finally:
            if not self.closed:
                self.closed = self.sync_runner.closed = True
                self.rebuild()
                try:
                    await answer_of(self.store.close())
                finally:
                    self.sync_runner.end()

    async def begin(self) -> None:
        """Connect a store with a server, because the application starts; after `BEGIN_S` it goes on beside requests."""
        with suppress(SlidegateError):  # the first question tries it again, and says so
            await self.command(self.store.connect, BEGIN_S)  # type: ignore[arg-type]

    async def end(self) -> None:
        """Let requests, observers and rows finish, because the application ends or the limiter is being closed."""
        if not self.closed:
            if self.failover is not None:
                await finish(self.failover.deadline_us / 1_000_000)
            await self.observers.end()
            await self.refresher.end()

    def forget(self) -> None:
        """Clear windows, bans and stats of a memory store. For tests.

        Requests in progress keep their permits. Shared stores are not cleared.
        """
        if self._memory is not None:
            self._memory.forget()
            self.rows.forget()
            self.overrides.forget()
            self.observers.forget()

    @property
    def counts(self) -> bool:
        """Whether limits count and refuse; once the limiter is closed, they refuse everything."""
        return self.counting and (self.closed or not self.overrides.is_off)

    def monotonic_us(self) -> int:
        """Return monotonic time in microseconds."""
        return self.clock.monotonic_ns() // 1_000

    def _change_amounts(self) -> None:
        """Make callers, questions and queues use the amounts in force, and whether limits count."""
        self.callers.restart()
        self.rebuild()
        self.queues.wake()

    def rebuild(self) -> None:
        """Set what answers: the store; while nothing counts, or after `close`, one answer for all."""
        limits: Any = self.failover or self.store
        bans: Any = self.failover or self.store.bans
        decide: Any = None
        find: Any = None
        # Switched off by a test, or by an operator: everything passes.
        if not self.counts:
            decide, find = lambda *_: Decision(True, Reason.DISABLED), lambda *_: None
        elif self.closed:
            decide = find = self._raise_closed
        self.hit: Hit = decide or limits.hit
        self.refresher.question = self.hit
        self.peek: Hit = decide or limits.peek
        self.charge: Callable[[Sequence[Check]], Decision | Awaitable[Decision]] = decide or limits.charge
        self.find_ban: FindBan = find or bans.find
        self.refresher.ban_question = self.find_ban
        self.strike: Callable[[BanPolicy, str, int, str], Ban | Awaitable[Ban | None] | None] = find or bans.strike
        self.ban: Callable[..., Any] = find or bans.ban
        # Also while an operator has switched limits off: a refresh says when they are on again.
        if self.refresher.is_needed and self.counting and not self.closed:
            self.hit, self.find_ban = self.refresher.hit, self.refresher.find_ban

    def _raise_closed(self, *question: object) -> NoReturn:
        raise closed(f"the limiter on {self.store!r}")

    async def refresh(self) -> None:
        """Read changed limits, because an application or a middleware starts; while limits are off, wait for them."""
        if self.counting and not self.closed:
            await self.refresher.ask()


def _clocks_of(store: Store) -> tuple[Clock, SystemClock]:
    """Return the clocks of a process: of Unix time, and of durations. A test may set those of a memory store."""
    if not isinstance(store, MemoryStore):
        return system_us, SYSTEM
    if store.clock is None:
        return store.unix_us, SYSTEM
    clock = SystemClock()
    clock.use(store.clock)
    return store.unix_us, clock


all_engines: Final[WeakValueDictionary[int, Engine]] = WeakValueDictionary()
"""The engines of all limiters of this process."""

use_clock: Final = SYSTEM.use
"""Makes all limiters use a clock, or with None that of the system. For tests."""


def reset_all() -> None:
    """Clear what all limiters of this process have counted; see `Engine.forget`. For tests."""
    for engine in living(all_engines):
        engine.forget()


def all_callers() -> list[Caller]:
    """Return the middlewares, functions and transports that use the limiters of this process."""
    return [caller for engine in living(all_engines) for caller in engine.callers.all()]


def switch_all(on: bool) -> None:
    """Turn all limits and middlewares of this process on or off, existing and future. For tests.

    While they are off, middlewares pass all requests and limiters exempt all keys, without a query to a store.
    """
    Engine.counting = on
    for engine in living(all_engines):
        engine.rebuild()
        engine.callers.restart()
