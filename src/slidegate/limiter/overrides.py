"""Limits by their names, and overrides: temporary changes of an amount, for all workers that share a store.

Overrides are rows of the store, see `rows`, and expire with these. Of kind ``limits`` there are three numbers::

    0    digest of a limit's name    JSON: an `Override`
    1    worker                      JSON: {"secret": "fingerprint#9f", "limits": {"api": "50/1m"}, "fixed": []}
    2    worker                      JSON: {"secret": "fingerprint#9f"}

A worker reads the rows twice a second while it has requests. Each time it sets the amounts of all its limits anew,
see `AnyLimit.become`: that of the override of that name, or that in code. Where an event loop runs, requests do not
wait for that. During an outage, the last known overrides stay in effect until their end. In a store without rows,
overrides apply to this process only. The name ``*`` with the limit ``off`` switches all workers off.

A worker writes its own rows every ten seconds, kept for thirty: its limits by name, as configured, and which cannot be
changed. The secret is a digest of a constant that is keyed with it: it shows only whether two secrets are the same.
It has a row of its own as well: each worker compares it with those of all others whenever it writes, beside requests;
the limits of all workers are read for operators alone, and in steps.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ..core.arguments import check_name
from ..core.buckets import Bucket
from ..core.concurrency import Concurrency
from ..core.errors import ConfigurationError, StoreError, closest, quoted
from ..core.events import Event
from ..core.limit_texts import parse_limits
from ..core.limits import AnyLimit, Limit
from ..core.logs import Throttle, logger
from ..core.quotas import Quota
from ..core.store import COMMAND_DEADLINE_S, SharedRow
from ..stores.forks import ProcessLock
from ..stores.shared import running_loop
from .aio import in_background, let_others_run, yielding_to_others
from .rows import Row

if TYPE_CHECKING:
    from .engine import Engine

ALL: Final = "*"
"""The name that stands for all limits, of all workers."""
OFF: Final = "off"
CHANGED_LIMITS: Final = "limits"
"""The kind of rows of limits that operators have changed."""
INTERVAL_US: Final = 500_000
_LONGEST_UPDATE_US: Final = 5_000_000
_UPDATE_DEADLINE_S: Final = 1.0
_PARTS: Final = 5
"""Which part of the deadline of a question its thread gives to an update, which comes before it."""
_LOG_EVERY_S: Final = 600.0
WORKER: Final = 1
"""The number of the rows of workers."""
SECRET: Final = 2
"""The number of the rows with their secrets alone."""
_MAX_NAME: Final = 128
"""A name of response headers has what follows a rule's name of 64 characters: its window, or a number."""
_WRITE_EVERY_S: Final = 10.0
_KEPT_US: Final = 30_000_000
_LISTED: Final = 10
"""How many names an error lists."""
_MAX_LIMITS: Final = 4_000
"""The most limits in a worker's row; 100 bytes each are well below the largest row."""
_PARSED_AT_ONCE: Final = 50
"""How many limits of others are parsed in one step, at 10 to 50 us each."""
_LENGTHS: Final = {"/day": "/1d", "/week": "/7d"}
"""The windows of limits that users write like the units of quotas."""
Changes: TypeAlias = dict[str, tuple[int, int, "Override | None"]]
"""The amounts of limits before and after a change, and the override that sets the latter, by name."""


@dataclass(eq=False, slots=True)
class NamedLimit:
    """A limit that this process counts with.

    Attributes:
        name: Its name in response headers.
        limit: The limit in force, as an operator has changed it; ``str(limit)`` is ``100/1m``.
        configured: The limit as configured in code.
        rule: The label of its rule.
        changeable: Whether `Limiter.override` can change it; not if a function returns it.
        shadow: Whether its rule reports and never refuses.
    """

    name: str
    limit: AnyLimit
    configured: AnyLimit
    rule: str = ""
    changeable: bool = True
    shadow: bool = False

    def amount_in(self, text: str) -> int:
        """Return the amount that a text sets for it.

        Raises:
            ConfigurationError: A function returns this limit, or the text is of another kind or window.
        """
        if not self.changeable:
            raise ConfigurationError(
                f"limit {self.name!r}: a function returns the limits of its rule for each request; change them there"
            )
        amount, window = _terms_of(text)
        own = _window_of(self.configured)
        if window != own and ("@" in text or _LENGTHS.get(window, window) != own.partition(" @")[0]):
            raise ConfigurationError(
                f"limit {self.name!r}: in the code it is {written(self.configured)!r}, and its amount alone can "
                f"change; write for example '{max(self.configured.amount // 2, 1)}{own}', not {quoted(text)}"
            )
        return amount

    def takes(self, text: str) -> bool:
        """Return whether an override of its name with this text applies to it: it has the window of this limit."""
        with suppress(ConfigurationError):
            return self.amount_in(text) > 0
        return False

    def with_amount(self, amount: int | str) -> str:
        """Return the text of the configured limit with another amount, as `Limiter.override` takes it."""
        return f"{amount}{_window_of(self.configured)}"


def named(bucket: Bucket, *, changeable: bool = True) -> list[NamedLimit]:
    """Return the limits of a bucket by their names."""
    limits = zip(bucket.names, bucket.limits, bucket.configured, strict=True)
    return [NamedLimit(*one, bucket.label, changeable, bucket.shadow) for one in limits]


@dataclass(frozen=True, slots=True)
class Override:
    """A temporary change of a limit's amount.

    Attributes:
        name: The name of the limit in response headers; ``*`` if all workers are switched off.
        limit: The limit that replaces the one in code: ``"50/1m"``; ``"off"`` with the name ``*``.
        by: The person or program that changed it.
        reason: The reason, for operators.
        since_us: When it was changed, in microseconds of Unix time.
        until_us: When it ends, in microseconds of Unix time.
        workers: How many workers apply it, each within a second; one that has the name with another window does not.
    """

    name: str
    limit: str
    by: str
    reason: str
    since_us: int
    until_us: int
    workers: int = field(default=0, compare=False)

    @property
    def since(self) -> datetime:
        """When it was changed (UTC)."""
        return datetime.fromtimestamp(self.since_us / 1_000_000, UTC)

    @property
    def until(self) -> datetime:
        """When it ends (UTC)."""
        return datetime.fromtimestamp(self.until_us / 1_000_000, UTC)


_STORED: Final = ("name", "limit", "by", "reason", "since_us", "until_us")
"""The fields of an override that a row must have; the number of workers is counted anew."""


class Worker(NamedTuple):
    """A worker that has used the store within the last 30 seconds."""

    limits: dict[str, str]
    """Its limits as configured in code, by their names in response headers: ``{"api": "50/1m"}``."""
    fixed: list[str]
    """The names of those that cannot be changed, because functions return them."""
    same_secret: bool
    """Whether its digests of API keys and similar values are those of this limiter."""

    def named(self, name: str) -> NamedLimit:
        """Return its limit of a name that it has."""
        limit = parse_one(self.limits[name])
        return NamedLimit(name, limit, limit, changeable=name not in self.fixed)

    def takes(self, override: Override) -> bool:
        """Return whether an override applies to it; it may have the name with another window."""
        name = override.name
        return name == ALL or (name in self.limits and self.named(name).takes(override.limit))


class Overrides:
    """The overrides of one limiter.

    Args:
        engine: Queries the store, and knows the limits of this process.

    Attributes:
        in_force: The overrides in this process, by limit name, those included that no limit here takes.
        due_s: When the rows of this worker are written next; 0 for the next update, because its limits have changed.
    """

    def __init__(self, engine: Engine) -> None:
        self.in_force: dict[str, Override] = {}
        self.due_s = 0.0
        self._engine = engine
        self._rows = engine.rows
        self._next_us = self._begun = self._applied = 0
        self._lock = ProcessLock()
        self._written_by = b""
        self._updating: asyncio.Future[Any] | None = None
        self._throttle = Throttle(_LOG_EVERY_S)

    def register(self, limits: Iterable[NamedLimit]) -> None:
        """Apply the overrides in effect to limits with which this process counts from now on."""
        self.due_s = 0.0
        with self._lock:
            self._apply(limits)

    # -- commands ------------------------------------------------------------------------------------------------------

    async def set(self, name: str, limit: str, length_us: int, reason: str, by: str) -> Override:
        """Change a limit for all workers; for this one immediately.

        Raises:
            ConfigurationError: No worker has such a limit, or it cannot be changed to this; nothing is written.
            StoreError: The store does not answer.
        """
        text = _checked(name, limit)
        workers = await self._workers()
        having = workers if name == ALL else [one for one in workers if name in one.limits]
        if workers and not having:
            raise unknown(name, (other for one in workers for other in one.limits if other not in one.fixed))
        for worker in having if name != ALL else ():
            worker.named(name).amount_in(limit)
        now_us = self._engine.unix_us()
        made = Override(name, text, by, reason, now_us, now_us + length_us)
        await self._write(made, length_us)
        return replace(made, workers=len(having))

    async def unset(self, name: str) -> bool:
        """End the override of a limit; False if it has none."""
        if name != ALL:
            check_name(name, "limit name", _MAX_NAME)
        await self.refresh()
        if name not in self.in_force:
            return False
        await self._write(self.in_force[name], 0)
        return True

    async def listed(self) -> list[Override]:
        """Return the overrides in the store, each with the number of workers that apply it.

        Raises:
            StoreError: The store does not answer.
        """
        await self.refresh()
        found = sorted(self.in_force.values(), key=lambda override: override.name)
        workers = await self._workers() if found else []
        counted = []
        for override in found:
            counted.append(replace(override, workers=sum(worker.takes(override) for worker in workers)))
            await let_others_run()
        return counted

    async def refresh(self, deadline_s: float = COMMAND_DEADLINE_S) -> None:
        """Read the overrides from the store, and apply them.

        Raises:
            StoreError: The store does not answer.
        """
        with self._lock:
            self._begun = reading = self._begun + 1
        rows = await self._rows.read(CHANGED_LIMITS, 0, 0, deadline_s)
        found: list[Override] = []
        for row in rows:
            with _left_out_if_unreadable():
                found.append(_override_in(row.value))
        self._take(reading, found)

    def forget(self) -> None:
        """End all overrides in this process. For tests."""
        self._take(self._applied, ())

    async def others(self, deadline_s: float = COMMAND_DEADLINE_S) -> list[Worker]:
        """Return the other workers; those whose rows cannot be read are left out.

        With a hundred limits each this takes a millisecond a worker, so that other tasks run after each.

        Raises:
            StoreError: The store does not answer.
        """
        others: list[Worker] = []
        for row in await self._rows_of_others(WORKER, deadline_s):
            with _left_out_if_unreadable():
                others.append(await _worker_in(row.value, self._engine.keys.fingerprint))
            await let_others_run()
        return others

    # -- updating -----------------------------------------------------------------------------------------------------

    @property
    def is_off(self) -> bool:
        """Whether all workers are switched off."""
        return ALL in self.in_force

    @property
    def may_change(self) -> bool:
        """Whether there is anything to refresh."""
        return self._rows.is_shared or bool(self.in_force)

    def refresh_if_due(self) -> None:
        """Update, unless that was done in the last half second. Every question calls this if overrides may change."""
        now_us = self._engine.now_us()
        if now_us < self._next_us or not self._engine.counting:
            return
        self._next_us = now_us + _LONGEST_UPDATE_US  # nobody else updates meanwhile
        if self._rows.is_shared and running_loop() is not None:
            self._updating = in_background(self.update())
        elif not self._rows.is_shared or self._engine.store.answers_threads:
            next(self._update_in_thread().__await__(), None)  # never suspends: such a store answers at once

    async def _update_in_thread(self) -> None:
        """Update for a question whose thread waits: within its deadline, and not while the store is known to fail."""
        failover = self._engine.failover
        if failover is None:
            await self.update()
        elif failover.breaker.open_until_us:
            self._next_us = self._engine.now_us() + INTERVAL_US
        else:
            await self.update(min(failover.deadline_us / 1_000_000 / _PARTS, _UPDATE_DEADLINE_S))

    async def update(self, deadline_s: float = _UPDATE_DEADLINE_S) -> None:
        """Refresh the overrides, and keep the row of this worker."""
        try:
            await self.refresh(deadline_s)
            await self._keep_own_row(deadline_s)
        except Exception as error:
            now_us = self._engine.unix_us()
            self._take(self._applied, (one for one in self.in_force.values() if one.until_us > now_us))
            if not isinstance(error, StoreError) and self._throttle.left_out(None, monotonic()) is not None:
                logger.exception("changed limits cannot be read")
        finally:
            self._next_us = self._engine.now_us() + INTERVAL_US

    # ------------------------------------------------------------------------------------------------------------------

    def _take(self, reading: int, found: Iterable[Override]) -> None:
        """Replace the overrides in this process by those found, and report the amounts that change.

        Args:
            reading: The number of the read that found them; if a read that started later has returned before, they are
                outdated, and nothing is done.
            found: The overrides.
        """
        with self._lock:  # until the amounts are set: threads may read at the same time
            if reading < self._applied:
                return
            self._applied = reading
            before, self.in_force = self.in_force, {one.name: one for one in found}
            if not before and not self.in_force:
                return
            changes = self._apply(self._engine.limits())
            if (ALL in before) is not self.is_off:
                changes[ALL] = 0, 0, self.in_force.get(ALL)
                self._engine.restart_middlewares()
            self._engine.rebuild()
        if changes:
            self._engine.queues.wake()
        for name, (was, amount, applied) in changes.items():
            if override := applied or before.get(name) or self.in_force.get(name):
                self._engine.emit(_event_of(name, was, amount, override, ended=applied is None))

    def _apply(self, limits: Iterable[NamedLimit]) -> Changes:
        """Set the amounts of limits, and return what has changed. An override applies to limits of its window alone."""
        changes: Changes = {}
        for one in limits:
            override = self.in_force.get(one.name)
            if override is not None and not one.takes(override.limit):
                override = None
            amount = one.configured.amount if override is None else one.amount_in(override.limit)
            if amount != one.limit.amount:
                changes[one.name] = one.limit.amount, amount, override
                one.limit.become(amount)
        if changes:  # middlewares read the amounts anew
            self._engine.restart_middlewares()
        return changes

    async def _write(self, override: Override, kept_us: int) -> None:
        digest = blake2b(override.name.encode(), digest_size=8).digest()
        await self._rows.write(digest, SharedRow(CHANGED_LIMITS, 0, json.dumps(asdict(override)).encode(), kept_us))
        await self.refresh()

    async def _workers(self) -> list[Worker]:
        """Return all workers, this process included if it is one."""
        is_worker = bool(self._engine.callers())
        return [_worker_of(self._engine.limits())] * is_worker + await self.others()

    async def _keep_own_row(self, deadline_s: float) -> None:
        """Write the rows of this worker every ten seconds, and report if other workers have another secret.

        Args:
            deadline_s: The deadline of each step.

        Raises:
            StoreError: The store does not answer.
        """
        worker = self._rows.worker  # another one in a child of `fork`
        if not self._rows.is_shared or (monotonic() < self.due_s and self._written_by == worker):
            return
        self.due_s, self._written_by = monotonic() + _WRITE_EVERY_S, worker
        own, fingerprint = _worker_of(self._engine.limits()), self._engine.keys.fingerprint
        row = {"secret": fingerprint, "limits": own.limits, "fixed": own.fixed}
        for number, said in ((WORKER, row), (SECRET, {"secret": fingerprint})):
            kept = SharedRow(CHANGED_LIMITS, number, json.dumps(said).encode(), _KEPT_US)
            await self._rows.write(worker, kept, deadline_s)
        others: list[str] = []
        async for other in yielding_to_others(await self._rows_of_others(SECRET, deadline_s)):
            with _left_out_if_unreadable():
                others.append(json.loads(other.value)["secret"])
        differing = sum(secret != fingerprint for secret in others)
        if differing and self._throttle.left_out("secret_differs", monotonic()) is not None:
            message = (
                f"{differing} of {len(others)} other workers on this store have another secret, so their digests of "
                "API keys and similar values differ; set the same SLIDEGATE_SECRET, or secret=, for all"
            )
            self._engine.emit(Event("secret_differs", message, {"workers": differing}))

    async def _rows_of_others(self, number: int, deadline_s: float) -> list[Row]:
        rows = await self._rows.read(CHANGED_LIMITS, number, number, deadline_s)
        return [row for row in rows if row.worker != self._rows.worker]

    async def end(self) -> None:
        """Delete the rows of this worker, if it has written them; if the store does not answer, they expire."""
        if self._updating is not None and self._updating.get_loop() is running_loop():  # it may write the row once more
            await asyncio.wait([self._updating], timeout=_UPDATE_DEADLINE_S)
        worker, self._written_by = self._written_by, b""
        if worker == self._rows.worker:
            with suppress(StoreError):
                for number in (WORKER, SECRET):
                    await self._rows.write(worker, SharedRow(CHANGED_LIMITS, number, b"", 0), _UPDATE_DEADLINE_S)


def _checked(name: str, limit: str) -> str:
    """Return the text of a change in its canonical form.

    Raises:
        ConfigurationError: It is wrong, as far as that shows without the limits in code.
    """
    if name == ALL:
        if limit != OFF:
            raise ConfigurationError(f'limit "*": it stands for all limits and can only be "off", not {quoted(limit)}')
        return OFF
    check_name(name, "limit name", _MAX_NAME)
    return written(parse_one(limit))


def _left_out_if_unreadable() -> AbstractContextManager[None]:
    """Leave out a row that cannot be read, because a limit is of a kind that this version does not know."""
    return suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError, ConfigurationError)


def _override_in(value: bytes) -> Override:
    """Return the override of a row; a later version may have written further fields, which stay in the row."""
    row = json.loads(value)
    found = Override(**{name: row[name] for name in _STORED})
    _checked(found.name, found.limit)
    return found


async def _worker_in(value: bytes, fingerprint: str) -> Worker:
    """Return the worker of a row; its limits are parsed in steps."""
    row = json.loads(value)
    async for text in yielding_to_others(row["limits"].values(), _PARSED_AT_ONCE):
        parse_one(text)
    return Worker(row["limits"], row["fixed"], row["secret"] == fingerprint)


def _worker_of(limits: Iterable[NamedLimit]) -> Worker:
    """Return what this process says of its limits; of equal names, of one that can be changed."""
    known = {one.name: one for one in sorted(limits, key=lambda one: one.changeable)}
    named = list(known.values())[:_MAX_LIMITS]
    fixed = [one.name for one in named if not one.changeable]
    return Worker({one.name: written(one.configured) for one in named}, fixed, same_secret=True)


def _event_of(name: str, was: int, amount: int, override: Override, *, ended: bool) -> Event:
    """Return the event of a limit whose amount has changed with an override, or with its end."""
    author = f"; changed by {override.by}" if override.by else ""
    author += f": {override.reason}" if override.reason else ""
    how = "again" if ended else f"until {override.until:%Y-%m-%dT%H:%M:%SZ}"
    details = {"by": override.by, "reason": override.reason, "until": override.until}
    if name == ALL and ended:
        return Event("switched_on", "slidegate is on again", details)
    if name == ALL:
        return Event("switched_off", f"slidegate is off {how}: every request passes{author}", details)
    message = f"limit {name!r} is {amount} {how}, and was {was}{author}"
    details |= {"limit": name, "amount": amount, "was": was}
    return Event("limit_restored" if ended else "limit_overridden", message, details)


# -- limits as text ---------------------------------------------------------------------------------------------------


def parse_one(text: object) -> AnyLimit:
    """Return the limit of any kind that a text describes: ``50/1m``, ``100/month``, ``4``.

    Raises:
        ConfigurationError: It is no such text.
    """
    if not isinstance(text, str):
        raise ConfigurationError(f'limit: expected text such as "50/minute", not {quoted(text)}')
    if text.strip().isdigit():
        return Concurrency(text)
    with suppress(ConfigurationError):
        return Quota(text)
    limits = parse_limits(text)
    if len(limits) != 1:
        raise ConfigurationError(f'limit: expected one, for example "50/minute", not {quoted(text)}')
    return limits[0]


@lru_cache(_MAX_LIMITS)
def _terms_of(text: str) -> tuple[int, str]:
    """Return the amount of a limit and what follows it, see `_window_of`; a change is compared with each limit."""
    limit = parse_one(text)
    return limit.amount, _window_of(limit)


def written(limit: AnyLimit) -> str:
    """Return the text of a limit as `parse_one` reads it."""
    return f"{limit.amount}{_window_of(limit)}"


def _window_of(limit: AnyLimit) -> str:
    """Return what follows the amount in the text of a limit: ``/1m``, ``/1m @5``, ``/month``; for permits nothing."""
    if isinstance(limit, Limit):
        return str(limit).rpartition(": ")[2].lstrip("0123456789")
    return f"/{limit.unit}" if isinstance(limit, Quota) else ""


def unknown(name: str, names: Iterable[str]) -> ConfigurationError:
    """Return the error for a name that no limit has; `names` are those that limits have."""
    free = sorted(set(names))
    hint = closest(name, free)
    if not hint and free:
        hint = f"; there are {', '.join(map(repr, free[:_LISTED]))}{', ...' if len(free) > _LISTED else ''}"
    return ConfigurationError(
        f"limit {name!r}: no rule has a limit of this name, as response headers show it{hint or '; there are none'}"
    )
