"""Keys: a rule counts requests of one key together.

A key is text. The built-in keys read the ASGI scope directly and always find one: where a header is missing, for
example, they fall back to the client's address, so leaving it out is no way past the gate.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeAlias, runtime_checkable

from starlette.requests import HTTPConnection
from starlette.types import Scope

from ...core.errors import ConfigurationError
from ...limiter import Limiter

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@runtime_checkable
class Key(Protocol):
    """A key that reads the ASGI scope."""

    @property
    def identity(self) -> str:
        """The source of the key, written alike in every process: a part of the identity of a rule without a name."""

    def find(self, scope: Scope, limiter: Limiter, client_key: str) -> str:
        """Return the key of a request, at most 64 bytes; `client_key` is that of its address."""


KeyFunction: TypeAlias = Callable[[HTTPConnection], str | Awaitable[str | None] | None]
"""A function of the user's own. If it returns None, the rule does not count the request."""


class _Everyone:
    """All requests together."""

    identity = "everyone"

    def find(self, scope: Scope, limiter: Limiter, client_key: str) -> str:
        return "everyone"

    def __repr__(self) -> str:
        return "everyone"


everyone: Final = _Everyone()
"""Count all requests together, for a limit on the whole service."""


class Value(ABC):
    """A key by a value that the client sends, digested; where it is missing or empty, the fallback finds the key.

    Attributes:
        fallback: Another key, None for the client's address.
    """

    def __init__(self, kind: str, identity: str, fallback: Key | None) -> None:
        if fallback is not None and not isinstance(fallback, Key):
            raise ConfigurationError(f"{kind}: fallback must be a key such as client_ip(), not {fallback!r}")
        self._kind = kind
        self.fallback = fallback
        self.identity = identity + (f"|{fallback.identity}" if fallback is not None else "")

    def __repr__(self) -> str:
        return f"<key {self.identity}>"

    def find(self, scope: Scope, limiter: Limiter, client_key: str) -> str:
        """See `Key.find`."""
        value = self.value(scope)
        if value:
            return limiter.digest(self._kind, value)
        return client_key if self.fallback is None else self.fallback.find(scope, limiter, client_key)

    @abstractmethod
    def value(self, scope: Scope) -> bytes:
        """Return the value, empty where there is none."""


class _Header(Value):
    def __init__(self, name: str, fallback: Key | None) -> None:
        check_header_name(name)
        super().__init__(f"header:{name}", f"header:{name.lower()}", fallback)
        self._name = name.lower().encode()

    def value(self, scope: Scope) -> bytes:
        return next((value for name, value in scope["headers"] if name == self._name), b"")


class _Cookie(Value):
    def __init__(self, name: str, fallback: Key | None) -> None:
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise ConfigurationError(f'cookie: expected a cookie name such as "session", not {name!r}')
        super().__init__(f"cookie:{name}", f"cookie:{name}", fallback)
        self._name = name

    def value(self, scope: Scope) -> bytes:
        return HTTPConnection(scope).cookies.get(self._name, "").encode(errors="surrogatepass")


class _Query(Value):
    def __init__(self, name: str, fallback: Key | None) -> None:
        check_parameter_name("query", name)
        super().__init__(f"query:{name}", f"query:{name}", fallback)
        self._name = name

    def value(self, scope: Scope) -> bytes:
        return HTTPConnection(scope).query_params.get(self._name, "").encode(errors="surrogatepass")


class Combined:
    """Several keys at once; made by `combine`."""

    def __init__(self, keys: tuple[Key, ...]) -> None:
        self.keys = keys
        self.identity = "+".join(key.identity for key in keys)

    def __repr__(self) -> str:
        return f"<key {self.identity}>"

    def find(self, scope: Scope, limiter: Limiter, client_key: str) -> str:
        found = (key.find(scope, limiter, client_key).encode(errors="surrogatepass") for key in self.keys)
        # Each part has its length before it, or "a" and "bc" would meet "ab" and "c".
        return limiter.digest("combined", b"".join(b"%d:%b" % (len(part), part) for part in found))


def header(name: str, *, fallback: Key | None = None) -> Key:
    """Count each value of a request header, for example an API key.

    The value is digested and never stored. Where a header comes several times, its first line counts, which is
    also what `request.headers[name]` returns. A missing or empty header falls back to the client's address.

    Args:
        name: The header's name, in any case.
        fallback: The key to use where the header is missing or empty; by default the middleware's `client`.

    Raises:
        ConfigurationError: The name has a character that header names cannot have, or the fallback is no key.
    """
    return _Header(name, fallback)


def cookie(name: str, *, fallback: Key | None = None) -> Key:
    """Count each value of a cookie, digested: the value that `request.cookies[name]` returns.

    Anybody can send any cookie, so verify a session before you count by it, or keep a limit by address beside it.

    Args:
        name: The cookie's name.
        fallback: The key to use where the cookie is missing or empty; by default the middleware's `client`.

    Raises:
        ConfigurationError: The name has a character that cookie names cannot have, or the fallback is no key.
    """
    return _Cookie(name, fallback)


def query(name: str, *, fallback: Key | None = None) -> Key:
    """Count each value of a query parameter, digested: the value that `request.query_params[name]` returns.

    Args:
        name: The parameter's name.
        fallback: The key to use where the parameter is missing or empty; by default the middleware's `client`.

    Raises:
        ConfigurationError: The name is empty, or the fallback is no key.
    """
    return _Query(name, fallback)


def combine(*keys: Key) -> Key:
    """Count each combination of keys: ``combine(client_ip(), header("X-Tenant"))``.

    Raises:
        ConfigurationError: There are fewer than two keys, or one of them is not built in.
    """
    if len(keys) < 2 or not all(isinstance(key, Key) for key in keys):
        raise ConfigurationError(f'combine: expected keys such as client_ip() and header("X-Tenant"), not {keys!r}')
    return Combined(keys)


def check_header_name(name: object) -> str:
    """Return `name` if it can be the name of a header: a token of RFC 9110, section 5.6.2.

    Raises:
        ConfigurationError: It cannot.
    """
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise ConfigurationError(f'header: expected a header name such as "X-API-Key", not {name!r}')
    return name


def check_parameter_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ConfigurationError(
            f'{what}: expected the name of a parameter, for example {what}("tenant"), not {name!r}'
        )
