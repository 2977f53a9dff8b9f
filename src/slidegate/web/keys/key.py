"""Keys: a rule counts requests of one key together.

A key is text. The built-in keys read the ASGI scope directly and always find one: where a header is missing, for
example, they fall back to the client's address, so leaving it out is no way past the gate.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol, TypeAlias, runtime_checkable

from starlette.requests import HTTPConnection
from starlette.types import Scope

from ...core.errors import ConfigurationError, InvalidKey, quoted
from ...limiter import Limiter
from ...limiter.keys import KeyOf

_VALUE: Final = "text that is not empty"
_OF_HEADER: Final = "a header's value, as text of Latin-1 on one line or as the bytes on the wire"
_NO_HEADER: Final = re.compile(rb"[\r\n\0]")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@runtime_checkable
class Key(Protocol):
    """A key that reads the ASGI scope."""

    @property
    def identity(self) -> str:
        """The source of the key, written alike in every process: a part of the identity of a rule without a name."""

    def find(self, scope: Scope, limiter: Limiter, client_key: str) -> str:
        """Return the key of a request, at most 64 bytes; `client_key` is that of its address."""


@runtime_checkable
class MadeOfValue(Protocol):
    """A key that can be made of a value without a request."""

    def of(self, value: str | bytes, /) -> KeyOf:
        """Return the key of a value."""


KeyFunction: TypeAlias = Callable[[HTTPConnection], str | Awaitable[str | None] | None]
"""A function of the user's own. If it returns None, the rule does not count the request."""


class _Everyone:
    """All requests together."""

    identity = "everyone"

    def find(self, scope: Scope, limiter: Limiter, client_key: str) -> str:
        return "everyone"

    def of(self) -> KeyOf:
        """Return the key of all requests, for the methods of a limiter."""
        return KeyOf("everyone", lambda keys: "everyone")

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
            raise ConfigurationError(f"{kind}: fallback must be a key such as client_ip(), not {quoted(fallback)}")
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

    def of(self, value: str | bytes) -> KeyOf:
        """Return the key of a value, for the methods of a limiter: ``limiter.reset(header("X-API-Key").of("k123"))``.

        Args:
            value: The value as the application reads it in a request: as `request.headers`, `request.cookies`,
                `request.query_params` or `request.path_params` has it. Of a header, bytes are those on the wire.

        Raises:
            InvalidKey: No request can have this value.
        """
        encoded = self.encoded(value)
        if not encoded:
            raise invalid(self._kind, _VALUE, value)
        return KeyOf(self._kind, lambda keys: keys.digest(self._kind, encoded))

    def encoded(self, value: str | bytes) -> bytes:
        """Return what `value` returns for a request that has this value."""
        if not isinstance(value, str):
            raise invalid(self._kind, _VALUE, value)
        return value.encode(errors="surrogatepass")


class _Header(Value):
    def __init__(self, name: str, fallback: Key | None) -> None:
        check_header_name(name)
        super().__init__(f"header:{name}", f"header:{name.lower()}", fallback)
        self._name = name.lower().encode()

    def value(self, scope: Scope) -> bytes:
        return next((value for name, value in scope["headers"] if name == self._name), b"")

    def encoded(self, value: str | bytes) -> bytes:
        """See `Value.encoded`; servers take the spaces around a value away."""
        try:
            wire = value.encode("latin-1") if isinstance(value, str) else value
        except UnicodeEncodeError:
            raise invalid(self._kind, _OF_HEADER, value) from None
        if not isinstance(wire, bytes) or _NO_HEADER.search(wire):
            raise invalid(self._kind, _OF_HEADER, value)
        return wire.strip(b" \t")


class _Cookie(Value):
    def __init__(self, name: str, fallback: Key | None) -> None:
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise ConfigurationError(f'cookie: expected a cookie name such as "session", not {quoted(name)}')
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
        return limiter.digest("combined", _joined(found))

    def of(self, *values: str | bytes) -> KeyOf:
        """Return the key of one value for each part, `everyone` left out; see `Value.of`.

        Raises:
            InvalidKey: There are more or fewer values than parts, or no request can have one of them.
        """
        valued = [key for key in self.keys if key is not everyone]
        if len(values) != len(valued):
            expected = f"{len(valued)} values, one for each of {', '.join(key.identity for key in valued)}"
            raise InvalidKey(f"combine: expected {expected}, not {len(values)}", expected)
        given = iter(values)
        parts = [everyone.of() if key is everyone else _part(key, next(given)) for key in self.keys]
        return KeyOf(
            self.identity,
            lambda keys: keys.digest(
                "combined", _joined(part.spell(keys).encode(errors="surrogatepass") for part in parts)
            ),
        )


def _part(key: Key, value: str | bytes) -> KeyOf:
    if not isinstance(key, MadeOfValue):
        raise InvalidKey(f"combine: {key!r} makes no key of a value by itself", "built-in keys in the combination")
    return key.of(value)


def _joined(parts: Iterable[bytes]) -> bytes:
    """Join parts, each behind its length, or "a" and "bc" would meet "ab" and "c"."""
    return b"".join(b"%d:%b" % (len(part), part) for part in parts)


def invalid(kind: str, expected: str, value: object) -> InvalidKey:
    """Return the error for a value that no request can have; it does not repeat what may be a secret."""
    shown = f"{type(value).__name__} of {len(value)}" if isinstance(value, (str, bytes)) else type(value).__name__
    return InvalidKey(f"{kind}: expected {expected}, not this {shown}", expected)


def header(name: str, *, fallback: Key | None = None) -> Value:
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


def cookie(name: str, *, fallback: Key | None = None) -> Value:
    """Count each value of a cookie, digested: the value that `request.cookies[name]` returns.

    Anybody can send any cookie, so verify a session before you count by it, or keep a limit by address beside it.

    Args:
        name: The cookie's name.
        fallback: The key to use where the cookie is missing or empty; by default the middleware's `client`.

    Raises:
        ConfigurationError: The name has a character that cookie names cannot have, or the fallback is no key.
    """
    return _Cookie(name, fallback)


def query(name: str, *, fallback: Key | None = None) -> Value:
    """Count each value of a query parameter, digested: the value that `request.query_params[name]` returns.

    Args:
        name: The parameter's name.
        fallback: The key to use where the parameter is missing or empty; by default the middleware's `client`.

    Raises:
        ConfigurationError: The name is empty, or the fallback is no key.
    """
    return _Query(name, fallback)


def combine(*keys: Key) -> Combined:
    """Count each combination of keys: ``combine(client_ip(), header("X-Tenant"))``.

    Raises:
        ConfigurationError: There are fewer than two keys, or one of them is not built in.
    """
    if len(keys) < 2 or not all(isinstance(key, Key) for key in keys):
        raise ConfigurationError(
            f'combine: expected keys such as client_ip() and header("X-Tenant"), not {quoted(keys)}'
        )
    return Combined(keys)


def check_header_name(name: object) -> str:
    """Return `name` if it can be the name of a header: a token of RFC 9110, section 5.6.2.

    Raises:
        ConfigurationError: It cannot.
    """
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise ConfigurationError(f'header: expected a header name such as "X-API-Key", not {quoted(name)}')
    return name


def check_parameter_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ConfigurationError(
            f'{what}: expected the name of a parameter, for example {what}("tenant"), not {quoted(name)}'
        )
