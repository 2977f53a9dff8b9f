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
from typing import Any, Final, Literal, TypeAlias, TypeVar

from ..core.bans.ban import Ban, BanSubject
from ..core.bans.policy import BanPolicy
from ..core.buckets import Check
from ..core.decision import Decision, Reason
from ..core.durations import parse_duration_us
from ..core.errors import ConfigurationError, StoreReadOnly, StoreUnavailable
from ..core.events import Event
from ..core.reservation import Reservation
from ..core.store import Clock, Store
from ..stores.memory.store import MemoryStore
from ..stores.system_clock import monotonic_us, system_us
from .aio import is_cancellation, to_the_end, within
from .breaker import Breaker, Call

OnError: TypeAlias = Literal["local", "allow", "deny"]
T = TypeVar("T")

DEADLINE: Final = "50ms"
ON_ERROR: Final = "local"
STRICTEST_FIRST: Final[tuple[OnError, ...]] = ("deny", "local", "allow")
"""Of the rules of one question, the first of these that one of them has decides."""
RETRY_US: Final = 1_000_000
"""The retry-after of a refusal without a store; a failing store is probed once a second."""
_MISTAKES: Final = (ConfigurationError, StoreReadOnly)
"""The errors of a caller, which are no failures of the store."""


def deadline_us_of(deadline: Any) -> int:
    """Return a deadline in microseconds.

    Raises:
        ConfigurationError: It is invalid.
    """
    return parse_duration_us(deadline, "deadline", 1_000, 60_000_000, "50ms")


class Failover:
    """Queries a store that can fail, and decides itself when it does.

    Args:
        deadline_us: How long a query may take.
        on_error: What decides after that.
        emit: Receives the events ``store_failed``, ``store_recovered``, ``store_late`` and ``store_error``.

    Attributes:
        on_error: What decides if the store does not answer.
        deadline_us: How long a query may take.
        breaker: Whether there is an outage.
        local: The store of this process that counts meanwhile with ``"local"``, and answers at once. Its windows expire
            by themselves, so that several outages admit an amount once.
    """

    def __init__(self, store: Store, deadline_us: int, on_error: OnError, emit: Callable[[Event], None]) -> None:
        self._store = store
        self.deadline_us = deadline_us
        self.on_error: OnError = on_error
        self._deadline_s = deadline_us / 1_000_000
        # Known once an answer was awaited. What a store with a server answers at once, it has from its own memory: that
        # says nothing about the server.
        self._has_server = False
        self._clock: Clock = monotonic_us
        self.breaker = Breaker(deadline_us, on_error, emit, self._now_us)
        store.observe_late(self.breaker.note_answer)
        self.local = MemoryStore(clock=self._now_us, wall_clock=system_us)
        self.local.observe(emit)

    def _now_us(self) -> int:
        return self._clock()  # as it is by then: a test may replace it

    # -- questions, answered as by the store: at once, or by an awaitable ----------------------------------------------

    def hit(self, checks: Sequence[Check], subjects: Sequence[BanSubject] = ()) -> Decision | Awaitable[Decision]:
        """Charge every check or none; see `Store.hit`."""
        return self._query(partial(self.decide, "hit"), self._store.hit, checks, subjects)

    def peek(self, checks: Sequence[Check], subjects: Sequence[BanSubject] = ()) -> Decision | Awaitable[Decision]:
        """Return what `hit` would return now."""
        return self._query(partial(self.decide, "peek"), self._store.peek, checks, subjects)

    def charge(self, checks: Sequence[Check]) -> Decision | Awaitable[Decision]:
        """Record every cost, whatever the limits."""
        return self._query(partial(self.decide, "charge"), self._store.charge, checks)

    def refund(self, reservations: Sequence[Reservation]) -> bool | Awaitable[bool]:
        """Refund what a decision charged, in the store that charged it; False if the store does not answer."""
        if reservations and reservations[0].store is self.local:
            return self.local.refund(reservations)
        return self._query(lambda _: False, self._store.refund, reservations)

    def strike(self, *struck: Any) -> Ban | Awaitable[Ban | None] | None:
        """Count a strike, with the arguments of `BanStore.strike`."""
        return self._query(self._strike_here, self._store.bans.strike, *struck, is_write=True)

    def ban(self, *banned: Any) -> Ban | Awaitable[Ban]:
        """Ban a key for a request, with the arguments of `BanStore.ban`."""
        return self._query(self._ban_here, self._store.bans.ban, *banned, is_write=True)

    def find(self, subjects: Sequence[BanSubject]) -> Ban | Awaitable[Ban | None] | None:
        """Return a ban that refuses one of `subjects`; during an outage, only local bans are known."""
        return self._query(self.local.bans.find, self._store.bans.find, subjects)

    # -- answers in place of the store -------------------------------------------------------------------------------

    def decide(self, method: Literal["hit", "peek", "charge"], checks: Sequence[Check], *subjects: Any) -> Decision:
        """Decide as the method `method` of the store does, by the strictest `on_error` of the rules."""
        choices = [bucket.on_error or self.on_error for bucket, _, _ in checks]
        choice = min(choices, key=STRICTEST_FIRST.index, default=self.on_error)
        if choice != "local":
            # What is charged has been used already: nothing refuses it.
            allowed = choice == "allow" or method == "charge"
            return Decision(allowed, Reason.UNAVAILABLE, checks=checks, at_least_us=RETRY_US)
        decision: Decision = getattr(self.local, method)(checks, *subjects)
        for reservation in decision.reservations:
            reservation.store = self.local  # where it is refunded, too
        return decision

    def _strike_here(self, policy: BanPolicy, key: str, weight: int, reason: str) -> Ban | None:
        """Count a strike for this process alone.

        Raises:
            StoreUnavailable: `on_error` is ``"deny"``.
        """
        if self.on_error == "deny":
            raise StoreUnavailable("the store did not answer a strike, so it is unknown whether it bans")
        if self.on_error == "allow":
            return None
        bans: Any = self.local.bans
        ban: Ban | None = bans.strike(policy, key, weight, reason)
        if ban is None:
            ban = bans.find((key,))
            if ban is not None:  # the caller reads how long it lasts from its two times, and here it lasts from now on
                ban = ban._replace(since_us=system_us())
        return ban

    def _ban_here(self, *banned: Any) -> Any:
        """Ban a key for this process alone.

        Raises:
            StoreUnavailable: `on_error` is not ``"local"``.
        """
        if self.on_error != "local":
            raise StoreUnavailable("the store did not answer")
        return self.local.bans.ban(*banned)

    # -- the store -----------------------------------------------------------------------------------------------------

    def _query(
        self,
        decide: Callable[..., T],
        ask: Callable[..., T | Awaitable[T]],
        *question: Any,
        is_write: bool = False,
    ) -> T | Awaitable[T]:
        """Return the store's answer, an awaitable of it, or what `decide` returns if none comes in time.

        Args:
            is_write: Whether each answer proves that the store has written.
        """
        if self.breaker.is_open and not self.breaker.may_ask():
            return decide(*question)
        try:
            answer = ask(*question, self._deadline_s)
        except _MISTAKES:
            self.breaker.forget(None)
            raise
        except Exception as error:
            self.breaker.failed(self.breaker.call(), error)
            return decide(*question)
        if not isinstance(answer, Decision) and isawaitable(answer):
            return self._wait(answer, self.breaker.call(), is_write, decide, *question)
        if self._has_server:
            self.breaker.forget(None)
        else:
            self._answered(None, is_write, answer)
        return answer

    async def _wait(
        self, answer: Awaitable[T], call: Call, is_write: bool, decide: Callable[..., T], *question: Any
    ) -> T:
        """Return an answer, or what `decide` returns if it does not come in time."""
        self._has_server = not self._store.answers_threads
        try:
            if type(answer) is asyncio.Future:  # a task refuses an exception from outside
                call.watch(answer, self._deadline_s, self.breaker.late_text)
                result: T = await answer
            else:
                result = await within(answer, self._deadline_s, self.breaker.late_text)
        except _MISTAKES:
            self.breaker.forget(call)
            raise
        except asyncio.CancelledError as error:
            if not is_cancellation(error):  # that of the answer alone: the event loop that it was asked on has ended
                self._failed(call, StoreUnavailable("the answer was cancelled", concerns="request"))
                return decide(*question)
            self.breaker.forget(call)
            await self._refund_unawaited(answer)
            raise
        except Exception as error:
            self._failed(call, error)
            return decide(*question)
        if not call.has_ended:  # else another of its questions has ended it
            self._answered(call, is_write, result)
        return result

    def _failed(self, call: Call, error: Exception) -> None:
        """Count a failure, but not that the store was closed meanwhile."""
        if self._store.closed:
            self.breaker.forget(call)
        else:
            self.breaker.failed(call, error)

    async def _refund_unawaited(self, answer: object) -> None:
        """Refund a hit whose answer came in the loop iteration in which its request was cancelled."""
        if not isinstance(answer, asyncio.Future) or not answer.done() or answer.cancelled() or answer.exception():
            return
        decision = answer.result()
        if isinstance(decision, Decision):
            charged = decision.begin_refund()
            if charged:
                await to_the_end(self.refund(charged))

    def _answered(self, call: Call | None, is_write: bool, answer: object) -> None:
        """Count an answer, unless it says nothing about what fails."""
        if self.breaker.refuses_writes and not is_write and not _has_charged(answer):
            self.breaker.forget(call)  # a read says nothing about writes
            return
        self.breaker.answered(call)
        self.local.tidy(self._now_us())  # without an outage no question does that


def _has_charged(answer: object) -> bool:
    """Return whether an answer is the admission of a hit that has charged units. A refund takes no memory."""
    return isinstance(answer, Decision) and any(any(charge.units) for charge in answer.reservations)
