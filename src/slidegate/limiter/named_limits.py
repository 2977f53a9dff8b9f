"""Limits by their names on the wire, and which text changes one: with the same window, and another amount."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..core.concurrency import Concurrency
from ..core.errors import ConfigurationError, closest, quoted
from ..core.limits import MAX_AMOUNT, AnyLimit, Limit, parse_limits
from ..core.quotas import Quota

MOST: Final = 10
"""The largest ratio of a changed amount to the one in code."""
_LISTED: Final = 10
"""How many names an error lists."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class NamedLimit:
    """A limit that something in this process counts by, with its name in response headers.

    Attributes:
        name: The name.
        limit: The bucket's own copy, whose amount changes.
        configured: The limit as configured in code.
        rule: The label of its rule.
        cost: The largest known cost of one request.
        fixed: Why its amount cannot be changed; empty if it can.
        shadow: Whether its rule only reports.
        listed: Whether it is one of the active limits; a reloaded file's earlier ones are not.
    """

    name: str
    limit: AnyLimit
    configured: AnyLimit
    rule: str = ""
    cost: int = 1
    fixed: str = ""
    shadow: bool = False
    listed: bool = True

    def amount_in(self, text: str) -> int:
        """Return the amount that a text sets for this limit.

        Raises:
            ConfigurationError: The text has another window, its amount is out of range, or the limit is fixed.
        """
        if self.fixed:
            raise ConfigurationError(f"limit {self.name!r}: {self.fixed}")
        now, amount = self.configured.amount, _amount_in(self.configured, text)
        if amount is None:
            raise ConfigurationError(
                f"limit {self.name!r}: in the code it is {written(self.configured, now)!r}, and its amount alone can "
                f"change; write for example {self._example(text)}, not {quoted(text)}"
            )
        most = min(now * MOST, MAX_AMOUNT)
        if not self.cost <= amount <= most:
            why = f"a request costs {self.cost}, and " if self.cost > 1 else ""
            raise ConfigurationError(
                f"limit {self.name!r}: expected an amount from {self.cost} to {most}, because {why}in the code it is "
                f"{now}, of which {MOST} times as much is allowed; not {amount}"
            )
        return amount

    def _example(self, text: str) -> str:
        """Return what to write in place of a text; in place of an amount alone, the same amount in both spellings."""
        digits = text.strip()
        if not re.fullmatch("[0-9]{1,10}", digits) or not 1 <= int(digits) <= MAX_AMOUNT:
            return repr(written(self.configured, max(self.configured.amount // 2, 1)))
        example = written(self.configured, int(digits))
        return f"{example!r} or {example.replace('/', ' per ')!r}"


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


def named(
    names: Sequence[str], limits: Sequence[AnyLimit], configured: Sequence[AnyLimit], rule: str, cost: int = 1
) -> list[NamedLimit]:
    """Return the limits of a bucket by their names."""
    return [NamedLimit(*one, rule, cost) for one in zip(names, limits, configured, strict=True)]


def by_name(limits: Iterable[NamedLimit]) -> dict[str, list[NamedLimit]]:
    """Return limits by name; fixed ones only if no other limit has that name."""
    found: dict[str, list[NamedLimit]] = {}
    for one in limits:
        found.setdefault(one.name, []).append(one)
    return {name: [one for one in those if not one.fixed] or those for name, those in found.items()}


def amount_for(limits: Iterable[NamedLimit], text: str) -> int:
    """Return the amount that a text sets for all limits of one name.

    Raises:
        ConfigurationError: One of them does not take it, so none does.
    """
    return max((one.amount_in(text) for one in limits), default=0)


def unknown(name: str, limits: Mapping[str, Sequence[NamedLimit]]) -> ConfigurationError:
    """Return the error for a name that no limit has."""
    free = [other for other, those in limits.items() if not those[0].fixed]
    hint = closest(name, free)
    if not hint and free:
        more = ", ..." if len(free) > _LISTED else ""
        hint = f"; there are {', '.join(map(repr, sorted(free)[:_LISTED]))}{more}"
    return ConfigurationError(
        f"limit {name!r}: no rule has a limit of this name, as response headers show it{hint or '; there are none'}"
    )


def check_text(text: object) -> str:
    """Return a text of one limit of any kind in its canonical form: ``50/1m``, ``100/month``, ``4``.

    Raises:
        ConfigurationError: It is no such text.
    """
    if not isinstance(text, str):
        raise ConfigurationError(f'limit: expected text such as "50/minute", not {quoted(text)}')
    if text.strip().isdigit():
        return str(Concurrency(text).amount)
    quota = _quota(text)
    if quota is not None:
        return written(quota, quota.amount)
    limits = parse_limits(text)
    if len(limits) != 1:
        raise ConfigurationError(f'limit: expected one, for example "50/minute", not {quoted(text)}')
    return written(limits[0], limits[0].amount)


def written(limit: AnyLimit, amount: int) -> str:
    """Return the text of a limit with another amount, as `Limiter.override` takes it."""
    if isinstance(limit, Limit):
        return str(limit.with_amount(amount)).rpartition(": ")[2]
    return f"{amount}/{limit.unit}" if isinstance(limit, Quota) else str(amount)


def read_limit(kind: str, text: str) -> AnyLimit:
    """Return the limit that `written` wrote, of a kind as its class is called.

    Raises:
        ConfigurationError: It is no limit of this kind.
    """
    if kind == "Quota":
        return Quota(text)
    return Concurrency(text) if kind == "Concurrency" else parse_limits(text)[0]


def _amount_in(limit: AnyLimit, text: str) -> int | None:
    """Return the amount of a text that is a limit of the same kind and window as `limit`; None if it is another."""
    if isinstance(limit, Quota):
        quota = _quota(text)
        return quota.amount if quota is not None and quota.unit == limit.unit else None
    if isinstance(limit, Concurrency):
        return Concurrency(text).amount if text.strip().isdigit() else None
    try:
        (other,) = parse_limits(text)
    except (ConfigurationError, ValueError):
        return None
    same = isinstance(limit, Limit) and other.window_us == limit.window_us
    return other.amount if same and (other.resolution == limit.resolution or "@" not in text) else None


def _quota(text: str) -> Quota | None:
    try:
        return Quota(text)
    except ConfigurationError:
        return None
