"""Passwords in values and texts: how messages leave them out, and how to read them from the objects that hide them.

An address such as ``redis://user:password@host`` may be given in any wrong way: as bytes, in a list, as a path, without
its scheme. A message quotes the value, so each value passes through one of the two functions here, which in doubt hides
too much, and each message that is raised, emitted as an event, logged or shown through the other, which keeps the texts
of logs, lists, paths and keys: there, ``user:ann@example.org`` is a key, and ``/@{user}/{id:int}`` a path.
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
_PATH: Final = re.compile("['\"]?/[^/]")
HIDDEN: Final = "***"
_IN_MESSAGE: Final = re.compile(
    r"""(?x) (://) [^\s/"]* @  # redis://user:password@host
    | ((?<=[:/])/) [^\s/"@:]* : [^\s/"]* @  # redis:/user:password@host, //user:password@host
    | (?<!\S) ([^\w\s:@]* :) \S* @  # ':password@host'"""
)
"""Each alternative ends in the word in which it begins, and begins anew where the last one has ended: other patterns
take time in proportion to the square of a text of colons."""


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
    """Return how a user's value is written, without what may be a password: for texts in which only a value stands.

    What is between the first place where an address begins and the last ``@`` is left out. No address begins with one
    slash, as paths do.
    """
    at = text.rfind("@")
    match = _IN_VALUE.search(text, 0, max(at, 0))
    if match is not None and not _PATH.match(text):
        text = f"{text[: match.end()]}{HIDDEN}{text[at:]}"
    return _NAMED.sub(rf"\1{HIDDEN}", text)


def without_addresses(text: str) -> str:
    """Return a whole message without the users and passwords of addresses in it; it keeps all other texts."""
    return _IN_MESSAGE.sub(rf"\1\2\3{HIDDEN}@", text)


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
