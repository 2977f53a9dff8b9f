"""Limits by their names on the wire, and the text that changes one: the same limit with another amount."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ..core.concurrency import Concurrency
from ..core.decision import Bucket
from ..core.errors import ConfigurationError, closest, quoted
from ..core.limits import AnyLimit, Limit, parse_limits
from ..core.quotas import Quota

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

    def with_amount(self, amount: int | str) -> str:
        """Return the text of the configured limit with another amount, as `Limiter.override` takes it."""
        return f"{amount}{_window_of(self.configured)}"


def named(bucket: Bucket, fixed: str = "") -> list[NamedLimit]:
    """Return the limits of a bucket by their names."""
    limits = zip(bucket.names, bucket.limits, bucket.configured, strict=True)
    return [NamedLimit(*one, bucket.label, fixed, bucket.shadow) for one in limits]


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


def written(limit: AnyLimit) -> str:
    """Return the text of a limit as `parse_one` reads it."""
    return f"{limit.amount}{_window_of(limit)}"


def amount_in(text: str, name: str, configured: AnyLimit) -> int:
    """Return the amount that a text sets for a limit.

    Raises:
        ConfigurationError: The text is of another kind or window.
    """
    other = parse_one(text)
    window, own = _window_of(other), _window_of(configured)
    if window != own and ("@" in text or window != own.partition(" @")[0]):
        raise ConfigurationError(
            f"limit {name!r}: in the code it is {written(configured)!r}, and its amount alone can change; write for "
            f"example '{max(configured.amount // 2, 1)}{own}', not {quoted(text)}"
        )
    return other.amount


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
