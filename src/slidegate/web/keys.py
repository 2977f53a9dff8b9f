"""Whom a rule counts.

A key is text. The built-in ones read the ASGI scope directly and always name somebody: where what they look for is
missing, they fall back to the client's address, so leaving a header out is no way past the gate.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeAlias, runtime_checkable

from starlette.requests import HTTPConnection
from starlette.types import Scope

from ..core.errors import ConfigurationError
from ..limiter import Limiter

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@runtime_checkable
class Key(Protocol):
    """A key that reads the ASGI scope."""

    @property
    def identity(self) -> str:
        """Says what is read, the same in every process: a part of the identity of a rule without a name."""

    def find(self, scope: Scope, limiter: Limiter, client_key: str) -> str:
        """Return the key of a request, at most 64 bytes; `client_key` is that of its address."""


KeyFunction: TypeAlias = Callable[[HTTPConnection], str | Awaitable[str | None] | None]
"""A function of the user's own. None means: this rule does not count this request."""


class _Everyone:
    """All requests together."""

    identity = "everyone"

    def find(self, scope: Scope, limiter: Limiter, client_key: str) -> str:
        return "everyone"

    def __repr__(self) -> str:
        return "everyone"


everyone: Final = _Everyone()
"""Count all requests together, for a limit on the whole service."""


class HeaderValue:
    """The value of a request header, digested; made by `header`."""

    def __init__(self, name: str, fallback: Key | None) -> None:
        check_header_name(name)
        if fallback is not None and not isinstance(fallback, Key):
            raise ConfigurationError(f"header: fallback must be a key such as client_ip(), not {fallback!r}")
        self.name = name
        self.fallback = fallback
        self.identity = f"header:{name.lower()}" + (f"|{fallback.identity}" if fallback is not None else "")
        self._raw = name.lower().encode()
        self._kind = f"header:{name}"

    def find(self, scope: Scope, limiter: Limiter, client_key: str) -> str:
        """See `Key.find`."""
        for name, value in scope["headers"]:
            if name == self._raw:
                if value:
                    return limiter.digest(self._kind, value)
                break
        return client_key if self.fallback is None else self.fallback.find(scope, limiter, client_key)


def check_header_name(name: object) -> str:
    """Return `name` if it can be the name of a header: a token of RFC 9110, section 5.6.2.

    Raises:
        ConfigurationError: It cannot.
    """
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise ConfigurationError(f'header: expected a header name such as "X-API-Key", not {name!r}')
    return name


def header(name: str, *, fallback: Key | None = None) -> HeaderValue:
    """Count each value of a request header, for example an API key.

    The value is digested and never stored. Where a header comes several times, the first one counts: the one that
    `request.headers[name]` gives the application. A missing or empty header falls back to the client's address.

    Args:
        name: The header's name, in any case.
        fallback: The key to use where the header is missing or empty; by default the middleware's `client`.

    Raises:
        ConfigurationError: The name has a character that header names cannot have, or the fallback is no key.
    """
    return HeaderValue(name, fallback)
