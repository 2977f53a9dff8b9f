"""Checks of users' arguments: names and whole numbers."""

from __future__ import annotations

import re
from typing import Final

from .errors import ConfigurationError, quoted

MAX_NAME: Final = 64
"""The most characters of a name."""
_NAME: Final = "(?! )[ -9<-~]+(?<! )"


def check_name(name: object, option: str, most: int = MAX_NAME) -> str:
    """Return `name` if it is valid in a header field and in a limit string.

    Raises:
        ConfigurationError: It is not 1 to `most` printable ASCII characters, contains ``:`` or ``;``, or starts or ends
            with a space.
    """
    if not isinstance(name, str) or len(name) > most or not re.fullmatch(_NAME, name):
        raise ConfigurationError(
            f'expected 1 to {most} printable ASCII characters without ":" and ";" and without spaces around them, '
            f'for example "api", not {quoted(name)}',
            option,
        )
    return name


def check_whole(value: object, low: int, high: int, option: str, example: str, hint: str = "") -> int:
    """Return `value` if it is a whole number from `low` to `high`.

    Raises:
        ConfigurationError: It is not; the message contains `option` and the example, and ends with the hint.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigurationError(
            f"expected a whole number from {low} to {high}, {example}, not {quoted(value)}{hint}", option
        )
    return value
