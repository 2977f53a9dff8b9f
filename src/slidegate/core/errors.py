"""What slidegate raises.

SlidegateError
├── ConfigurationError (also a ValueError)   wrong value at construction; says what to write instead
│   └── InvalidKey                           a value that cannot be a key, an address or a network
├── StoreError                               a store could not answer; a `Limiter` does what `on_error` says
│   ├── StoreUnavailable                     it is broken, full, gone or closed
│   └── StoreTimeout                         it did not answer in time
└── RateLimitExceeded                        a call under `Limiter.limited`, or a request at an endpoint, was refused

A refusal is a `Decision` with `allowed` false. It is an exception only where a function is not called because of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Literal, SupportsIndex, TypeAlias

from .logs import written

if TYPE_CHECKING:
    from .decision import Decision

MAX_QUOTED: Final = 80
_LONGEST_WORD: Final = 100

Whole: TypeAlias = SupportsIndex
"""A whole number from a user, which is checked. As an `int`, compiled code would refuse others before the check."""

Concerns: TypeAlias = Literal["key", "slot", "server"]


class SlidegateError(Exception):
    """The root of everything slidegate raises."""


class ConfigurationError(SlidegateError, ValueError):
    """A value that slidegate was given at construction cannot work; the message says what would.

    Args:
        text: What is wrong with the value, and what would work.
        option: The name of the option that has the value; the message begins with it. Empty if it is about none.
    """

    def __init__(self, text: str = "", option: str = "") -> None:
        super().__init__(f"{option}: {text}" if option else text)
        self.text = text
        self.option = option


class InvalidKey(ConfigurationError):
    """A value cannot be a key, an address or a network. A service that was given it by a client answers 422.

    Args:
        message: The whole sentence, with the value.
        expected: The values that can be one, for people: ``'text that is not empty, for example "user:42"'``.
    """

    def __init__(self, message: str = "", expected: str = "") -> None:
        super().__init__(message)
        self.expected = expected


class StoreError(SlidegateError):
    """A store could not answer. Whether anything was charged is not known.

    Args:
        message: The failure, in words.
        concerns: The part in trouble: one ``"key"`` or ``"slot"`` while the others are served, as with a value of a
            foreign type or a file that has no room for new keys; or the ``"server"``, which is then left alone for a
            while.
    """

    def __init__(self, message: str = "", *, concerns: Concerns = "server") -> None:
        super().__init__(message)
        self.concerns = concerns


class StoreUnavailable(StoreError):
    """A store is broken, full, cannot be reached, or was closed."""


class StoreTimeout(StoreError):
    """A store did not answer in time; a request that was given up before it was sent has charged nothing."""


class RateLimitExceeded(SlidegateError):
    """A call under `Limiter.limited`, or a request at an endpoint under `RateLimit`, was refused and has not run.

    At an endpoint it is Starlette's `HTTPException` too, so an exception handler may answer it.

    Attributes:
        decision: The refusal.
    """

    # Nothing calls `super().__init__`: beside this class there may be an `HTTPException`, which takes other arguments.
    def __init__(self, decision: Decision) -> None:
        self.decision = decision

    @property
    def retry_after_s(self) -> float | None:
        """Seconds until the same call is admitted if nobody else spends; None if never."""
        wait_us = self.decision.retry_after_us
        return None if wait_us is None else wait_us / 1_000_000

    def __str__(self) -> str:
        checks = self.decision.checks
        rule = checks[0][0].label if checks else self.decision.by
        when = "for ever" if self.retry_after_s is None else f"for {self.retry_after_s:g} s"
        return f"{rule} is refused {when}: {self.decision.reason}"


def closest(word: str, choices: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the choice most like `word`, or an empty string."""
    if len(word) > _LONGEST_WORD:
        return ""  # to compare words takes time in proportion to the product of their lengths
    # Only a mistake needs this, and it ends the start.
    import difflib

    matches = difflib.get_close_matches(word, list(choices), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def quoted(value: object) -> str:
    """Return a given value as messages show it: as in Python, and at most 80 characters of it."""
    text = written(value)
    return text if len(text) <= MAX_QUOTED else text[: MAX_QUOTED - 1] + "…"


def check_positive(value: object, what: str, example: str = "10") -> int:
    """Return a length if it is a whole number above 0.

    Raises:
        ConfigurationError: It is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"expected a whole number above 0, for example {example}, not {quoted(value)}", what)
    return value
