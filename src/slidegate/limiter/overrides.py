"""Limits that are changed while the application runs: another amount for a while, for all workers of a store.

An override lies among the rows of the store's `SharedStats`, and goes by itself when its time is over::

    limits    0    digest of the limit's name    JSON: the limit, its end in the store's time, who changed it and why

Every worker looks at these rows twice a second, by a timer of asyncio or a task of trio, and tells those who ask the
limiter; they replace the `LimitSet` of a limit and never alter one. Nothing of it is on the way of a request. While the
store does not answer, what was known last holds until its end. A store that keeps no such rows has them in this process
alone.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, runtime_checkable

import anyio

from ..core.concurrency import Concurrency
from ..core.errors import ConfigurationError, StoreError, closest, quoted
from ..core.limits import MAX_AMOUNT, AnyLimit, Limit, check_name, parse_limits
from ..core.logs import Throttle, logger
from ..core.quotas import Quota
from ..core.store import CHANGED_LIMITS, Event, StatsRow
from ..stores.forks import begin_anew_in_child, hold_over_fork
from ..stores.memory.store import MemoryStore
from ..stores.system_clock import system_us
from .aio import COMMAND_DEADLINE_S, on_asyncio, on_loop, within

if TYPE_CHECKING:
    from .engine import Engine

INTERVAL_S: Final = 0.5
DEADLINE_S: Final = 1.0
ROLLUP: Final = CHANGED_LIMITS
MOST: Final = 10
"""How many times the amount in the code an override may be."""
TOOLS: Final = "slidegate-"
"""What the names of the tools' own limits begin with."""
_LOG_EVERY_S: Final = 600.0
_LATEST_US: Final = 2**52
"""Some hundred years from now, and a moment that `datetime` can hold twice over."""


@dataclass(frozen=True, slots=True)
class Override:
    """Another amount of a limit for a while.

    Attributes:
        name: The name of the limit on the wire.
        limit: What holds instead of the limit in the code: ``"50/minute"``.
        by: The person or program that has changed it.
        reason: Why, for operators.
        made_us: When, in microseconds of Unix time.
        length_us: How long it holds.
        until_us: When it ends, in the store's time.
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


class NamedLimit(NamedTuple):
    """A limit as the code says it, by its name on the wire."""

    name: str
    limit: AnyLimit
    cost: int = 1
    """The most units that one request is known to cost."""
    fixed: str = ""
    """Why its amount cannot be changed; empty if it can."""

    def amount_in(self, text: str) -> int:
        """Return the amount that a text gives this limit.

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

    def amount_under(self, overrides: Mapping[str, Override]) -> int:
        """Return the amount that holds; that of the code where no override can be taken."""
        override = overrides.get(self.name)
        if override is None:
            return self.limit.amount
        try:
            return self.amount_in(override.limit)
        except ConfigurationError:
            return self.limit.amount


@runtime_checkable
class Changing(Protocol):
    """A caller of the limiter whose limits can be changed: a middleware."""

    def named_limits(self) -> Iterable[NamedLimit]:
        """Return its limits as the code says them."""

    def override(self, overrides: Mapping[str, Override]) -> None:
        """Count by these overrides, by the names of limits, and by the code where there is none."""

    def begin_anew(self) -> None:
        """Call `Overrides.start` with the next request, in a child of `fork`."""


class Overrides:
    """The overrides of one limiter.

    Args:
        engine: Asks the store.

    Attributes:
        known: Those that hold in this process, by the names of limits.
    """

    def __init__(self, engine: Engine) -> None:
        self.known: Mapping[str, Override] = {}
        self._taken: Mapping[str, Override] = {}
        self._engine = engine
        store = engine.store
        self._shared = store.shared_stats
        self._unix_us = store.unix_us if isinstance(store, MemoryStore) else system_us
        self._ahead_us = 0
        self._begun = self._heard = 0
        self._home: asyncio.AbstractEventLoop | None = None
        self._loop: asyncio.AbstractEventLoop | object | None = None  # of trio, the token of its run
        self._task: asyncio.Task[None] | None = None
        self._throttle = Throttle(_LOG_EVERY_S)
        self._lock = Lock()
        hold_over_fork(self._lock)
        begin_anew_in_child(self.begin_anew)
        engine.forgetting.append(self.forget)

    def begin_anew(self) -> None:
        """Look at the store again with the next request, in a child of `fork`."""
        self._home = self._loop = self._task = None
        for caller in self._callers():
            caller.begin_anew()

    def apply(self, caller: Changing) -> None:
        """Have a caller, which is listed already, count by the overrides that hold, whatever comes meanwhile."""
        with self._lock:
            caller.override(self._taken)

    def forget(self) -> None:
        """Have every limit be as in the code. For tests."""
        self._take({})

    async def set(self, name: str, limit: str, length_us: int, reason: str, by: str) -> Override:
        """Change a limit for all workers, and for this one at once.

        Raises:
            ConfigurationError: There is no such limit, or it cannot be changed to this.
            StoreError: The store does not answer.
        """
        self._check(name, limit)
        if self._shared is None and not on_loop():
            raise ConfigurationError(
                "override: in a store of one process a timer of an event loop ends it, and none runs here; write "
                "`await limiter.override(...)` in the application"
            )
        now_us = await self._now_us()
        made = Override(name, limit.strip(), by, reason, self._unix_us(), length_us, now_us + length_us)
        await self._write(made, length_us)
        self.start()
        return made

    async def unset(self, name: str) -> bool:
        """Have a limit be as in the code again; False if it is."""
        await self.refresh()
        if name not in self.known:
            return False
        await self._write(self.known[name], 0)
        return True

    async def refresh(self, deadline_s: float = COMMAND_DEADLINE_S) -> None:
        """Take over what the store says now.

        Raises:
            StoreError: The store does not answer.
        """
        if self._shared is None:
            self._take(self._lasting())
            return
        self._begun += 1
        reading = self._begun
        rows = await within(self._shared.read(ROLLUP, 0, 0), deadline_s)
        if rows:
            self._ahead_us = await within(self._shared.time(), deadline_s) - self._engine.now_us()
        if reading > self._heard:  # else one that began later knows better
            self._heard = reading
            found = filter(None, (_unpacked(value) for _, _, value in rows))
            self._take({one.name: one for one in found})

    def start(self) -> None:
        """Look at the store from now on, in the event loop that was here first: a thread may have one for a moment."""
        if self._home is not None and self._home.is_closed():
            self._home = self._loop = None
        if self._home is None and on_asyncio():
            self._home = asyncio.get_running_loop()
        if self._shared is None and not self.known:
            return
        if self._home is not None and self._loop is not self._home:
            self._loop = self._home
            self._home.call_soon_threadsafe(self._next, self._home)
        elif self._loop is None and on_loop():
            trio = sys.modules["trio"].lowlevel
            self._loop = trio.current_trio_token()
            trio.spawn_system_task(self._look_under_trio, self._loop)
        if self._loop is not None and self.end not in self._engine.ending:
            self._engine.ending.append(self.end)

    async def end(self) -> None:
        """Look no more, before the application ends."""
        self._home = self._loop = None

    # ------------------------------------------------------------------------------------------------------------------

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is loop:
            self._task = loop.create_task(self._look_and_go_on(loop))

    async def _look_and_go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            await self._look(loop)
        finally:
            if self._loop is loop and not loop.is_closed():
                loop.call_later(INTERVAL_S, self._next, loop)

    async def _look_under_trio(self, token: object) -> None:
        """Look until the run of trio ends, which cancels this, or the limiter does."""
        try:
            while self._loop is token:
                await self._look(token)
                await anyio.sleep(INTERVAL_S)
        finally:
            if self._loop is token:
                self._loop = None

    async def _look(self, loop: object) -> None:
        """Take over what the store says; a store of one process is looked at no more when it holds nothing."""
        try:
            await self.refresh(DEADLINE_S)
        except Exception as error:
            self._take(self._lasting())
            if not isinstance(error, StoreError) and self._throttle.left_out(None, monotonic()) is not None:
                logger.exception("changed limits cannot be read")
        finally:
            if self._shared is None and not self.known and self._loop is loop:
                self._loop = None

    def _lasting(self) -> Mapping[str, Override]:
        """Return those of the known ones that are not over by the clock of this process."""
        now_us = self._engine.now_us() + self._ahead_us
        return {name: one for name, one in self.known.items() if one.until_us > now_us}

    async def _now_us(self) -> int:
        if self._shared is None:
            return self._engine.now_us()
        return await self._engine.command(self._shared.time)

    async def _write(self, override: Override, kept_us: int) -> None:
        shared, name = self._shared, override.name
        if shared is None:
            others = {other: one for other, one in self.known.items() if other != name}
            self._take({**others, name: override} if kept_us else others)
            return
        row = StatsRow(ROLLUP, 0, json.dumps(asdict(override)).encode(), kept_us)
        worker = blake2b(name.encode(), digest_size=8).digest()
        await self._engine.command(lambda: shared.write(worker, [row]))
        await self.refresh()

    def _callers(self, *more: object) -> list[Changing]:
        return [caller for caller in (*self._engine.callers.listed(), *more) if isinstance(caller, Changing)]

    def _named(self) -> dict[str, list[NamedLimit]]:
        """Return the limits of all callers by name; those that cannot be changed only where no other has their name."""
        found: dict[str, list[NamedLimit]] = {}
        for caller in self._callers():
            for one in caller.named_limits():
                found.setdefault(one.name, []).append(one)
        return {name: [one for one in limits if not one.fixed] or limits for name, limits in found.items()}

    def _check(self, name: str, limit: str) -> None:
        """Check what can be known here: a process without rules takes every name."""
        check_name(name, "limit name")
        if name.startswith(TOOLS):
            raise ConfigurationError(f"limit {name!r}: the limits of operators' tools cannot be changed")
        _check_text(limit)
        limits = self._named()
        _amount(limits.get(name, ()), limit)
        if limits and name not in limits:
            free = {one for one, those in limits.items() if not those[0].fixed}
            raise ConfigurationError(
                f"limit {name!r}: no rule has a limit of this name, as response headers show it{closest(name, free)}"
            )

    def _take(self, found: Mapping[str, Override]) -> None:
        """Have these hold and no others, and tell of those that are new or gone."""
        with self._lock:
            before, self.known = self.known, found
            changed = [name for name in {**before, **found} if before.get(name) != found.get(name)]
            limits = self._named() if changed else {}
            if changed:
                self._taken = {name: one for name, one in found.items() if _takes(limits.get(name, ()), one)}
                for caller in self._callers(*self._engine.callers.replaced):
                    caller.override(self._taken)
        if changed:
            self._engine.queues.reset()
        for name in changed if limits else ():
            self._tell(name, limits, before.get(name), found.get(name))

    def _tell(
        self,
        name: str,
        limits: Mapping[str, Sequence[NamedLimit]],
        before: Override | None,
        after: Override | None,
    ) -> None:
        own = limits.get(name, ())
        if not own:
            if after is not None:
                logger.warning("no rule of this worker has a limit %r yet%s", name, closest(name, limits))
            return
        in_code = own[0].limit.amount
        try:
            amount = in_code if after is None else _amount(own, after.limit) or in_code
        except ConfigurationError as error:
            logger.warning("a changed limit is not taken: %s", error)
            return
        was = in_code if before is None or not _takes(own, before) else own[0].amount_in(before.limit)
        told = after or before
        assert told is not None, "one of them is there, or nothing has changed"
        kind, how = "limit_restored", "again"
        if after is not None:
            kind, how = "limit_overridden", f"until {after.until:%Y-%m-%dT%H:%M:%SZ}"
        details = {"limit": name, "amount": amount, "was": was, "by": told.by, "reason": told.reason}
        message = f"limit {name!r} is {amount} {how}, and was {was}; changed by {told.by}: {told.reason}"
        self._engine.emit(Event(kind, message, {**details, "until": told.until}))


def _amount(limits: Iterable[NamedLimit], text: str) -> int:
    """Return the amount that a text gives limits of one name, which all of them take or none; 0 if there are none.

    Raises:
        ConfigurationError: One of them cannot take it.
    """
    return min([one.amount_in(text) for one in limits], default=0)


def _takes(limits: Iterable[NamedLimit], override: Override) -> bool:
    try:
        _amount(limits, override.limit)
    except ConfigurationError:
        return False
    return True


def _read_as(limit: AnyLimit, text: str) -> AnyLimit | None:
    """Read a text as a limit of the kind of another; None if it is of another kind or window."""
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
    """Return how a limit with another amount is written."""
    if isinstance(limit, Limit):
        return str(limit.with_amount(amount))
    return f"{amount}/{limit.unit}" if isinstance(limit, Quota) else str(amount)


def _quota(text: str) -> Quota | None:
    try:
        return Quota(text)
    except ConfigurationError:
        return None


def _check_text(text: object) -> None:
    """Check that a text is one limit, of whatever kind."""
    if not isinstance(text, str):
        raise ConfigurationError(f'limit: expected text such as "50/minute", not {quoted(text)}')
    if text.strip().isdigit():
        Concurrency(text)
    elif _quota(text) is None and len(parse_limits(text)) != 1:
        raise ConfigurationError(f'limit: expected one, for example "50/minute", not {quoted(text)}')


def _unpacked(value: bytes) -> Override | None:
    """Return the override that a row holds; None if it cannot be read, as that of a later version."""
    try:
        found = Override(**json.loads(value))
        _check_text(found.limit)
        texts, numbers = (found.name, found.by, found.reason), (found.made_us, found.length_us, found.until_us)
        is_whole = all(isinstance(number, int) and 0 <= number < _LATEST_US for number in numbers)
        return found if is_whole and all(isinstance(text, str) for text in texts) else None
    except (ValueError, TypeError, RecursionError, ConfigurationError):
        return None
