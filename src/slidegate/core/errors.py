"""The exceptions that slidegate raises.

SlidegateError
├── ConfigurationError (also a ValueError)   an invalid value at construction; the message suggests a valid one
│   └── InvalidKey                           a value that is not a valid key, address or network
├── StoreError                               a store could not answer; a `Limiter` then applies its `on_error`
│   ├── StoreUnavailable                     it is broken, full, unreachable or closed
│   │   └── StoreReadOnly                    it was opened for reading only, and a change was attempted
│   └── StoreTimeout                         it did not answer in time
└── RateLimitExceeded                        a call under `Limiter.limited`, or a request at an endpoint, was refused

A refusal is a `Decision` with `allowed` false. It raises an exception, which `exceeded` defines, only where it prevents
a function call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

from .logs import escaped, safe_text
from .passwords import without_addresses

MAX_QUOTED: Final = 80
_LONGEST_WORD: Final = 100

Concerns: TypeAlias = Literal["request", "writes", "server"]


class SlidegateError(Exception):
    """The base class of all exceptions that slidegate raises."""


class ConfigurationError(SlidegateError, ValueError):
    """A value passed at construction is invalid; the message suggests a valid one.

    Args:
        text: What is wrong with the value, and what is valid.
        option: The name of the option, with which the message begins; empty if the error concerns no single option.
    """

    def __init__(self, text: str = "", option: str = "") -> None:
        text, option = without_addresses(text), without_addresses(option)
        message = f"{option}: {text}" if option else text
        super().__init__(message)
        self.text = text
        self.option = option


class InvalidKey(ConfigurationError):
    """A value is not a valid key, address or network. A service that received it from a client answers 422."""


class StoreError(SlidegateError):
    """A store could not answer. It is unknown whether anything was charged.

    Args:
        message: The failure, in words.
        concerns: The scope of the failure: one ``"request"`` while the others are served, for example a
            value of a foreign type or a file without room for new keys; all ``"writes"``, while questions that need
            none are answered; or the ``"server"``. With the last two the circuit breaker may open.
    """

    def __init__(self, message: str = "", *, concerns: Concerns = "server") -> None:
        super().__init__(without_addresses(message))
        self.concerns = concerns


class StoreUnavailable(StoreError):
    """A store is broken, full, cannot be reached, or was closed."""


class StoreReadOnly(StoreUnavailable):
    """A caller tried to change a store that was opened for reading only; this is no outage."""


class StoreTimeout(StoreError):
    """A store did not answer in time; a request that timed out before it was sent has charged nothing."""


def closed(name: str) -> StoreUnavailable:
    """Return the error for a call of a closed store or limiter."""
    return StoreUnavailable(f"{name} was closed and can no longer be used; create a new one")


def closest(word: object, choices: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the choice most similar to `word`, or an empty string."""
    # Comparing words takes time proportional to the product of their lengths.
    if not isinstance(word, str) or len(word) > _LONGEST_WORD:
        return ""
    # Imported here, because only error messages need it.
    import difflib

    matches = difflib.get_close_matches(word, list(choices), n=1)
    if not matches:
        return ""
    return f"; did you mean {matches[0]!r}?"


def quoted(value: object) -> str:
    """Return the `repr` of a value for an error message, without passwords, cut to 80 characters."""
    return escaped(safe_text(value), MAX_QUOTED)
