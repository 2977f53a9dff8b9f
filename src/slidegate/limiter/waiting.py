"""Waiting is one line: the requests of this process that may wait stand in it, first come, first served.

There is a line for each rule and key, whatever requests lack: units of windows, or permits of concurrency limits::

    let in  <--  first  <--  second  <--  third        at most `LimitSet.wait_max`
                   |            '-----------'--------- sleep until they are called, or their bound is over
                   '-- asks the store, sleeps until its retry-after or a second, asks again

Nothing is charged before its turn, so a line holds no units, permits or locks, and the bound of a limit holds whoever
else comes. The store keeps what comes free for who stands first, so that a stream of others cannot starve a line.
Whoever leaves a line, let in or not, calls the next one; so does who hands something back. A permit has no retry-after,
and other workers hand back too, so the first asks for one every `PAUSE_S`. A request that comes while others wait is
not charged before them: the store is asked what it would answer, no more. Between processes it is whoever asks first.

Who cannot be let in before its bound is refused at once. With U units asked for by those ahead and itself, N of which
fit in a window W, unit number U comes no sooner than unit number r = U - m * N (1 <= r <= N) and m windows, because
each window takes N; and r units wait at least as long as fewer, which is what the store says of the request alone.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import monotonic_ns
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import anyio

from ..core.bans.ban import BanSubject
from ..core.concurrency import Concurrency
from ..core.decision import Check, Decision, LimitSet, Reason
from ..core.limits import AnyLimit, Limit
from ..core.quotas import Quota
from ..core.ring import GRACE_US, KEPT_US, NEVER, OPEN
from ..core.statistics.histogram import ResponseTimes
from ..core.store import Clock
from ..stores.forks import begin_anew_in_child, hold_over_fork
from .aio import on_asyncio, to_the_end
from .decisions import NotAsked

if TYPE_CHECKING:
    from .engine import Engine

PAUSE_S: Final = 0.1
"""How long the first of a line waits for a permit before it asks again without having been called."""
LATE_US: Final = 10_000
"""How late timers may be, before the bound of a wait counts it: else the second of a burst would miss its turn."""

PASSED: Final = "passed"
REFUSED: Final = "refused"
LEFT: Final = "left"
"""The outcome of a request whose client left, or that was cancelled, before its turn came."""
OUTCOMES: Final = (PASSED, REFUSED, LEFT)

Name: TypeAlias = tuple[str, str]
"""The identity of a rule, and a key."""
NOBODY: Final[Counter[LimitSet]] = Counter()


class Waiter:
    """How a request waits in its event loop."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._thread = threading.get_ident()
        self._soon: Callable[[Callable[[], object]], object]
        if on_asyncio():
            self._soon = asyncio.get_running_loop().call_soon_threadsafe
        else:
            self._soon = sys.modules["trio"].lowlevel.current_trio_token().run_sync_soon

    def now_s(self) -> float:
        """Return the time, by which bounds go."""
        return anyio.current_time()

    def call(self) -> None:
        """End the wait, from any thread; an event is set in its own thread alone."""
        if self._thread == threading.get_ident():
            self._event.set()
        else:
            with suppress(RuntimeError):  # its event loop has ended, and it with that
                self._soon(self._set)

    def _set(self) -> None:
        self._event.set()

    async def wait(self, wait_s: float) -> None:
        """Wait to be called, for no longer than this."""
        with anyio.move_on_after(wait_s):
            await self._event.wait()
        self._event = anyio.Event()


class Line:
    """Those who wait under one name."""

    __slots__ = ("units", "waiters")

    def __init__(self) -> None:
        self.waiters: deque[Waiter] = deque()
        self.units: Counter[LimitSet] = Counter()
        """What they will be charged; units of one rule lie in the same windows only if their bucket is the same."""

    def starts_with(self, waiter: Waiter) -> bool:
        """Tell whether somebody stands first."""
        return bool(self.waiters) and self.waiters[0] is waiter

    async def turn(self, waiter: Waiter, until_s: float) -> bool:
        """Wait until somebody stands first; False if the time is over before."""
        while not self.starts_with(waiter):
            left_s = until_s - waiter.now_s()
            if left_s <= 0:
                return False
            await waiter.wait(left_s)
        return True


class Waits:
    """Counts waiting requests, for all threads.

    Args:
        clock: Returns microseconds; by default the monotonic clock.

    Attributes:
        timed: Hears the outcome and the microseconds of each wait that ends; None for nobody. It must not raise.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = _monotonic_us if clock is None else clock
        self._lock = threading.Lock()
        self._waiting = 0
        self.timed: Callable[[str, int], None] | None = None
        self._ever = {outcome: ResponseTimes() for outcome in OUTCOMES}

    @property
    def waiting(self) -> int:
        """How many requests wait now."""
        return self._waiting

    def ever(self) -> dict[str, ResponseTimes]:
        """Return how long requests have waited, by their outcome."""
        with self._lock:
            return {outcome: ResponseTimes.merged([times]) for outcome, times in self._ever.items()}

    def begin(self) -> int:
        """Count a request that waits from now on, and return the time."""
        with self._lock:
            self._waiting += 1
        return self._clock()

    def end(self, began_us: int, outcome: str) -> None:
        """Count it no more, and how long it has waited.

        Args:
            began_us: What `begin` returned.
            outcome: One of `OUTCOMES`.
        """
        took_us = max(self._clock() - began_us, 0)
        with self._lock:
            self._waiting -= 1
            self._ever[outcome].count_one(took_us)
        if self.timed is not None:
            self.timed(outcome, took_us)


def _monotonic_us() -> int:
    return monotonic_ns() // 1_000


class WaitingLines:
    """The lines of one limiter.

    Args:
        engine: Asks the store.

    Attributes:
        lines: The lines in which somebody stands, by their name.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        hold_over_fork(self._lock)
        self.lines: dict[Name, Line] = {}
        begin_anew_in_child(self.forget)

    def decide(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision | Awaitable[Decision]:
        """Charge every check or none, unless others wait in line before a request: then nothing is asked yet.

        Where refusals are charged the line is the way of all that may wait, or each would be charged as refused before
        it waits.
        """
        for check in checks:
            bucket = check[0]
            if bucket.wait_us and (bucket.count_denied or (self.lines and (bucket.rule, check[1]) in self.lines)):
                return NotAsked(check, checks)
        return self._engine.decide(checks, subjects)

    def forget(self) -> None:
        """Forget who waits, as in a child of `fork`: those who wait in its parent never come to their turn there."""
        self.lines.clear()

    def freed(self, checks: Sequence[Check]) -> None:
        """Call those who wait for what some checks had charged: it was handed back."""
        for bucket, key, _ in checks if self.lines else ():
            self._call((bucket.rule, key))

    def reset(self, key: str | None = None) -> None:
        """Call those who wait under a key, or under any: its windows are forgotten."""
        for name in list(self.lines):
            if key is None or name[1] == key:
                self._call(name)

    def join(
        self, name: Name, waiter: Waiter, max_waiting: int, units: Sequence[Check] = ()
    ) -> tuple[Line | None, Counter[LimitSet]]:
        """Go to the end of a line; `leave` it afterwards.

        Args:
            name: Whose line.
            waiter: Who waits.
            max_waiting: How many may stand in it.
            units: What is to be charged.

        Returns:
            The line, None if it is full, and the units of those ahead by their bucket.
        """
        with self._lock:
            line = self.lines.get(name)
            if line is None:
                line = self.lines[name] = Line()
            ahead = line.units.copy()
            if len(line.waiters) >= max_waiting:
                return None, ahead
            line.waiters.append(waiter)
            line.units.update(_units(name, units))
            return line, ahead

    def leave(self, name: Name, waiter: Waiter, units: Sequence[Check] = ()) -> None:
        """Leave a line, and call the one who stands first then."""
        with self._lock:
            line = self.lines[name]
            line.waiters.remove(waiter)
            line.units.subtract(_units(name, units))
            if not line.waiters:
                del self.lines[name]
        self._call(name)

    def _call(self, name: Name) -> None:
        with self._lock:
            line = self.lines.get(name)
            if line is not None:
                line.waiters[0].call()

    async def wait(self, refused: Decision, subjects: Sequence[BanSubject] = ()) -> Decision:
        """Wait in line, as long as the rules of a request allow.

        Args:
            refused: The refusal of the request, or its `NotAsked`.
            subjects: Further keys whose bans refuse.

        Returns:
            What the store answered at last. A decision that lets the request through after a wait says `WAITED`.
        """
        return await _Request(self, self._engine, refused, subjects).wait()

    async def ask(
        self, checks: Sequence[Check], subjects: Sequence[BanSubject], *, first_in_line: bool = True
    ) -> Decision:
        """Ask the store whether a request may pass. Who is cancelled meanwhile is charged nothing for being let in."""
        answer = self._engine.decide(checks, subjects, first_in_line=first_in_line)
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


class _Request:
    """One request that waits."""

    def __init__(
        self,
        lines: WaitingLines,
        engine: Engine,
        refused: Decision,
        subjects: Sequence[BanSubject],
    ) -> None:
        self._lines = lines
        self._engine = engine
        self._question = refused.checks
        self._subjects = subjects
        self._waiter = Waiter()
        self._last: Decision | None = None if isinstance(refused, NotAsked) else refused
        self._name, self._max_waiting, self._bound_us = _place(refused)
        self._began_s = self._waiter.now_s()
        self._waits_from_us: int | None = None
        self._charged = any(bucket.count_denied for bucket, _, _ in self._question)

    async def wait(self) -> Decision:
        """See `WaitingLines.wait`."""
        if self._last is None and self._name not in self._lines.lines:
            # It may be refused for good: nothing shall be kept free for it then, and one that may wait is not charged.
            self._last = await self._peek()
            if self._last.allowed:
                self._last = await self._ask()
        if self._last is not None and (self._last.allowed or not self._has_time(self._last)):
            return await self._end(self._last)
        outcome = LEFT
        try:
            decision = await self._stand()
            while decision is None:  # it lacks something else now, for which others stand in another line
                decision = await self._stand()
            outcome = PASSED if decision.allowed else REFUSED
        finally:
            if self._waits_from_us is not None:
                self._engine.waits.end(self._waits_from_us, outcome)
        if self._waits_from_us is not None and decision.reason is Reason.OK:
            decision.reason = Reason.WAITED
        return decision

    async def _stand(self) -> Decision | None:
        """Stand in one line; None to go to another one."""
        name = self._name
        line, ahead = self._lines.join(name, self._waiter, self._max_waiting, self._question)
        if line is None:
            return await self._turned_away(ahead)
        try:
            if not line.starts_with(self._waiter):
                self._last = await self._peek()
                if not self._has_time(self._last, ahead):
                    return await self._turned_away(ahead)
                self._count()
                if not await line.turn(self._waiter, self._until_s + LATE_US / 1_000_000):
                    return await self._turned_away(NOBODY)
            self._last = None
            return await self._first()
        finally:
            self._lines.leave(name, self._waiter, self._question)

    async def _first(self) -> Decision | None:
        """Ask, and sleep until the answer says, as the first of the line."""
        while True:
            decision = self._last = await self._ask() if self._last is None else self._last
            lacks = _lacks(decision)
            if not lacks or not self._has_time(decision):
                return await self._end(decision)
            name, self._max_waiting, _ = _place(decision)
            if name != self._name:
                self._name = name
                return None
            wait_s = min(max(lack.wait_us for lack in lacks), KEPT_US) / 1_000_000
            if any(lack.wait_us == OPEN for lack in lacks):
                left_s = max(self._until_s - self._waiter.now_s(), LATE_US / 1_000_000)
                wait_s = max(wait_s, min(PAUSE_S, left_s))
            self._count()
            await self._waiter.wait(wait_s)
            self._last = None

    def _count(self) -> None:
        """Count it as one that waits, now that it does."""
        if self._waits_from_us is None:
            self._waits_from_us = self._engine.waits.begin()

    async def _ask(self, *, first_in_line: bool = True) -> Decision:
        return await self._lines.ask(self._question, self._subjects, first_in_line=first_in_line)

    async def _peek(self) -> Decision:
        return await self._engine.peek(self._question, self._subjects)

    async def _end(self, decision: Decision) -> Decision:
        """Return the last answer; where refusals are charged it is asked for anew, as of one that stands in no line."""
        if decision.allowed or not self._charged:
            return decision
        return await self._ask(first_in_line=False)

    async def _turned_away(self, ahead: Counter[LimitSet]) -> Decision:
        """Return the refusal of a request that is not let in, whatever the store has room for now.

        Where refusals are charged the store says, in one step: it keeps what is there for those ahead.
        """
        if self._charged:
            return await self._ask(first_in_line=False)
        decision = await self._peek()
        if not decision.allowed or not decision.readings:
            return decision
        readings = []
        for part, reading in zip(_asked(decision, self._name), decision.readings, strict=True):
            permits = isinstance(part.limit, Concurrency)
            wait_us = 0 if not part.here else OPEN if permits else max(_later_us(part, ahead), 1)
            readings.append((*reading[:3], wait_us))
        return Decision(False, Reason.LIMITED, decision.now_us, decision.checks, readings)

    @property
    def _until_s(self) -> float:
        return self._began_s + self._bound_us / 1_000_000

    def _has_time(self, decision: Decision, ahead: Counter[LimitSet] = NOBODY) -> bool:
        """Tell whether a request that got an answer may be let in before its bound."""
        lacks = _lacks(decision)
        if lacks is None:
            return False
        self._bound_us = min([self._bound_us, *(lack.bucket.wait_us for lack in lacks)])
        gone_us = max(round((self._waiter.now_s() - self._began_s) * 1_000_000) - LATE_US, 0)
        left_us = self._bound_us - gone_us
        waits = [_later_us(part, ahead) for part in _asked(decision, self._name)]
        return left_us > 0 and max(waits, default=0) <= left_us


class _Asked(NamedTuple):
    """One limit of a question, and what a store said of it."""

    bucket: LimitSet
    key: str
    limit: AnyLimit
    cost: int
    wait_us: int
    here: bool
    """Whether it is counted where those wait who stand in the same line."""


def may_wait(decision: Decision) -> bool:
    """Tell whether a request may wait: it was not let through, and all that it lacks will come back."""
    return isinstance(decision, NotAsked) or (not decision.allowed and bool(_lacks(decision)))


def _asked(decision: Decision, name: Name | None = None) -> list[_Asked]:
    waits = iter(decision.readings)
    return [
        _Asked(bucket, key, limit, max(cost, 1), next(waits)[3], here=(bucket.rule, key) == name)
        for bucket, key, cost in (decision.checks if decision.readings else ())
        for limit in bucket.limits
    ]


def _lacks(decision: Decision) -> list[_Asked] | None:
    """Return what a request lacks; None if it may not wait for it, or something else than limits refuses it."""
    if not decision.allowed and not decision.readings:
        return None
    lacks = [lack for lack in _asked(decision) if lack.wait_us and not decision.allowed]
    for bucket, _, limit, _, wait_us, _ in lacks:
        # Nobody waits for the next day, and who asks for more than there is waits for ever.
        if not bucket.wait_us or isinstance(limit, Quota) or wait_us == NEVER:
            return None
    return lacks


def _place(decision: Decision) -> tuple[Name, int, int]:
    """Return the line of a request that is not let through, how many may stand in it, and how long."""
    if isinstance(decision, NotAsked):
        bucket, key, _ = decision.check
    else:
        # In the line of what comes last it holds up nobody who lacks less.
        bucket, key, *_ = max(_lacks(decision) or _asked(decision), key=lambda lack: lack.wait_us)
    return (bucket.rule, key), bucket.wait_max, bucket.wait_us


def _later_us(lack: _Asked, ahead: Counter[LimitSet]) -> int:
    """Return how long a request waits at least under one limit, behind the units of those ahead of it."""
    _, _, limit, cost, wait_us, here = lack
    units = ahead[lack.bucket] if here else 0
    if not units or not isinstance(limit, Limit):
        return max(wait_us, 0)
    wait_us = max(wait_us - GRACE_US, 0)  # the store keeps what is there for those ahead so much longer than they need
    windows, before = divmod(units + cost - 1, limit.amount)
    return max(wait_us, windows * limit.window_us + (wait_us if before + 1 >= cost else 0), 0)


def _units(name: Name, checks: Sequence[Check]) -> Counter[LimitSet]:
    units: Counter[LimitSet] = Counter()
    for bucket, key, cost in checks:
        if (bucket.rule, key) == name:
            units[bucket] += cost
    return units
