"""Overrides: temporary changes of the amounts of limits, for all workers that share a store.

They are rows of the store, see `rows`, of the kind ``limits`` with the number 0, under a digest of the limit's name,
and expire with these. `refresh` writes and reads them. Each time they have changed, a worker sets the amounts of its
limits, see `AnyLimit.become`: that of the override of that name, or that in code. The name ``*`` with the limit
``off`` switches all workers off. In a store without rows, overrides apply to this process only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias

from ..core.arguments import check_name
from ..core.bans.ban import clean_reason
from ..core.durations import moment
from ..core.errors import ConfigurationError, closest, quoted
from ..core.events import Event
from ..core.store import Clock
from ..core.stored import check_numbers, read_json
from ..stores.forks import ProcessLock
from .aio import yielding_to_others
from .callers import Callers
from .named_limits import NamedLimit, parse_one, text_of_limit
from .workers import Publication, PublishedRule

LIMITS: Final = "limits"
"""The kind of the rows with overrides."""
ALL: Final = "*"
"""The name that stands for all limits, of all workers."""
OFF: Final = "off"

_MAX_NAME: Final = 128
"""A name of header fields has what follows a rule's name of 64 characters: its window, or a number."""
_STEP: Final = 16
"""How many texts of workers are compared with a change in one step, at 100 us each."""


class Override(NamedTuple):
    """A temporary change of a limit's amount.

    Attributes:
        name: The name of the limit in response headers; ``*`` if all workers are switched off.
        limit: The limit that replaces the one in code: ``"50/1m"``; ``"off"`` with the name ``*``.
        by: The person or program that changed it.
        reason: The reason, for operators.
        since_us: When it was changed, in microseconds of Unix time.
        until_us: When it ends, in microseconds of Unix time.
        is_published: Whether a worker had published a limit of this name when it was changed. If not, none had used it.
    """

    name: str
    limit: str
    by: str
    reason: str
    since_us: int
    until_us: int
    is_published: bool = True

    @property
    def until(self) -> datetime:
        """When it ends (UTC)."""
        return moment(self.until_us)


def check_override(name: str, limit: str) -> str:
    """Return the text of an override in its canonical form.

    Raises:
        ConfigurationError: It is wrong, as far as that shows without the limits in code.
    """
    if name == ALL:
        if limit != OFF:
            raise ConfigurationError(f'limit "*": it stands for all limits and can only be "off", not {quoted(limit)}')
        return OFF
    check_name(name, "limit name", _MAX_NAME)
    if limit == OFF:
        raise ConfigurationError(
            f'limit {quoted(name)}: only "*", which stands for all limits, can be "off"; let more pass instead, for '
            'example "1000000/minute", with the window in code'
        )
    return text_of_limit(parse_one(limit))


def read_override(value: bytes) -> Override:
    """Return the override of a row, for `readable`: it may be of a kind that this version does not know."""
    override = read_json(Override, value)
    check_override(override.name, override.limit)
    clean_reason(override.by, "by")
    clean_reason(override.reason)
    check_numbers(override.since_us, override.until_us)
    return override


class _Change(NamedTuple):
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

    def replace(self, reading: int, overrides: Collection[Override]) -> None:
        """Replace the overrides in force by those that were read, and report the amounts that change.

        Args:
            reading: The number of the read. If one that began later has returned before, this one is out of date, and
                nothing is done.
        """
        with self._lock:  # until the amounts are set: threads may read at the same time
            if reading < self._applied:
                return
            self._applied = reading
            previous, self.in_force = self.in_force, {override.name: override for override in overrides}
            if previous == self.in_force:
                return
            changes = self._apply(self._callers.limits())
            if (ALL in previous) is not self.is_off:
                changes[_Change(ALL, 0, 0, self.in_force.get(ALL))] = None
            self.version += bool(changes)
            self._changed()
        for change in changes:
            override = change.override or previous.get(change.name)
            if override is not None:
                self._emit(_event_of(change, override))

    def drop_ended(self) -> None:
        """End the overrides that are over: the store cannot say so during an outage."""
        now_us = self._unix_us()
        self.replace(self._applied, [override for override in self.in_force.values() if override.until_us > now_us])

    def forget(self) -> None:
        """End all overrides in this process. For tests."""
        self.replace(self._applied, ())

    def _apply(self, limits: Iterable[NamedLimit]) -> _Changes:
        """Set the amounts of limits, and return what has changed. An override applies to limits of its window alone."""
        changes: _Changes = {}
        for limit in limits:
            override = self.in_force.get(limit.name)
            amount = limit.configured.amount
            if override is not None and limit.takes(override.limit):
                amount = limit.amount_in(override.limit)
            else:
                override = None
            if amount != limit.limit.amount:
                changes[_Change(limit.name, limit.limit.amount, amount, override)] = None
                limit.limit.become(amount)
        return changes


def _event_of(change: _Change, override: Override) -> Event:
    """Return the event of a limit whose amount has changed.

    Args:
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


async def published_as(publications: Iterable[Publication], name: str, field: str) -> list[list[PublishedRule]]:
    """Return the limits of a name as workers have published them, a list for each text that has some.

    Args:
        field: What has the name: ``name`` as response headers show it, or the label of the ``rule``.

    Raises:
        ConfigurationError: No worker has it, and the name is nearly one that they have.
    """
    found: list[list[PublishedRule]] = []
    names: set[str] = set()
    async for publication in yielding_to_others(publications, _STEP):
        rules = [rule for rule in publication.rules if rule.limit]
        names |= {getattr(rule, field) for rule in rules}
        alike = [rule for rule in rules if getattr(rule, field) == name]
        if alike:
            found.append(alike)
    if not found and (hint := closest(name, sorted(names))):
        raise ConfigurationError(f"{field} {quoted(name)}: no worker has published it{hint}")
    return found


def check_change(rules: Sequence[PublishedRule], limit: str) -> None:
    """Check that the limit of one name of some rules can be changed to another.

    Raises:
        ConfigurationError: None can, as of a function, or with another window.
    """
    if any(rule.named_limit().takes(limit) for rule in rules):
        return
    *_, most_likely_meant = sorted(rules, key=lambda rule: not rule.by_function)
    most_likely_meant.named_limit().amount_in(limit)  # raises, and says why not
