"""What users choose for a store that fails: how long it may take, and what decides then."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from ..core.durations import parse_duration_us
from ..core.errors import ConfigurationError, closest, quoted

OnError: TypeAlias = Literal["local", "allow", "deny"]

DEADLINE: Final = "50ms"
ON_ERROR: Final = "local"
STRICTEST_FIRST: Final[tuple[OnError, ...]] = ("deny", "local", "allow")
"""Of the rules of one question, the first of these that one of them has decides."""


def check_failure_policy(deadline: Any, on_error: object) -> tuple[int, OnError]:
    """Return a deadline in microseconds, and an `on_error`.

    Raises:
        ConfigurationError: One of them is invalid.
    """
    return parse_duration_us(deadline, "deadline", 1_000, 60_000_000, "50ms"), check_on_error(on_error)


def check_on_error(on_error: object) -> OnError:
    """Validate an `on_error`, and return it.

    Raises:
        ConfigurationError: It is not one of the three values.
    """
    for choice in STRICTEST_FIRST:
        if on_error == choice:
            return choice
    similar = closest(on_error, STRICTEST_FIRST)
    raise ConfigurationError(f'expected one of "local", "allow", "deny", not {quoted(on_error)}{similar}', "on_error")
