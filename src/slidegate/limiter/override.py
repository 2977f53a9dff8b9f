"""One override: what is said of it, how a row of the store holds it, and the event when it takes effect or ends."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Final

from ..core.errors import ConfigurationError, quoted
from ..core.limits import check_name
from ..core.store import Event
from .named_limits import check_text

ALL: Final = "*"
"""The name that stands for all limits, of all workers."""
OFF: Final = "off"
TOOLS: Final = "slidegate-"
"""The prefix of the names of the tools' own limits."""
_LATEST_US: Final = 2**52
"""About the year 2112; the sum of two such times is still valid for `datetime`."""


@dataclass(frozen=True, slots=True)
class Override:
    """A temporary change of a limit's amount.

    Attributes:
        name: The name of the limit in response headers; ``*`` if all workers are switched off.
        limit: The limit that replaces the one in code: ``"50/1m"``; ``"off"`` with the name ``*``.
        by: The person or program that changed it.
        reason: The reason, for operators.
        made_us: When it was changed, in microseconds of Unix time.
        length_us: How long it applies, in microseconds.
        until_us: When it ends, in microseconds of the store's time.
        workers: How many workers had this limit when this was returned; each applies a change within a second.
    """

    name: str
    limit: str
    by: str
    reason: str
    made_us: int
    length_us: int
    until_us: int
    workers: int = field(default=0, compare=False)

    @property
    def since(self) -> datetime:
        """When it was made."""
        return datetime.fromtimestamp(self.made_us / 1_000_000, UTC)

    @property
    def until(self) -> datetime:
        """When it ends."""
        return datetime.fromtimestamp((self.made_us + self.length_us) / 1_000_000, UTC)


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
    if name.startswith(TOOLS):
        raise ConfigurationError(f"limit {name!r}: the limits of operators' tools cannot be changed")
    return check_text(limit)


def event_of(name: str, was: int, amount: int, applied: Override | None, latest: Override) -> Event:
    """Return the event of a changed amount.

    Args:
        name: The name of the limit.
        was: The amount before.
        amount: The amount in force.
        applied: The override that sets it; None if it is that in code.
        latest: The override that has changed or ended.
    """
    until, author = f"until {latest.until:%Y-%m-%dT%H:%M:%SZ}", f"; changed by {latest.by}" if latest.by else ""
    author += f": {latest.reason}" if latest.reason else ""
    details = {"by": latest.by, "reason": latest.reason, "until": latest.until}
    if name == ALL:
        if applied is None:
            return Event("switched_on", "slidegate is on again", details)
        return Event("switched_off", f"slidegate is off {until}: every request passes{author}", details)
    kind, how = ("limit_restored", "again") if applied is None else ("limit_overridden", until)
    message = f"limit {name!r} is {amount} {how}, and was {was}{author}"
    return Event(kind, message, {"limit": name, "amount": amount, "was": was, **details})


def packed(override: Override) -> bytes:
    """Return the value of a row."""
    value = asdict(override)
    del value["workers"]
    return json.dumps(value).encode()


def unpacked(value: bytes) -> Override | None:
    """Return the override in a row; None if it cannot be parsed, for example one of a later version."""
    try:
        found = Override(**json.loads(value))
        checked(found.name, found.limit)
        texts, numbers = (found.name, found.by, found.reason), (found.made_us, found.length_us, found.until_us)
        is_whole = all(isinstance(number, int) and 0 <= number < _LATEST_US for number in numbers)
        return found if is_whole and all(isinstance(text, str) for text in texts) else None
    except (ValueError, TypeError, RecursionError, ConfigurationError):
        return None
