"""The failure policy: it asks a store that can fail, and answers when the store does not.

Every question has a deadline. A part of the store that fails again and again is left alone for a while; see `breakers`.

Meanwhile the limiter's `on_error` decides:

* ``"local"``: a memory store of this process counts, by the same limits (`local_counts`). When the shared store answers
  again, a request has to pass both as long as a unit that was counted here still counts, so recovery is no burst;
* ``"allow"``: everything passes, uncounted;
* ``"deny"``: everything is refused, with 503 over HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from datetime import timedelta
from inspect import isawaitable
from time import monotonic_ns
from typing import Any, Final, Literal, TypeAlias, TypeVar

from ..core.bans.in_force import Ban, Guarded
from ..core.bans.policy import BanPolicy
from ..core.charge import let_go
from ..core.decision import Check, Decision
from ..core.durations import format_duration
from ..core.errors import ConfigurationError, StoreError, StoreTimeout, StoreUnavailable, closest
from ..core.limits import parse_duration_us
from ..core.logs import logger, written
from ..core.store import Clock, Event, Store
from ..stores.memory.store import MemoryStore
from .breakers import WHOLE, Breakers
from .deadlines import Deadline, within
from .local_counts import LocalCounts
from .stand_ins import Parted, Unserved
from .uncancelled import to_the_end

OnError: TypeAlias = Literal["local", "allow", "deny"]
FailurePolicy: TypeAlias = tuple[str, OnError]
"""A deadline, and the `on_error` that decides after it."""

DEADLINE: Final = "50ms"
ON_ERROR: Final = "local"
LEAST_RETRY_US: Final = 1_000_000
SAY_EVERY_US: Final = 60_000_000
MOST_SAID: Final = 100
_CHOICES: Final = ("local", "allow", "deny")
_MIN_US: Final = 1_000
_MAX_US: Final = 60_000_000

T = TypeVar("T")


class Failsafe:
    """Asks a store that can fail, and answers in its place when it does.

    Args:
        store: The store.
        deadline: How long a question may take, 1 ms to 60 s.
        on_error: The answer after that.
        tell: Hears of the events ``store_failed`` and ``store_recovered``.
        clock: Returns microseconds that never run back.

    Raises:
        ConfigurationError: A value cannot work.
    """

    def __init__(
        self,
        store: Store,
        deadline: str | float | timedelta,
        on_error: OnError,
        tell: Callable[[Event], None],
        clock: Clock = lambda: monotonic_ns() // 1000,
    ) -> None:
        check_failure_policy(deadline, on_error)
        self._store = store
        self._deadline_s = parse_duration_us(deadline, "deadline") / 1_000_000
        self._deadline = Deadline(self._deadline_s)
        # A timer for each request costs as much as a whole hit on a store of this host.
        self._keeps_deadline = store.keep_deadline(self._deadline_s)
        self.on_error = on_error
        """Decides when the store does not answer."""
        self._tell = tell
        self._clock = clock
        self._breakers = Breakers(store, int(self._deadline_s * 1_000_000), lambda: self._clock())
        self._troubled = self._breakers.troubled
        self._here = LocalCounts(tell, lambda: self._clock(), lambda: bool(self._troubled))
        self._say_again_us: dict[Hashable, int] = {}
        self._said: set[Hashable] = set()
        self.failures = 0
        """How many questions had no answer so far; those that were not put, because it is left alone, not included."""
        self.deadline_us = int(self._deadline_s * 1_000_000)
        """How long a question may take."""

    def now_us(self) -> int:
        """Return the time by which failures are counted."""
        return self._clock()

    @property
    def away(self) -> bool:
        """Whether a part of the store did not answer when it was asked last."""
        return bool(self._troubled)

    @property
    def local(self) -> MemoryStore | None:
        """The store of this process, as long as something that it counted or banned may count."""
        return self._here.store

    def hit(
        self, checks: Sequence[Check], guarded: Sequence[Guarded] = (), *, first_in_line: bool = False
    ) -> Decision | Awaitable[Decision]:
        """Charge every check or none; see `Store.hit`."""
        if self._troubled and self._breakers.left_alone(checks):
            return self.instead("hit", checks, guarded)
        try:
            self._store.keep_deadline(self._deadline_s)
            answer = self._store.hit(checks, guarded, first_in_line=first_in_line)
        except ConfigurationError:
            raise
        except Exception as error:
            self._fail(error, checks)
            return self.instead("hit", checks, guarded)
        if isinstance(answer, Decision):
            if self._troubled:
                self._recover(checks)
            return answer if self._here.made is None else self._strictly(answer, checks, guarded)
        return self._wait_for_hit(answer, checks, guarded)

    async def _wait_for_hit(
        self, answer: Awaitable[Decision], checks: Sequence[Check], guarded: Sequence[Guarded]
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
            self._breakers.probe_again(checks)
            await self._let_go(answer)
            raise
        except Exception as error:
            self._fail(error, checks)
            return self.instead("hit", checks, guarded)
        if self._troubled:
            self._recover(checks)
        if self._here.made is None:
            return decision
        strict = self._strictly(decision, checks, guarded)
        return strict if isinstance(strict, Decision) else await strict

    async def _let_go(self, answer: Awaitable[Decision]) -> None:
        """Hand back the places of an answer that came in the turn of the event loop in which its request was cancelled.

        Nobody else has seen it. Its units stay charged, as those of every request that is cancelled.
        """
        if not isinstance(answer, asyncio.Future) or not answer.done():
            return
        if answer.cancelled() or answer.exception() is not None:
            return
        decision: Decision = answer.result()
        for part in decision.take_apart(held=True):
            await to_the_end(self.refund(part))

    async def peek(self, checks: Sequence[Check], guarded: Sequence[Guarded] = ()) -> Decision:
        """Say what `hit` would answer now."""
        decision = await self.ask(lambda: self._store.peek(checks, guarded), None, checks)
        if decision is None:
            return self.instead("peek", checks, guarded)
        if self.local is None or not decision.allowed:
            return decision
        other = self._here.peek(checks, guarded)
        return decision if other.allowed else other

    async def charge(self, checks: Sequence[Check]) -> Decision:
        """Record every cost, whatever the limits."""
        decision = await self.ask(lambda: self._store.charge(checks), None, checks)
        return self.instead("charge", checks) if decision is None else decision

    async def refund(self, decision: Decision) -> bool:
        """Hand the units of a decision back to each store that charged them; False if a store does not answer."""
        if not isinstance(decision, Parted):
            let_go(decision.charge)  # the store may be left alone, and hear nothing of it
            return await self.ask(lambda: self._store.refund(decision), False, decision.checks)
        changed = False
        for store, part in decision.parts:
            changed |= await self.refund(part) if store is self._store else await within(store.refund(part))
        if changed:
            decision.charge = ()
        return changed

    async def strike(self, policy: BanPolicy, key: str, weight: int, reason: str, prefix: str = "") -> Ban | None:
        """Count a strike; in this process, with `on_error="local"`, while the store does not answer.

        Raises:
            StoreUnavailable: The store did not answer, and `on_error` is ``"deny"``.
        """
        nobody: tuple[bool, Ban | None] = (False, None)
        struck = self._store.bans.strike
        answered, ban = await self.ask(lambda: _noting(struck(policy, key, weight, reason, prefix)), nobody)
        if not answered and self.on_error == "deny":
            raise StoreUnavailable("the store did not answer a strike, so nobody knows whether it bans")
        if answered or self.on_error != "local":
            return ban
        return self._here.strike(policy, key, weight, reason, prefix)

    async def find_ban(self, guarded: Sequence[Guarded]) -> Ban | None:
        """Return a ban that refuses one of `guarded`; only bans made here are known while the store is away."""
        ban = await self.ask(lambda: self._store.bans.find(guarded), None)
        return self._here.find_ban(guarded) if ban is None else ban

    async def ask(self, question: Callable[[], T | Awaitable[T]], default: T, checks: Sequence[Check] = ()) -> T:
        """Return the answer to a question, or `default` if none comes in time.

        Args:
            question: Asks the store.
            default: Returned if the store does not answer.
            checks: The checks that the question is about; it is about bans if there are none.
        """
        if self._troubled and self._breakers.left_alone(checks):
            return default
        try:
            self._store.keep_deadline(self._deadline_s)
            answer = await within(question(), self._deadline_s)
        except (ConfigurationError, asyncio.CancelledError):
            self._breakers.probe_again(checks)
            raise
        except Exception as error:
            self._fail(error, checks)
            return default
        if self._troubled:
            self._recover(checks)
        return answer

    def _fail(self, error: BaseException, checks: Sequence[Check]) -> None:
        """Record that a question was not answered, and report it now and then."""
        self.failures += 1
        narrow = isinstance(error, StoreError) and error.concerns != "server"
        if narrow:
            # The server answered, so it is as well as it was before.
            self._breakers.probe_again(checks)
            what: Hashable = f"for a {error.concerns}"  # type: ignore[attr-defined]
            where = f" {what}"
        else:
            what = self._breakers.failed(checks)
            where = _at(what)
        now_us = self._clock()
        if now_us < self._say_again_us.get(what, now_us):
            return
        if len(self._say_again_us) >= MOST_SAID:
            self._say_again_us.clear()
        self._say_again_us[what] = now_us + SAY_EVERY_US
        if not narrow:
            self._said.add(what)
        shown = written(error, str if isinstance(error, StoreTimeout) else repr)
        message = f"the store failed{where}, so on_error={self.on_error!r} decides: {shown}"
        logger.error("store_failed: %s", message)
        self._tell(Event("store_failed", message, {"on_error": self.on_error, "error": shown}))

    def _recover(self, checks: Sequence[Check]) -> None:
        """Record that a question was answered; report the recovery if the failure was reported."""
        for part, failures in self._breakers.answered(checks).items():
            if part in self._said:
                self._said.discard(part)
                message = f"the store answers again{_at(part)}, after {failures} questions without an answer"
                logger.warning("store_recovered: %s", message)
                self._tell(Event("store_recovered", message, {"failures": failures}))

    def instead(
        self, what: Literal["hit", "peek", "charge"], checks: Sequence[Check], guarded: Sequence[Guarded] = ()
    ) -> Decision:
        """Answer in the place of the store."""
        if self.on_error != "local":
            allowed = self.on_error == "allow" or what == "charge"
            return Unserved(allowed, checks, max(self._breakers.left_us(checks), LEAST_RETRY_US))
        if what == "peek":
            return self._here.peek(checks, guarded)
        decision = self._here.charge(checks) if what == "charge" else self._here.hit(checks, guarded)
        local = self._here.made
        return Parted(decision, [(local, decision)]) if decision.charge and local is not None else decision

    def _strictly(
        self, shared: Decision, checks: Sequence[Check], guarded: Sequence[Guarded]
    ) -> Decision | Awaitable[Decision]:
        """Let a request pass only if the local counts let it pass, too."""
        local = self.local
        if local is None or not shared.allowed:
            return shared
        own = self._here.hit_too(local, checks, guarded)
        if not own.allowed:
            return self._take_back(shared, own)
        return Parted(shared, [(self._store, shared), (local, own)])

    async def _take_back(self, shared: Decision, own: Decision) -> Decision:
        await to_the_end(self.refund(shared))
        return own


def _at(part: Hashable) -> str:
    """Return the words of a message that name a part of the store."""
    return "" if part is WHOLE else f" at {part}"


async def _noting(answer: Ban | Awaitable[Ban | None] | None) -> tuple[bool, Ban | None]:
    """Return (True, answer), so that an answer of None is told from no answer."""
    return True, await answer if isawaitable(answer) else answer


def check_failure_policy(deadline: Any, on_error: object) -> None:
    """Check a deadline and an `on_error`.

    Raises:
        ConfigurationError: One of them cannot work.
    """
    if not _MIN_US <= parse_duration_us(deadline, "deadline") <= _MAX_US:
        shortest, longest = format_duration(_MIN_US), format_duration(_MAX_US)
        raise ConfigurationError(f'deadline: expected {shortest} to {longest}, for example "50ms", not {deadline!r}')
    if on_error not in _CHOICES:
        names = ", ".join(f'"{choice}"' for choice in _CHOICES)
        raise ConfigurationError(
            f"on_error: expected one of {names}, not {on_error!r}{closest(str(on_error), _CHOICES)}"
        )
