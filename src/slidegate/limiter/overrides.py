"""Overrides: temporary changes of the amounts of limits, for all workers that share a store.

They are rows of the store, see `rows`, of the kind ``limits`` with the number 0, under a digest of the limit's name,
and expire with these. `news` reads them. Each time they have changed, a worker sets the amounts of its limits anew, see
`AnyLimit.become`: that of the override of that name, or that in code. The name ``*`` with the limit ``off`` switches
all workers off. In a store without rows, overrides apply to this process only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from ..core.bans.ban import clean_reason
from ..core.errors import ConfigurationError, quoted
from ..core.events import Event
from ..core.store import Clock
from ..stores.forks import ProcessLock
from .callers import Callers
from .named_limits import NamedLimit, check_limit_name, parse_one, text_of_limit
from .rows import check_moment

ALL: Final = "*"
"""The name that stands for all limits, of all workers."""
OFF: Final = "off"

_FIELDS: Final = ("name", "limit", "by", "reason", "since_us", "until_us")
"""The fields that a row must have; a later version may write more."""
_UNREADABLE: Final = (ValueError, TypeError, KeyError, AttributeError, RecursionError, ConfigurationError)


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
        was: The limit that applied before: that in code, or of an earlier override; ``"60/1m or 90/1m"`` if workers
            had different ones, empty if none had published its rules. If several limits have the name, as of rules in
            two middlewares, all of them change, and it names each: ``"60/1m of 'in:api' and 90/1m of 'out:api'"``.
    """

    name: str
    limit: str
    by: str
    reason: str
    since_us: int
    until_us: int
    workers: int = field(default=0, compare=False)
    was: str = field(default="", compare=False)

    @property
    def since(self) -> datetime:
        """When it was changed (UTC)."""
        return datetime.fromtimestamp(self.since_us / 1_000_000, UTC)

    @property
    def until(self) -> datetime:
        """When it ends (UTC)."""
        return datetime.fromtimestamp(self.until_us / 1_000_000, UTC)


def checked(name: str, limit: str) -> str:
    """Return the text of an override in its canonical form.

    Raises:
        ConfigurationError: It is wrong, as far as that shows without the limits in code.
    """
    if name == ALL:
        if limit != OFF:
            raise ConfigurationError(f'limit "*": it stands for all limits and can only be "off", not {quoted(limit)}')
        return OFF
    check_limit_name(name)
    if limit == OFF:
        raise ConfigurationError(
            f'limit {quoted(name)}: only "*", which stands for all limits, can be "off"; let more pass instead, for '
            'example "1000000/minute", with the window in code'
        )
    return text_of_limit(parse_one(limit))


def value_of(override: Override) -> bytes:
    """Return the value of its row."""
    said = asdict(override)
    del said["workers"]
    return json.dumps(said).encode()


def override_in(value: bytes) -> Override | None:
    """Return the override of a row; None if it is of a kind that this version does not know."""
    try:
        said = json.loads(value)
        found = Override(**{name: said[name] for name in _FIELDS}, was=str(said.get("was", "")))
        checked(found.name, found.limit)
        clean_reason(found.by, "by")
        clean_reason(found.reason)
        for moment_us in (found.since_us, found.until_us):
            check_moment(moment_us)
    except _UNREADABLE:
        return None
    return found


@dataclass(frozen=True, slots=True)
class _Change:
    """An amount that has changed, and the override that sets it; None if that in code applies again."""

    name: str
    was: int
    amount: int
    override: Override | None


_Changes: TypeAlias = dict[_Change, None]
"""Those of one bucket, which several callers may have, are one."""


class Overrides:
    """The overrides in force in this process.

    Args:
        callers: Have the limits of this process.
        unix_us: Returns Unix time in microseconds.
        changed: Called when the overrides in force have changed, if only in their reason.
        emit: Emits an event.

    Attributes:
        in_force: The overrides, by the name of the limit; those included that no limit here takes.
        version: How often amounts have changed, or all workers were switched off or on.
    """

    def __init__(
        self, callers: Callers, unix_us: Clock, changed: Callable[[], None], emit: Callable[[Event], None]
    ) -> None:
        self.in_force: dict[str, Override] = {}
        self.version = 0
        self._callers = callers
        self._unix_us = unix_us
        self._changed = changed
        self._emit = emit
        self._lock = ProcessLock()
        self._begun = self._applied = 0

    @property
    def is_off(self) -> bool:
        """Whether all workers are switched off."""
        return ALL in self.in_force

    def register(self, limits: Iterable[NamedLimit]) -> None:
        """Apply the overrides in force to limits with which this process counts from now on."""
        with self._lock:
            if self._apply(limits):
                self._callers.restart()

    def begin_reading(self) -> int:
        """Return the number of a read of the store that begins now."""
        with self._lock:
            self._begun += 1
            return self._begun

    def replace(self, reading: int, found: Collection[Override]) -> None:
        """Replace the overrides in force by those that a read has found, and report the amounts that change.

        Args:
            reading: The number of the read. If one that began later has returned before, this one is out of date, and
                nothing is done.
            found: The overrides.
        """
        with self._lock:  # until the amounts are set: threads may read at the same time
            if reading < self._applied:
                return
            self._applied = reading
            before, self.in_force = self.in_force, {one.name: one for one in found}
            if before == self.in_force:
                return
            changes = self._apply(self._callers.limits())
            if (ALL in before) is not self.is_off:
                changes[_Change(ALL, 0, 0, self.in_force.get(ALL))] = None
            self.version += bool(changes)
            self._changed()
        for change in changes:
            override = change.override or before.get(change.name) or self.in_force.get(change.name)
            if override is not None:
                self._emit(_event_of(change, override))

    def drop_ended(self) -> None:
        """End the overrides that are over: the store cannot say so during an outage."""
        now_us = self._unix_us()
        self.replace(self._applied, [one for one in self.in_force.values() if one.until_us > now_us])

    def forget(self) -> None:
        """End all overrides in this process. For tests."""
        self.replace(self._applied, ())

    def _apply(self, limits: Iterable[NamedLimit]) -> _Changes:
        """Set the amounts of limits, and return what has changed. An override applies to limits of its window alone."""
        changes: _Changes = {}
        for one in limits:
            override = self.in_force.get(one.name)
            if override is not None and not one.takes(override.limit):
                override = None
            amount = one.configured.amount if override is None else one.amount_in(override.limit)
            if amount != one.limit.amount:
                changes[_Change(one.name, one.limit.amount, amount, override)] = None
                one.limit.become(amount)
        return changes


def _event_of(change: _Change, override: Override) -> Event:
    """Return the event of a limit whose amount has changed.

    Args:
        change: The change.
        override: The override that sets the amount, or that has ended.
    """
    author = ""
    if override.by:
        author += f"; changed by {override.by}"
    if override.reason:
        author += f": {override.reason}"
    details: dict[str, Any] = {"by": override.by, "reason": override.reason, "until": override.until}
    has_ended = change.override is None
    until = f"until {override.until:%Y-%m-%dT%H:%M:%SZ}"
    if change.name == ALL:
        if has_ended:
            return Event("switched_on", "slidegate is on again", details)
        return Event("switched_off", f"slidegate is off {until}: every request passes{author}", details)
    details |= {"limit": change.name, "amount": change.amount, "was": change.was}
    amount = f"limit {change.name!r} is {change.amount}"
    if has_ended:
        return Event("limit_restored", f"{amount} again, and was {change.was}{author}", details)
    return Event("limit_overridden", f"{amount} {until}, and was {change.was}{author}", details)
