"""Limits by their names on the wire, and what changes them: the text of a limit with the same window."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Final

from ..core.concurrency import Concurrency
from ..core.decision import Bucket
from ..core.errors import ConfigurationError, closest, quoted
from ..core.limits import AnyLimit, Limit, check_name, parse_limits
from ..core.quotas import Quota
from ..core.store import Event

ALL: Final = "*"
"""The name that stands for all limits, of all workers."""
OFF: Final = "off"
_LISTED: Final = 10
"""How many names an error lists."""


@dataclass(eq=False, slots=True)
class NamedLimit:
    """A limit that this process counts with.

    Attributes:
        name: Its name in response headers.
        limit: The limit in force, as an operator has changed it; ``str(limit)`` is ``100/1m``.
        configured: The limit as configured in code.
        rule: The label of its rule.
        fixed: Why its amount cannot be changed; empty if it can.
        shadow: Whether its rule reports and never refuses.
    """

    name: str
    limit: AnyLimit
    configured: AnyLimit
    rule: str = ""
    fixed: str = ""
    shadow: bool = False

    @property
    def changeable(self) -> bool:
        """Whether `Limiter.override` can change it."""
        return not self.fixed


def named(bucket: Bucket, fixed: str = "", *, shadow: bool = False) -> list[NamedLimit]:
    """Return the limits of a bucket by their names."""
    limits = zip(bucket.names, bucket.limits, bucket.configured, strict=True)
    return [NamedLimit(*one, bucket.label, fixed, shadow) for one in limits]


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


def written(limit: AnyLimit, amount: int | None = None) -> str:
    """Return the text of a limit as `parse_one` reads it, with another amount if one is given."""
    amount = limit.amount if amount is None else amount
    if isinstance(limit, Limit):
        limit = limit.own()
        limit.become(amount)
        return str(limit).rpartition(": ")[2]
    return f"{amount}/{limit.unit}" if isinstance(limit, Quota) else str(amount)


def amount_in(text: str, name: str, configured: AnyLimit, fixed: str) -> int:
    """Return the amount that a text sets for a limit.

    Raises:
        ConfigurationError: The text is of another kind or window, or the limit is fixed.
    """
    if fixed:
        raise ConfigurationError(f"limit {name!r}: {fixed}")
    other = parse_one(text)
    is_same = isinstance(other, type(configured)) and written(other, 1) == written(configured, 1)
    if isinstance(other, Limit) and isinstance(configured, Limit) and "@" not in text:
        is_same = other.window_us == configured.window_us
    if not is_same:
        raise ConfigurationError(
            f"limit {name!r}: in the code it is {written(configured)!r}, and its amount alone can change; write for "
            f"example {written(configured, max(configured.amount // 2, 1))!r}, not {quoted(text)}"
        )
    return other.amount


def unknown(name: str, names: Iterable[str]) -> ConfigurationError:
    """Return the error for a name that no limit has; `names` are those that limits have."""
    free = sorted(set(names))
    hint = closest(name, free)
    if not hint and free:
        hint = f"; there are {', '.join(map(repr, free[:_LISTED]))}{', ...' if len(free) > _LISTED else ''}"
    return ConfigurationError(
        f"limit {name!r}: no rule has a limit of this name, as response headers show it{hint or '; there are none'}"
    )


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
        workers: How many workers had this limit when this was returned; each applies a change within a second.
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

    def packed(self) -> bytes:
        """Return the value of a row."""
        return json.dumps({**asdict(self), "workers": 0}).encode()


def unpacked(value: bytes) -> Override | None:
    """Return the override in a row; None if it cannot be parsed, for example one of a later version."""
    try:
        found = Override(**json.loads(value))
        checked(found.name, found.limit)
    except (ValueError, TypeError, RecursionError, ConfigurationError):
        return None
    return found


def checked(name: str, limit: str) -> str:
    """Return the text of a change in its canonical form.

    Raises:
        ConfigurationError: It is wrong, as far as that shows without the limits in code.
    """
    if name == ALL:
        if limit != OFF:
            raise ConfigurationError(f'limit "*": it stands for all limits and can only be "off", not {quoted(limit)}')
        return OFF
    if limit == OFF:
        raise ConfigurationError(
            f'limit {quoted(name)}: one limit cannot be "off"; the name "*" switches all of them off'
        )
    check_name(name, "limit name")
    return written(parse_one(limit))


def event_of(name: str, was: int, amount: int, override: Override, *, ended: bool) -> Event:
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
