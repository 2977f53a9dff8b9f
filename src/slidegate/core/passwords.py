"""Passwords in values and texts: how messages leave them out, and how to read them from the objects that hide them.

An address such as ``redis://user:password@host`` may be given in any wrong way: as bytes, in a list, as a path, without
its scheme. A message quotes the value, so each text that is quoted, raised, emitted as an event or logged passes
through one of the two functions here. In doubt they hide too much.
"""

from __future__ import annotations

import re
import sys
from typing import Any, Final, Protocol, TypeAlias

_NAMES: Final = "password|passwd|passphrase|pass|pwd|secret|token|api_?key"
_NAMED: Final = re.compile(
    rf"""(?ix) ((?<![a-z]) (?:{_NAMES}) (?: ['"]\s*: | \s*= ) \s*)  # 'redis_password': b'...', password='...'
    (?: b? '(?:[^'\\]|\\.)*' | b? "(?:[^"\\]|\\.)*" | [^\s,;&)\]}}>'"]+ )"""
)
_IN_VALUE: Final = re.compile(":/*|//")
_IN_WORD: Final = re.compile(r""":/+|//|(?<![\w"']):""")
_WORD: Final = re.compile(r"\S+")
HIDDEN: Final = "***"


class SecretText(Protocol):
    """A text that is hidden where it is written, such as pydantic's `SecretStr`."""

    def get_secret_value(self) -> Any:
        """Return the text."""


class Url(Protocol):
    """An address that is an object, such as pydantic's `RedisDsn`; `str` returns its text."""

    @property
    def scheme(self) -> str | None:
        """What stands before ``://``."""


AnyAddress: TypeAlias = str | SecretText | Url
AnySecret: TypeAlias = str | bytes | SecretText


def without_passwords(text: str) -> str:
    """Return how a user's value is written, without what may be a password: for texts in which only a value stands."""
    return _NAMED.sub(rf"\1{HIDDEN}", _without_user(text, _IN_VALUE))


def without_addresses(text: str) -> str:
    """Return a whole message without the users and passwords of addresses in it."""
    if "@" not in text:
        return text
    return _WORD.sub(lambda word: _without_user(word[0], _IN_WORD), text)


def _without_user(text: str, begins: re.Pattern[str]) -> str:
    """Return a text without what is between the first place where an address begins and the last ``@``.

    A pattern for the whole would take time in proportion to the square of a text of colons.
    """
    at = text.rfind("@")
    if at <= 0:
        return text
    match = begins.search(text, 0, at)
    if match is None:
        return text
    return f"{text[: match.end()]}{HIDDEN}{text[at:]}"


def revealed(value: Any) -> Any:
    """Return what an object hides: the text or bytes of pydantic's `SecretStr`, and of Starlette's `Secret`."""
    get: Any = getattr(value, "get_secret_value", None)
    if callable(get):
        return get()
    starlette: Any = sys.modules.get("starlette.datastructures")
    if starlette is not None and isinstance(value, starlette.Secret):
        return str(value)
    return value


def address_in(value: Any) -> Any:
    """Return the text of an address that is an object, such as pydantic's `RedisDsn`; else the value itself."""
    value = revealed(value)
    writes: Any = type(value).__str__
    if isinstance(value, (str, bytes, bytearray)) or writes is object.__str__:
        return value
    text = str(value)
    if "://" in text:
        return text
    return value
