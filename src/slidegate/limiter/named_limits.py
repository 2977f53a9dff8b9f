"""Limits by the names that header fields show, and as texts: ``50/1m``, ``100/month``, ``4``."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ..core.buckets import Bucket
from ..core.errors import ConfigurationError, quoted
from ..core.limit_texts import parse_limits
from ..core.limits import AnyLimit, Concurrency, Limit
from ..core.quotas import Quota

_TEXTS: Final = 4_000
"""How many texts are remembered: a change is compared with each limit of its name."""
_UNITS_OF_QUOTAS: Final = {"/day": "/1d", "/week": "/7d"}
"""The windows of limits that users write like the units of quotas."""


@dataclass(eq=False, slots=True)
class NamedLimit:
    """A limit that this process counts with.

    Attributes:
        name: Its name in header fields.
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
                f"limit {self.name!r}: it cannot be changed, as a function returns it for each request; change what "
                "that reads, such as a customer's plan, or add a rule with a limit of its own above it"
            )
        amount, window = _parts_of(text)
        if not self._has_window(window, text):
            example = self.with_amount(max(self.configured.amount // 2, 1))
            raise ConfigurationError(
                f"limit {self.name!r}: in the code it is {text_of_limit(self.configured)!r}, and its amount alone can "
                f"change; write for example '{example}', not {quoted(text)}"
            )
        return amount

    def _has_window(self, window: str, text: str) -> bool:
        """Return whether a window is its own; the resolution may be left out."""
        configured_window = window_of(self.configured)
        if window == configured_window:
            return True
        if "@" in text:
            return False
        return _UNITS_OF_QUOTAS.get(window, window) == configured_window.partition(" @")[0]

    def takes(self, text: str) -> bool:
        """Return whether an override of its name with this text applies to it: it has the window of this limit."""
        with suppress(ConfigurationError):
            return self.amount_in(text) > 0
        return False

    def with_amount(self, amount: int | str) -> str:
        """Return the text of the configured limit with another amount, as `Limiter.override` takes it."""
        return f"{amount}{window_of(self.configured)}"


def named_limits(bucket: Bucket, *, changeable: bool = True) -> list[NamedLimit]:
    """Return the limits of a bucket by their names."""
    limits = zip(bucket.names, bucket.limits, bucket.configured, strict=True)
    result = []
    for name, limit, configured in limits:
        result.append(NamedLimit(name, limit, configured, bucket.label, changeable=changeable, shadow=bucket.shadow))
    return result


def parse_one(text: object) -> AnyLimit:
    """Return the limit of any kind that a text describes.

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


@lru_cache(_TEXTS)
def _parts_of(text: str) -> tuple[int, str]:
    """Return the amount of a limit, and its window."""
    limit = parse_one(text)
    return limit.amount, window_of(limit)


def text_of_limit(limit: AnyLimit) -> str:
    """Return the text of a limit as `parse_one` reads it."""
    return f"{limit.amount}{window_of(limit)}"


def window_of(limit: AnyLimit) -> str:
    """Return what follows the amount in the text of a limit: ``/1m``, ``/1m @5``, ``/month``; for permits nothing."""
    if isinstance(limit, Limit):
        return str(limit).rpartition(": ")[2].lstrip("0123456789")
    if isinstance(limit, Quota):
        return f"/{limit.unit}"
    return ""
