"""Failover: queries a store that can fail, and decides itself if the store does not answer.

Every query has a deadline, which counts from the moment a request asks. If the store misses it or fails, `on_error`
decides:

* ``"local"``: a store of this process counts, by the same limits. When the shared store answers again, it
  decides alone::

      shared   answers ----| does not answer |---- answers and decides ---->
      local                | decides         | counts only if it fails again; its windows expire

* ``"allow"``: everything passes, uncounted;
* ``"deny"``: everything is refused, with 503 over HTTP.

Of the rules of one question, the strictest decides: ``"deny"``, then ``"local"``, then ``"allow"``. During an outage
the store is not queried; `breaker` counts its calls, and reports outages. An error that concerns one request
(`StoreError.concerns`) is no failure of the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any, Final, TypeVar

from ..core.bans.ban import Ban, BanSubject
from ..core.bans.policy import BanPolicy
from ..core.buckets import Check
from ..core.decision import Decision
from ..core.errors import ConfigurationError, StoreReadOnly, StoreUnavailable
from ..core.events import Event
from ..core.reservation import Reservation
from ..core.store import Clock, CountsWrites, ReportsLateAnswers, Store
from ..stores.memory.store import MemoryStore
from ..stores.system_clock import monotonic_us, system_us
from .aio import is_cancellation, to_the_end, within
from .breaker import Breaker, State
from .calls import Call
from .failure_policy import OnError
from .stand_in import StandIn

_UNANSWERED: Final[Any] = object()
_MISTAKES: Final = (ConfigurationError, StoreReadOnly)
"""The errors of a caller, which are no failures of the store."""

T = TypeVar("T")


class Failover:
    """Queries a store that can fail, and decides itself when it does.

    Args:
        store: The store.
        deadline_us: How long a query may take.
        on_error: What decides after that.
        emit: Receives the events ``store_failed``, ``store_recovered``, ``store_late`` and ``store_error``.
        local: Counts in this process with ``"local"``; by default a new memory store.

    Attributes:
        on_error: What decides if the store does not answer.
        deadline_us: How long a query may take.
        breaker: Whether there is an outage.
        stand_in: Decides in its place.
        local: The store of this process that it counts in.
    """

    def __init__(
        self,
        store: Store,
        deadline_us: int,
        on_error: OnError,
        emit: Callable[[Event], None],
        local: Store | None = None,
    ) -> None:
        self._store = store
        self.deadline_us = deadline_us
        self.on_error: OnError = on_error
        self._deadline_s = deadline_us / 1_000_000
        # A store with a server has to be awaited. Once it was, it gives answers at once from its memory alone.
        self._has_server = False
        self._clock: Clock = monotonic_us
        self.breaker = Breaker(deadline_us, on_error, emit, self._now_us, _writes_of(store))
        if isinstance(store, ReportsLateAnswers):
            store.observe_late(self.breaker.answered_late)
        if local is None:
            local = MemoryStore(clock=self._now_us, wall_clock=system_us)
        local.observe(emit)
        self.stand_in = StandIn(local, on_error, self.breaker.pause_us, self._now_us)
        self.local = local

    def _now_us(self) -> int:
        return self._clock()  # as it is by then: a test may replace it

    # -- questions ---------------------------------------------------------------------------------------------------

    def hit(self, checks: Sequence[Check], subjects: Sequence[BanSubject] = ()) -> Decision | Awaitable[Decision]:
        """Charge every check or none; see `Store.hit`."""
        answer = self._begin(self._store.hit, checks, subjects, self._deadline_s)
        if answer is _UNANSWERED:
            return self.stand_in.decide("hit", checks, subjects)
        if not isinstance(answer, Decision):
            return self._wait(answer, self.breaker.call(), self.stand_in.decide, "hit", checks, subjects, is_hit=True)
        self._answered_at_once()
        return answer

    async def peek(self, checks: Sequence[Check], subjects: Sequence[BanSubject] = ()) -> Decision:
        """Return what `hit` would return now."""
        decide = partial(self.stand_in.decide, "peek", checks, subjects)
        return await self._query(decide, self._store.peek, checks, subjects, self._deadline_s)

    async def charge(self, checks: Sequence[Check]) -> Decision:
        """Record every cost, whatever the limits."""
        decide = partial(self.stand_in.decide, "charge", checks)
        return await self._query(decide, self._store.charge, checks, self._deadline_s)

    async def refund(self, reservations: Sequence[Reservation]) -> bool:
        """Refund what a decision charged, in the store that charged it; False if the store does not answer."""
        if reservations and (local := reservations[0].store) is not None:
            return await within(local.refund(reservations))
        return await self._query(bool, self._store.refund, reservations, self._deadline_s)

    async def strike(self, policy: BanPolicy, key: str, weight: int, reason: str) -> Ban | None:
        """Count a strike; during an outage, with ``on_error="local"``, in the local store.

        Raises:
            StoreUnavailable: The store did not answer, and `on_error` is ``"deny"``.
        """
        struck = policy, key, weight, reason
        decide, ask = partial(self.stand_in.strike, *struck), self._store.bans.strike
        return await self._query(decide, ask, *struck, self._deadline_s)

    async def ban(self, *banned: Any) -> Ban:
        """Ban a key for a request, with the arguments of `BanStore.ban`; during an outage see `StandIn.ban`."""
        decide = partial(self.stand_in.ban, *banned)
        return await self._query(decide, self._store.bans.ban, *banned, self._deadline_s)

    async def find(self, subjects: Sequence[BanSubject]) -> Ban | None:
        """Return a ban that refuses one of `subjects`; during an outage, only local bans are known."""
        decide = partial(self.stand_in.find, subjects)
        return await self._query(decide, self._store.bans.find, subjects, self._deadline_s)

    # -- the store -----------------------------------------------------------------------------------------------------

    async def _query(self, decide: Callable[[], T], ask: Callable[..., T | Awaitable[T]], *arguments: Any) -> T:
        """Return the store's answer, or what `decide` returns if none comes in time."""
        answer = self._begin(ask, *arguments)
        if answer is _UNANSWERED:
            return decide()
        if isawaitable(answer):
            return await self._wait(answer, self.breaker.call(), decide)
        self._answered_at_once()
        answered: T = answer
        return answered

    def _begin(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        """Query the store; return its answer, an awaitable of it, or `_UNANSWERED`."""
        if self.breaker.state is not State.CLOSED and not self.breaker.may_ask():
            return _UNANSWERED
        try:
            return ask(*arguments)
        except _MISTAKES:
            self.breaker.forget(None)
            raise
        except Exception as error:
            self.breaker.failed(None, error)
            return _UNANSWERED

    async def _wait(
        self, answer: Awaitable[T], call: Call, decide: Callable[..., T], *asked: Any, is_hit: bool = False
    ) -> T:
        """Return an answer, or what `decide` returns if it does not come in time.

        Args:
            answer: The answer.
            call: Its call.
            decide: Decides instead.
            asked: The arguments of `decide`.
            is_hit: Whether it has charged what has to be refunded if it is not awaited any more.
        """
        self._has_server = not self._store.answers_threads
        try:
            if type(answer) is asyncio.Future:  # a task refuses an exception from outside
                call.watch(answer, self._deadline_s, self.breaker.late)
                found: T = await answer
            else:
                found = await within(answer, self._deadline_s, self.breaker.late)
        except _MISTAKES:
            self.breaker.forget(call)
            raise
        except asyncio.CancelledError as error:
            if not is_cancellation(error):  # that of the answer alone: the event loop that it was asked on has ended
                self._failed(call, StoreUnavailable("the answer was cancelled", concerns="request"))
                return decide(*asked)
            self.breaker.forget(call)
            if is_hit:
                await self._refund_unawaited(answer)
            raise
        except Exception as error:
            self._failed(call, error)
            return decide(*asked)
        if not call.has_ended:  # else another of its questions has ended it
            self._answered(call)
        return found

    def _failed(self, call: Call, error: Exception) -> None:
        if self._store.closed:  # meanwhile, which is no failure
            self.breaker.forget(call)
        else:
            self.breaker.failed(call, error)

    async def _refund_unawaited(self, answer: object) -> None:
        """Refund a hit whose answer came in the loop iteration in which its request was cancelled."""
        if not isinstance(answer, asyncio.Future) or not answer.done() or answer.cancelled() or answer.exception():
            return
        if charged := answer.result().begin_refund():
            await to_the_end(self.refund(charged))

    def _answered_at_once(self) -> None:
        """Count an answer that was not awaited, unless a store with a server has given it from its memory."""
        if self._has_server:
            self.breaker.forget(None)
        else:
            self._answered(None)

    def _answered(self, call: Call | None) -> None:
        self.breaker.answered(call)
        if self.stand_in.has_counted:
            self.stand_in.sweep()


def _writes_of(store: Store) -> Callable[[], int | None]:
    """Return what counts the writes of a store; see `CountsWrites`."""
    if isinstance(store, CountsWrites):
        return lambda: store.writes
    return lambda: None
