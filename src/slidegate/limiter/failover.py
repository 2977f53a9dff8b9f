"""Failover: queries a store that can fail, and decides itself if the store does not answer.

Every query has a deadline. If the store misses it or fails, `on_error` decides:

* ``"local"``: a memory store of this process counts, by the same limits. When the shared store answers again, requests
  must pass both stores until no local unit counts any more, so that recovery causes no burst::

      shared   answers ----| does not answer |---- answers ----------------------------->
      local                | decides         | requests must pass both      | dropped
                                             |<- the longest window used -->|
                                                 and the bans made locally

* ``"allow"``: everything passes, uncounted;
* ``"deny"``: everything is refused, with 503 over HTTP.

A circuit breaker stops queries to a store that fails repeatedly. A store can consist of several servers, of which one
can be down while the others answer, so each part of it (`Store.part_of`) has its own breaker::

    closed ---- 3 failures ----> open ---- 1 s ----> half open: one probe ---- answered ----> closed
                                   ^                     |
                                   +------ failed -------+

An error that concerns a single key or slot (`StoreError.concerns`) is no failure of the server, and is not counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from datetime import timedelta
from threading import Lock
from typing import Any, Final, Literal, TypeAlias, TypeVar

from ..core.bans.ban import Ban, BanSubject
from ..core.bans.policy import BanPolicy
from ..core.decision import Bucket, Check, Decision, Reason
from ..core.errors import ConfigurationError, StoreError, StoreTimeout, StoreUnavailable, closest, quoted
from ..core.limits import parse_duration_us, parse_span_us
from ..core.logs import Throttle, logger, written
from ..core.reservation import Reservation, end_permits
from ..core.store import Clock, Event, Store
from ..stores.forks import hold_over_fork
from ..stores.memory.store import MemoryStore
from ..stores.system_clock import monotonic_us, system_us
from .aio import Deadline, to_the_end, within
from .terms import terms_of

OnError: TypeAlias = Literal["local", "allow", "deny"]
FailurePolicy: TypeAlias = tuple[str, OnError]
"""A deadline, and the `on_error` that applies after it."""

DEADLINE: Final = "50ms"
ON_ERROR: Final = "local"
FAILURES_TO_OPEN: Final = 3
OPEN_US: Final = 1_000_000
FORGET_US: Final = 60_000_000
"""The breaker of a part that was not queried for this long is dropped: a cluster may have replaced the node."""
WHOLE: Final = None
"""The value of `Store.part_of` that means the whole store."""
MIN_RETRY_US: Final = 1_000_000
REPORT_EVERY_US: Final = 60_000_000
"""How often the same cause is reported during a long outage."""
LOG_EVERY_US: Final = 1_000_000
"""The least time between two log lines, so that a store that keeps failing and recovering does not flood the log."""
MAX_NAMED: Final = 9
"""The most rules with their own `on_error` that a message names."""
_CHOICES: Final[tuple[OnError, ...]] = ("local", "allow", "deny")
_CONSEQUENCES: Final = {
    "local": "are counted in this process alone",
    "allow": "pass uncounted",
    "deny": "are refused",
}
_MIN_US: Final = 1_000
_MAX_US: Final = 60_000_000
_UNANSWERED: Final[Any] = object()

T = TypeVar("T")


class Breaker:
    """The circuit breaker of a part whose last query failed.

    Attributes:
        failures: The number of failed queries in a row.
        failed_us: When the last one failed.
        open_until_us: Until when the part is not queried; 0 if the breaker has not opened.
        logged: Whether this outage was logged.
    """

    __slots__ = ("_causes", "_quiet_until_us", "failed_us", "failures", "logged", "open_until_us")

    def __init__(self) -> None:
        self.failures = self.failed_us = self.open_until_us = 0
        self.logged = False
        self._causes = Throttle(REPORT_EVERY_US)
        self._quiet_until_us = 0

    def fail(self, cause: str, now_us: int) -> bool:
        """Record a failure; return whether to report it: the first one, and each cause once in `REPORT_EVERY_US`."""
        self.failures += 1
        self.failed_us = now_us
        if self.failures >= FAILURES_TO_OPEN:
            self.open_until_us = now_us + OPEN_US
        if now_us < self._quiet_until_us or self._causes.left_out(cause, now_us) is None:
            return False
        self._quiet_until_us = now_us + LOG_EVERY_US
        return True


class Failover:
    """Queries a store that can fail, and decides itself when it does.

    Args:
        store: The store.
        deadline: How long a query may take, 1 ms to 60 s.
        on_error: What decides after that.
        emit: Receives the events ``store_failed`` and ``store_recovered``.
        clock: Returns monotonic time in microseconds.
        buckets: Returns the buckets of all callers; some have their own `on_error`.

    Attributes:
        on_error: What decides if the store does not answer.
        deadline_us: How long a query may take.
        failures: The number of failed queries, without those that an open breaker prevented.
    """

    def __init__(
        self,
        store: Store,
        deadline: str | float | timedelta,
        on_error: OnError,
        emit: Callable[[Event], None],
        clock: Clock = monotonic_us,
        buckets: Callable[[], Iterable[Bucket]] = tuple,
    ) -> None:
        self._store = store
        self._buckets = buckets
        self.deadline_us = parse_duration_us(deadline, "deadline")
        self._deadline_s = self.deadline_us / 1_000_000
        self._deadline = Deadline(self._deadline_s)
        # A timer for each request would cost as much as a hit on an LMDB store.
        self._keeps_deadline = store.keep_deadline(self._deadline_s)
        self.on_error = on_error
        self._emit = emit
        self._clock = clock
        self._troubled: dict[Hashable, Breaker] = {}
        self._local = LocalStore(emit, lambda: self._clock())
        self._throttle = Throttle(REPORT_EVERY_US)
        self._quiet_until_us = 0
        self._left_out = 0
        self.failures = 0

    @property
    def away(self) -> bool:
        """Whether the last query of some part of the store failed."""
        return bool(self._troubled)

    @property
    def local(self) -> MemoryStore | None:
        """The local memory store while its counts or bans may still apply; else None."""
        return self._local.needed(self.away)

    # -- questions ---------------------------------------------------------------------------------------------------

    def hit(self, checks: Sequence[Check], subjects: Sequence[BanSubject] = ()) -> Decision | Awaitable[Decision]:
        """Charge every check or none; see `Store.hit`."""
        if self._troubled and self._is_open(checks):
            return self.fallback("hit", checks, subjects)
        try:
            self._store.keep_deadline(self._deadline_s)
            answer = self._store.hit(checks, subjects)
        except ConfigurationError:
            raise
        except Exception as error:
            self._fail(error, checks)
            return self.fallback("hit", checks, subjects)
        if not isinstance(answer, Decision):
            return self._hit_later(answer, checks, subjects)
        if self._troubled:
            self._recover(checks)
        return answer if self._local.made is None else self._strictly(answer, checks, subjects)

    async def _hit_later(
        self, answer: Awaitable[Decision], checks: Sequence[Check], subjects: Sequence[BanSubject]
    ) -> Decision:
        try:
            if self._keeps_deadline:
                decision = await answer
            elif isinstance(answer, asyncio.Future):
                self._deadline.watch(answer)
                decision = await answer
            else:
                decision = await within(answer, self._deadline_s)
        except (ConfigurationError, asyncio.CancelledError):
            self._probe_again(checks)
            await self._release(answer)
            raise
        except Exception as error:
            self._fail(error, checks)
            return self.fallback("hit", checks, subjects)
        if self._troubled:
            self._recover(checks)
        if self._local.made is None:
            return decision
        strict = self._strictly(decision, checks, subjects)
        return strict if isinstance(strict, Decision) else await strict

    async def _release(self, answer: Awaitable[Decision]) -> None:
        """Release the permits of an answer that came in the loop iteration in which its request was cancelled.

        No one else holds them. Its units stay charged, like those of every cancelled request.
        """
        if not isinstance(answer, asyncio.Future) or not answer.done():
            return
        if answer.cancelled() or answer.exception() is not None:
            return
        decision: Decision = answer.result()
        held = decision.take_back(held=True)
        if held:
            await to_the_end(self.refund(held))

    async def peek(self, checks: Sequence[Check], subjects: Sequence[BanSubject] = ()) -> Decision:
        """Return what `hit` would return now."""
        decision = await self._ask(lambda: self._store.peek(checks, subjects), None, checks)
        if decision is None:
            return self.fallback("peek", checks, subjects)
        local = self.local
        if local is None or not decision.allowed:
            return decision
        other = local.peek(checks, subjects)
        return decision if other.allowed else other

    async def charge(self, checks: Sequence[Check]) -> Decision:
        """Record every cost, whatever the limits."""
        decision = await self._ask(lambda: self._store.charge(checks), None, checks)
        return self.fallback("charge", checks) if decision is None else decision

    async def refund(self, reservations: Sequence[Reservation]) -> bool:
        """Refund what was charged, in the store that charged it; False if the store does not answer."""
        changed = False
        local = [reservation for reservation in reservations if reservation.store is not None]
        if local and local[0].store is not None:
            changed = await within(local[0].store.refund(local))
        shared = [reservation for reservation in reservations if reservation.store is None]
        if shared:
            end_permits(shared)  # an open breaker may prevent the query
            checks = [reservation.check for reservation in shared]
            changed |= await self._ask(lambda: self._store.refund(shared), False, checks)
        return changed

    async def strike(self, policy: BanPolicy, key: str, weight: int, reason: str) -> Ban | None:
        """Count a strike; during an outage, with ``on_error="local"``, in the local store.

        If the store supports it, the strike is also resent later, even if an open breaker prevents it now.

        Raises:
            StoreUnavailable: The store did not answer, and `on_error` is ``"deny"``.
        """
        bans, struck = self._store.bans, (policy, key, weight, reason)
        ban: Ban | None = _UNANSWERED
        if self._troubled and self._is_open(()):
            bans.strike_later(*struck)
        else:
            ban = await self._query(lambda: bans.strike(*struck), _UNANSWERED)
        if ban is not _UNANSWERED:
            return ban
        if self.on_error == "deny":
            raise StoreUnavailable("the store did not answer a strike, so it is unknown whether it bans")
        if self.on_error == "allow":
            return None
        _, ban = self._local.ask(lambda store: store.bans.strike(*struck), policy.after.window_us)
        if ban is not None and ban.ends_us is not None:
            self._local.keep(ban.ends_us)
        return ban

    async def find(self, subjects: Sequence[BanSubject]) -> Ban | None:
        """Return a ban that refuses one of `subjects`; during an outage, only local bans are known."""
        ban = await self._ask(lambda: self._store.bans.find(subjects), None)
        local = self.local
        return ban if ban is not None or local is None else local.bans.find(subjects)

    async def _ask(self, question: Callable[[], T | Awaitable[T]], default: T, checks: Sequence[Check] = ()) -> T:
        """Return the answer to a query, or `default` if none comes in time.

        Args:
            question: Queries the store.
            default: The value to return if the store does not answer.
            checks: The checks of the query; empty for a query about bans.
        """
        if self._troubled and self._is_open(checks):
            return default
        return await self._query(question, default, checks)

    async def _query(self, question: Callable[[], T | Awaitable[T]], default: T, checks: Sequence[Check] = ()) -> T:
        """Do what `_ask` does, even if a breaker is open."""
        try:
            self._store.keep_deadline(self._deadline_s)
            answer = await within(question(), self._deadline_s)
        except (ConfigurationError, asyncio.CancelledError):
            self._probe_again(checks)
            raise
        except Exception as error:
            self._fail(error, checks)
            return default
        if self._troubled:
            self._recover(checks)
        return answer

    # -- answers in place of the store, and beside it ----------------------------------------------------------------

    def fallback(
        self, what: Literal["hit", "peek", "charge"], checks: Sequence[Check], subjects: Sequence[BanSubject] = ()
    ) -> Decision:
        """Decide instead of the store.

        A check's own `on_error` takes precedence: one with ``"deny"`` refuses the request, and those with ``"allow"``
        are not counted locally.
        """
        choices = [terms_of(bucket).on_error or self.on_error for bucket, _, _ in checks] or [self.on_error]
        if "deny" in choices or "local" not in choices:
            now_us, local = self._clock(), self.local
            if "deny" not in choices and what != "charge" and local is not None:
                # The rules let everything pass; local bans apply nevertheless.
                found = local.peek((), [*subjects, *(key for _, key, _ in checks)])
                if not found.allowed:
                    return found
            open_us = max([breaker.open_until_us - now_us for breaker in self._breakers(checks)], default=0)
            return Decision(
                "deny" not in choices or what == "charge",
                Reason.UNAVAILABLE,
                checks=checks,
                at_least_us=max(open_us, MIN_RETRY_US),
            )
        counted = [check for check, choice in zip(checks, choices, strict=False) if choice == "local"]
        if what == "peek":
            return self._local.keep().peek(counted, subjects)
        spans_us = [limit.span_us + limit.slice_us for bucket, _, _ in counted for limit in bucket.limits]
        local, decision = self._local.ask(
            lambda store: store.charge(counted) if what == "charge" else store.hit(counted, subjects),
            max(spans_us, default=0),
        )
        for reservation in decision.reservations:
            reservation.store = local
        is_partial = decision.readings and not decision.allowed and len(counted) < len(checks)
        return _about_all(decision, checks, choices) if is_partial else decision

    def _strictly(
        self, shared: Decision, checks: Sequence[Check], subjects: Sequence[BanSubject]
    ) -> Decision | Awaitable[Decision]:
        """Let a request pass only if the local store also lets it pass."""
        local = self.local
        if local is None or not shared.allowed:
            return shared
        own = local.hit(checks, subjects)
        if own.allowed:
            for reservation in own.reservations:
                reservation.store = local
            shared.reservations = [*shared.reservations, *own.reservations]
            return shared
        return self._take_back(shared, own)

    async def _take_back(self, shared: Decision, own: Decision) -> Decision:
        await to_the_end(self.refund(shared.take_back()))
        return own

    # -- breakers ----------------------------------------------------------------------------------------------------

    def _breakers(self, checks: Sequence[Check]) -> list[Breaker]:
        """Return the breakers that a query depends on: that of its part, and that of the whole store."""
        parts = {self._store.part_of(checks), WHOLE}
        return [breaker for part in parts if (breaker := self._troubled.get(part)) is not None]

    def _is_open(self, checks: Sequence[Check]) -> bool:
        """Return whether a breaker prevents a query. The first query after the pause is allowed: it is the probe."""
        now_us, breakers = self._clock(), self._breakers(checks)
        if any(now_us < breaker.open_until_us for breaker in breakers):
            return True
        for breaker in breakers:
            if breaker.open_until_us:  # other queries are prevented while the probe runs
                breaker.open_until_us = now_us + max(OPEN_US, self.deadline_us)
        return False

    def _probe_again(self, checks: Sequence[Check]) -> None:
        """Make the next query the probe: if this one was the probe, its result says nothing about the server."""
        for breaker in self._breakers(checks):
            breaker.open_until_us = min(breaker.open_until_us, self._clock())

    def _fail(self, error: BaseException, checks: Sequence[Check]) -> None:
        """Record a failed query, and report it: once for each outage, and periodically in a long one."""
        self.failures += 1
        now_us = self._clock()
        shown = written(error, str if isinstance(error, StoreTimeout) else repr)
        if isinstance(error, StoreError) and error.concerns != "server":
            # The server answered, so this does not count as its failure.
            self._probe_again(checks)
            if self._throttle.left_out(error.concerns, now_us) is not None:
                self._report_failure(f" for a {error.concerns}", shown, now_us, checks)
            return
        part = self._store.part_of(checks)
        breaker = self._troubled.setdefault(part, Breaker())
        is_news = breaker.fail(shown, now_us)
        if is_news or not breaker.logged:
            breaker.logged |= self._report_failure(_at(part), shown, now_us, checks, is_news=is_news)

    def _report_failure(
        self, where: str, error: str, now_us: int, checks: Sequence[Check], *, is_news: bool = True
    ) -> bool:
        """Emit a failure if it is news, and log it if the last line is a second old; return whether it was logged.

        An outage that could not be logged is logged later, so that the log is never left with an outdated last line.
        """
        if not is_news and now_us < self._quiet_until_us:
            return False
        rules = self._own_choices(checks)
        message = f"the store failed{where}, so {_consequences(self.on_error, rules)}: {error}"
        if is_news:
            self._emit(Event("store_failed", message, {"on_error": self.on_error, "rules": rules, "error": error}))
        if now_us < self._quiet_until_us:
            self._left_out += 1
            return False
        others = self._left_out - (not is_news)
        more = f" ({others} more were not logged)" if others > 0 else ""
        self._left_out, self._quiet_until_us = 0, now_us + LOG_EVERY_US
        logger.error("store_failed: %s%s", message, more)
        return True

    def _own_choices(self, checks: Sequence[Check]) -> dict[str, str]:
        """Return the known rules whose `on_error` differs from the limiter's, those of `checks` first."""
        known = [*(bucket for bucket, _, _ in checks), *self._buckets()]
        return {
            bucket.label: own for bucket in known if (own := terms_of(bucket).on_error) not in (None, self.on_error)
        }

    def _recover(self, checks: Sequence[Check]) -> None:
        """Record an answered query, and report the recovery if the query before it failed."""
        now_us, well = self._clock(), {self._store.part_of(checks), WHOLE}
        for part, breaker in self._troubled.copy().items():
            if part not in well and now_us - breaker.failed_us < FORGET_US:
                continue
            gone = self._troubled.pop(part, None)  # another thread may be faster
            if part in well and gone is not None:
                message = f"the store answers again{_at(part)}, after {gone.failures} failed requests"
                self._emit(Event("store_recovered", message, {"failures": gone.failures}))
                if gone.logged:
                    self._quiet_until_us = now_us + LOG_EVERY_US
                    logger.warning("store_recovered: %s", message)


class LocalStore:
    """A memory store that is created on first use, and dropped when nothing in it counts any more.

    Args:
        emit: Receives its events.
        clock: Returns monotonic time in microseconds.

    Attributes:
        made: The memory store; None if there is none.
    """

    def __init__(self, emit: Callable[[Event], None], clock: Clock) -> None:
        self._emit = emit
        self._clock = clock
        self._needed_until_us = 0
        self._lock = Lock()  # all threads count in the same store, and none in a dropped one
        hold_over_fork(self._lock)
        self.made: MemoryStore | None = None

    def ask(self, question: Callable[[MemoryStore], T], counts_us: int) -> tuple[MemoryStore, T]:
        """Query the store, and keep it for `counts_us` after the answer; return the store and its answer.

        The time starts after the answer, in case this thread was suspended before it. If the store was dropped in that
        time, what was counted there is lost, so the next one is queried.
        """
        while True:
            store = self.keep()
            answer = question(store)
            if self.keep(counts_us=counts_us) is store:
                return store, answer

    def keep(self, until_us: int = 0, *, counts_us: int = 0) -> MemoryStore:
        """Return the store, and keep it at least until `until_us`, and for `counts_us` from now on."""
        with self._lock:
            self._needed_until_us = max(self._needed_until_us, until_us, self._clock() + counts_us)
            if self.made is None:
                store = MemoryStore(clock=self._clock, wall_clock=system_us)
                store.observe(self._emit)
                self.made = store
            return self.made

    def needed(self, away: bool) -> MemoryStore | None:
        """Return the store; None if the shared store answers and everything counted here has expired."""
        if self.made is None:
            return None
        with self._lock:
            due = not away and self._clock() >= self._needed_until_us
            # Requests that started during the outage may still hold permits.
            if due and self.made is not None and not self.made.permits_held():
                self.made = None
            return self.made


def _about_all(refused: Decision, checks: Sequence[Check], choices: Sequence[str]) -> Decision:
    """Return a refusal by some checks of a question as one of all: the others pass uncounted, and have spent nothing.

    If the request waits, the store that answers by then is asked for the whole question.
    """
    readings = iter(refused.readings)
    whole = [
        next(readings) if choice == "local" else (0, 0, 0, 0)
        for (bucket, _, _), choice in zip(checks, choices, strict=True)
        for _ in bucket.limits
    ]
    return Decision(False, refused.reason, refused.now_us, checks, whole)


def _consequences(on_error: str, rules: Mapping[str, str]) -> str:
    """Return a description of what happens to requests while the store fails.

    Args:
        on_error: The limiter's `on_error`.
        rules: The `on_error` of the rules with a different one, by label.
    """
    others = []
    for choice in dict.fromkeys(rules.values()):
        labels = [label for label, own in rules.items() if own == choice]
        named = ", ".join(map(quoted, labels[:MAX_NAMED]))
        more = f" and {len(labels) - MAX_NAMED} more" if len(labels) > MAX_NAMED else ""
        others.append(f"those under {named}{more} {_CONSEQUENCES[choice]} (on_error={choice!r} of the rules)")
    exceptions = f", but {' and '.join(others)}" if others else ""
    return f"requests {_CONSEQUENCES[on_error]} (on_error={on_error!r}){exceptions}"


def _at(part: Hashable) -> str:
    """Return a part of the store as the end of a message; empty for the whole store."""
    return "" if part is WHOLE else f" at {part}"


def check_failure_policy(deadline: Any, on_error: object) -> None:
    """Validate a deadline and an `on_error`.

    Raises:
        ConfigurationError: One of them is invalid.
    """
    parse_span_us(deadline, "deadline", _MIN_US, _MAX_US, "50ms")
    check_on_error(on_error)


def check_on_error(on_error: object) -> OnError:
    """Validate an `on_error`, and return it.

    Raises:
        ConfigurationError: It is not one of the three values.
    """
    for choice in _CHOICES:
        if on_error == choice:
            return choice
    names = ", ".join(f'"{choice}"' for choice in _CHOICES)
    raise ConfigurationError(
        f"expected one of {names}, not {quoted(on_error)}{closest(str(on_error), _CHOICES)}", "on_error"
    )
