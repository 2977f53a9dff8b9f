"""Overrides: temporary changes of a limit's amount at run time, for all workers that share a store.

An override is a row of the store's `SharedStats`, and expires with it::

    limits    0    digest of the limit's name    JSON: the limit, its end in the store's time, who changed it and why

Every worker polls these rows twice a second, by a timer of asyncio or a task of trio, and changes the amounts of the
limits that its buckets own, see `AnyLimit.become`. Requests do not wait for any of this. During an outage, the last
known overrides stay in effect until their end. If a store has no `SharedStats`, overrides apply to this process only.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

import anyio

from ..core.concurrency import Concurrency
from ..core.errors import ConfigurationError, StoreError, closest, quoted
from ..core.limits import MAX_AMOUNT, AnyLimit, Limit, check_name, parse_limits
from ..core.logs import Throttle, logger
from ..core.quotas import Quota
from ..core.store import CHANGED_LIMITS, Event, StatsRow
from ..stores.forks import begin_anew_in_child, hold_over_fork
from .aio import COMMAND_DEADLINE_S, on_asyncio, on_loop, within

if TYPE_CHECKING:
    from .engine import Engine

INTERVAL_S: Final = 0.5
DEADLINE_S: Final = 1.0
ROLLUP: Final = CHANGED_LIMITS
MOST: Final = 10
"""The largest allowed ratio of an override to the amount in code."""
TOOLS: Final = "slidegate-"
"""The prefix of the names of the tools' own limits."""
_LOG_EVERY_S: Final = 600.0
_LATEST_US: Final = 2**52
"""About the year 2112; the sum of two such times is still valid for `datetime`."""


@dataclass(frozen=True, slots=True)
class Override:
    """A temporary change of a limit's amount.

    Attributes:
        name: The name of the limit in response headers.
        limit: The limit that replaces the one in code: ``"50/minute"``.
        by: The person or program that changed it.
        reason: The reason, for operators.
        made_us: When it was changed, in microseconds of Unix time.
        length_us: How long it applies, in microseconds.
        until_us: When it ends, in microseconds of the store's time.
    """

    name: str
    limit: str
    by: str
    reason: str
    made_us: int
    length_us: int
    until_us: int

    @property
    def since(self) -> datetime:
        """When it was made."""
        return datetime.fromtimestamp(self.made_us / 1_000_000, UTC)

    @property
    def until(self) -> datetime:
        """When it ends."""
        return datetime.fromtimestamp((self.made_us + self.length_us) / 1_000_000, UTC)


ByName: TypeAlias = Mapping[str, Override]
"""Overrides by the name of their limit."""


class NamedLimit(NamedTuple):
    """A limit as configured in code, with its name in response headers."""

    name: str
    limit: AnyLimit
    cost: int = 1
    """The largest known cost of one request."""
    fixed: str = ""
    """Why its amount cannot be changed; empty if it can."""
    rule: str = ""
    """The label of its rule."""
    shadow: bool = False
    """Whether its rule only reports."""
    owned: AnyLimit | None = None
    """The limit that its bucket counts by; None if there is no bucket yet."""

    def amount_in(self, text: str) -> int:
        """Return the amount that an override's text sets for this limit.

        Raises:
            ConfigurationError: The text has another window, its amount is out of range, or the limit is fixed.
        """
        if self.fixed:
            raise ConfigurationError(f"limit {self.name!r}: {self.fixed}")
        other = _read_as(self.limit, text)
        if other is None:
            example = _written(self.limit, max(self.limit.amount // 2, 1))
            raise ConfigurationError(
                f"limit {self.name!r}: in the code it is {_written(self.limit, self.limit.amount)!r}, and its amount "
                f"alone can change; write for example {example!r}, not {quoted(text)}"
            )
        most = min(self.limit.amount * MOST, MAX_AMOUNT)
        if not self.cost <= other.amount <= most:
            why = f"a request costs {self.cost}, and " if self.cost > 1 else ""
            raise ConfigurationError(
                f"limit {self.name!r}: expected an amount from {self.cost} to {most}, because {why}in the code it is "
                f"{self.limit.amount}, of which {MOST} times as much is allowed; not {other.amount}"
            )
        return other.amount

    def amount_under(self, overrides: ByName) -> int:
        """Return the amount in effect; the one in code if there is no applicable override."""
        override = overrides.get(self.name)
        if override is None:
            return self.limit.amount
        try:
            return self.amount_in(override.limit)
        except ConfigurationError:
            return self.limit.amount


class LimitInForce(NamedTuple):
    """A limit that this process counts with."""

    name: str
    """Its name in response headers."""
    rule: str
    """The label of its rule."""
    limit: AnyLimit
    """The limit in force, as an operator has changed it; ``str(limit)`` is ``100/1m``."""
    configured: AnyLimit
    """The limit as configured in code."""
    changeable: bool
    """Whether `Limiter.override` can change it."""
    shadow: bool
    """Whether its rule reports and never refuses."""


NamedLimits: TypeAlias = Mapping[str, Sequence[NamedLimit]]
"""The limits of all callers by name."""


@runtime_checkable
class Changing(Protocol):
    """A caller of the limiter whose limits can be changed: a middleware."""

    def named_limits(self) -> Iterable[NamedLimit]:
        """Return its limits as configured in code, each with the one that its bucket owns."""

    def begin_anew(self) -> None:
        """Call `Overrides.start` with the next request, in a child of `fork`."""


class Overrides:
    """The overrides of one limiter.

    Args:
        engine: Queries the store.

    Attributes:
        known: The overrides in effect in this process, by limit name.
    """

    def __init__(self, engine: Engine) -> None:
        self.known: ByName = {}
        self._in_effect: ByName = {}
        self._engine = engine
        self._shared = engine.store.shared_stats
        self._ahead_us = 0
        self._begun = self._applied = 0
        self._home: asyncio.AbstractEventLoop | None = None
        self._loop: asyncio.AbstractEventLoop | object | None = None  # under trio, the token of its run
        self._task: asyncio.Task[None] | None = None
        self._throttle = Throttle(_LOG_EVERY_S)
        self._lock = Lock()
        hold_over_fork(self._lock)
        begin_anew_in_child(self.begin_anew)
        engine.forgetting.append(self.forget)

    def begin_anew(self) -> None:
        """In a child of `fork`, start polling again with the next request."""
        self._home = self._loop = self._task = None
        for caller in self._callers():
            caller.begin_anew()

    def apply(self, caller: Changing) -> None:
        """Apply the overrides in effect to a caller that is already registered, without missing a concurrent change.

        Its limits help to decide which overrides apply, so the other callers may gain or lose some, too.
        """
        self._replace(None, caller)

    def enter(self, limits: Iterable[NamedLimit]) -> None:
        """Apply the overrides in effect to limits that a registered caller has just made.

        The caller names them by now, so a concurrent change meets them as well, before or after this.
        """
        if self.known:
            with self._lock:
                _set_amounts(limits, self._in_effect)

    def forget(self) -> None:
        """Drop all overrides in this process. For tests."""
        self._replace({})

    async def set(self, name: str, limit: str, length_us: int, reason: str, by: str) -> Override:
        """Change a limit for all workers; for this one immediately.

        Raises:
            ConfigurationError: There is no such limit, or it cannot be changed to this.
            StoreError: The store does not answer.
        """
        self._check(name, limit)
        if self._shared is None and not on_loop():
            raise ConfigurationError(
                "override: an override in this store is ended by a timer of an event loop, and none runs here; use "
                "`await limiter.override(...)` in the application"
            )
        now_us = self._engine.now_us() if self._shared is None else await self._engine.command(self._shared.time)
        made = Override(name, limit.strip(), by, reason, self._engine.unix_us(), length_us, now_us + length_us)
        await self._write(made, length_us)
        self.start()
        return made

    async def unset(self, name: str) -> bool:
        """End the override of a limit; False if it has none."""
        await self.refresh()
        if name not in self.known:
            return False
        await self._write(self.known[name], 0)
        return True

    def in_force(self) -> Iterator[LimitInForce]:
        """Yield the limits of all callers, with the amounts in effect."""
        for named in self._named().values():
            for one in named:
                limit = one.limit.with_amount(one.amount_under(self._in_effect))
                yield LimitInForce(one.name, one.rule, limit, one.limit, not one.fixed, one.shadow)

    async def refresh(self, deadline_s: float = COMMAND_DEADLINE_S) -> None:
        """Read the overrides from the store, and apply them.

        Raises:
            StoreError: The store does not answer.
        """
        if self._shared is None:
            self._replace(self._lasting())
            return
        self._begun += 1
        reading = self._begun
        rows = await within(self._shared.read(ROLLUP, 0, 0), deadline_s)
        if rows:
            self._ahead_us = await within(self._shared.time(), deadline_s) - self._engine.now_us()
        if reading > self._applied:  # else a read that started later has already returned
            self._applied = reading
            found = filter(None, (_unpacked(value) for _, _, value in rows))
            self._replace({one.name: one for one in found})

    def start(self) -> None:
        """Start polling, in the first event loop that called this: loops of other threads may be short-lived."""
        if self._home is not None and self._home.is_closed():
            self._home = self._loop = None
        if self._home is None and on_asyncio():
            self._home = asyncio.get_running_loop()
        if self._shared is None and not self.known:
            return
        if self._home is not None and self._loop is not self._home:
            self._loop = self._home
            self._home.call_soon_threadsafe(self._start_poll, self._home)
        elif self._loop is None and on_loop():
            trio = sys.modules["trio"].lowlevel
            self._loop = trio.current_trio_token()
            trio.spawn_system_task(self._poll_under_trio, self._loop)
        if self._loop is not None and self.end not in self._engine.ending:
            self._engine.ending.append(self.end)

    async def end(self) -> None:
        """Stop polling, before the application ends."""
        self._home = self._loop = None

    # ------------------------------------------------------------------------------------------------------------------

    def _start_poll(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is loop:
            self._task = loop.create_task(self._poll_and_reschedule(loop))

    async def _poll_and_reschedule(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            await self._poll(loop)
        finally:
            if self._loop is loop and not loop.is_closed():
                loop.call_later(INTERVAL_S, self._start_poll, loop)

    async def _poll_under_trio(self, token: object) -> None:
        """Poll until the trio run, which cancels this task, or the limiter ends."""
        try:
            while self._loop is token:
                await self._poll(token)
                await anyio.sleep(INTERVAL_S)
        finally:
            if self._loop is token:
                self._loop = None

    async def _poll(self, loop: object) -> None:
        """Refresh the overrides; without `SharedStats`, stop polling when none is left."""
        try:
            await self.refresh(DEADLINE_S)
        except Exception as error:
            self._replace(self._lasting())
            if not isinstance(error, StoreError) and self._throttle.left_out(None, monotonic()) is not None:
                logger.exception("changed limits cannot be read")
        finally:
            if self._shared is None and not self.known and self._loop is loop:
                self._loop = None

    def _lasting(self) -> ByName:
        """Return the known overrides that have not ended, according to the clock of this process."""
        now_us = self._engine.now_us() + self._ahead_us
        return {name: one for name, one in self.known.items() if one.until_us > now_us}

    async def _write(self, override: Override, kept_us: int) -> None:
        shared, name = self._shared, override.name
        if shared is None:
            others = {other: one for other, one in self.known.items() if other != name}
            self._replace({**others, name: override} if kept_us else others)
            return
        row = StatsRow(ROLLUP, 0, json.dumps(asdict(override)).encode(), kept_us)
        worker = blake2b(name.encode(), digest_size=8).digest()
        await self._engine.command(lambda: shared.write(worker, [row]))
        await self.refresh()

    def _callers(self, *more: object) -> list[Changing]:
        return [caller for caller in (*self._engine.callers.listed(), *more) if isinstance(caller, Changing)]

    def _named(self) -> dict[str, list[NamedLimit]]:
        """Return the limits of all callers by name; fixed limits only if no other limit has that name."""
        found: dict[str, list[NamedLimit]] = {}
        for caller in self._callers():
            for one in caller.named_limits():
                found.setdefault(one.name, []).append(one)
        return {name: [one for one in limits if not one.fixed] or limits for name, limits in found.items()}

    def _check(self, name: str, limit: str) -> None:
        """Validate a change, as far as this process knows the limits: one without rules accepts every name."""
        check_name(name, "limit name")
        if name.startswith(TOOLS):
            raise ConfigurationError(f"limit {name!r}: the limits of operators' tools cannot be changed")
        _check_text(limit)
        limits = self._named()
        for one in limits.get(name, ()):
            one.amount_in(limit)
        if limits and name not in limits:
            free = {other for other, those in limits.items() if not those[0].fixed}
            raise ConfigurationError(
                f"limit {name!r}: no rule has a limit of this name, as response headers show it{closest(name, free)}"
            )

    def _replace(self, found: ByName | None, *joined: Changing) -> None:
        """Replace the overrides in this process, apply those that the limits in code allow, and report changes.

        Args:
            found: The overrides; None to keep them.
            joined: Callers that have none yet.
        """
        with self._lock:
            known, before = self.known, self._in_effect
            self.known = found = known if found is None else found
            if found == known and not joined:
                return
            limits = self._named() if found or known else {}
            after = {name: one for name, one in found.items() if _obstacle(limits.get(name, ()), one) is None}
            self._in_effect = after
            for caller in self._callers(*self._engine.callers.replaced, *joined):
                _set_amounts(caller.named_limits(), after)
        names = [name for name in {**known, **found} if known.get(name) != found.get(name)]
        names += [name for name in found if name not in names and (name in before) is not (name in after)]
        if names:
            self._engine.queues.wake()
        for name in names if limits else ():
            self._report(limits, known.get(name), found.get(name), before, after)

    def _report(
        self, limits: NamedLimits, gone: Override | None, new: Override | None, before: ByName, after: ByName
    ) -> None:
        """Report a changed override of one limit: by an event, or by a warning if it does not apply."""
        latest = new or gone
        assert latest is not None, "a change has an override before or after it"
        name = latest.name
        own = limits.get(name, ())
        if new is not None and not own:
            logger.warning("no rule of this worker has a limit %r yet%s", name, closest(name, limits))
        elif new is not None and (obstacle := _obstacle(own, new)) is not None:
            logger.warning("an override was not applied: %s", obstacle)
        elif own:
            was, amount = own[0].amount_under(before), own[0].amount_under(after)
            kind, how = "limit_restored", "again"
            if new is not None:
                kind, how = "limit_overridden", f"until {new.until:%Y-%m-%dT%H:%M:%SZ}"
            details = {"limit": name, "amount": amount, "was": was, "by": latest.by, "reason": latest.reason}
            message = f"limit {name!r} is {amount} {how}, and was {was}; changed by {latest.by}: {latest.reason}"
            self._engine.emit(Event(kind, message, {**details, "until": latest.until}))


def _set_amounts(limits: Iterable[NamedLimit], overrides: ByName) -> None:
    """Let limits count by the overrides, or as configured in code."""
    for one in limits:
        amount = one.amount_under(overrides)
        if one.owned is not None and one.owned.amount != amount:
            one.owned.become(amount)


def _obstacle(limits: Iterable[NamedLimit], override: Override) -> ConfigurationError | None:
    """Return why an override does not apply to the limits of its name; None if all of them take it."""
    try:
        for one in limits:
            one.amount_in(override.limit)
    except ConfigurationError as error:
        return error
    return None


def _read_as(limit: AnyLimit, text: str) -> AnyLimit | None:
    """Parse a text as a limit of the same kind and window as `limit`; None if it is another."""
    if isinstance(limit, Quota):
        quota = _quota(text)
        return quota if quota is not None and quota.unit == limit.unit else None
    if isinstance(limit, Concurrency):
        return Concurrency(text) if text.strip().isdigit() else None
    try:
        (other,) = parse_limits(text)
    except (ConfigurationError, ValueError):
        return None
    same = isinstance(limit, Limit) and other.window_us == limit.window_us
    return other if same and (other.resolution == limit.resolution or "@" not in text) else None


def _written(limit: AnyLimit, amount: int) -> str:
    """Return the text of a limit with another amount."""
    if isinstance(limit, Limit):
        return str(limit.with_amount(amount))
    return f"{amount}/{limit.unit}" if isinstance(limit, Quota) else str(amount)


def _quota(text: str) -> Quota | None:
    try:
        return Quota(text)
    except ConfigurationError:
        return None


def _check_text(text: object) -> None:
    """Check that a text is one limit of any kind."""
    if not isinstance(text, str):
        raise ConfigurationError(f'limit: expected text such as "50/minute", not {quoted(text)}')
    if text.strip().isdigit():
        Concurrency(text)
    elif _quota(text) is None and len(parse_limits(text)) != 1:
        raise ConfigurationError(f'limit: expected one, for example "50/minute", not {quoted(text)}')


def _unpacked(value: bytes) -> Override | None:
    """Return the override in a row; None if it cannot be parsed, for example one of a later version."""
    try:
        found = Override(**json.loads(value))
        _check_text(found.limit)
        texts, numbers = (found.name, found.by, found.reason), (found.made_us, found.length_us, found.until_us)
        is_whole = all(isinstance(number, int) and 0 <= number < _LATEST_US for number in numbers)
        return found if is_whole and all(isinstance(text, str) for text in texts) else None
    except (ValueError, TypeError, RecursionError, ConfigurationError):
        return None
