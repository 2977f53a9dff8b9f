"""Keys: a rule counts requests with equal keys together.

A key is text. The built-in keys read the ASGI scope directly and always return one. If a header is missing, for
example, or a function returns None, the client's address counts, so omitting the header does not bypass limits.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from starlette.datastructures import QueryParams
from starlette.requests import HTTPConnection
from starlette.types import Scope

from ..core.errors import ConfigurationError, InvalidKey, quoted
from ..core.logs import Throttle, logger
from ..core.options import options_checked
from ..limiter import Limiter
from ..limiter.keys import KeyOf
from .paths import spelled_value
from .spellings import NORMAL_FORMS, TOKEN_BEGINS, token_as_read, unquoted

_OF_HEADER: Final = "a header's value that is not empty, as one line of Latin-1 text or as the bytes on the wire"
_NO_HEADER: Final = re.compile(rb"[\r\n\0]")
_QUOTE: Final = b"\1"
"""Stands for a quote in a field; no field contains it."""
_NAMELESS: Final = (
    "key `user`: a user of type %s has none of %s, so the client's address is counted; give it one of them, or count "
    "by a function such as key=lambda request: f'user:{request.user.email.lower()}'"
)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Key:
    """A key that reads the ASGI scope.

    Attributes:
        identity: Its source, for display.
        shared: Whether many clients have it in common, so that no ban by it is possible.
        keys: The keys that it combines.
    """

    identity = ""
    shared = False
    keys: Sequence[Key] = ()

    def __repr__(self) -> str:
        return f"<key {self.identity}>"

    @abstractmethod
    def read(self, scope: Scope, limiter: Limiter, client_key: str) -> str:
        """Return the key of a request, at most 64 bytes; `client_key` is the key of its address."""


KeyFunction: TypeAlias = Callable[[Any], str | Awaitable[str | None] | None]
"""A user's function of the request. Where it returns None, the client's address counts."""


class KeyCondition(NamedTuple):
    """A condition for `Rule(when=...)` built from a key, such as ``mcp_tool("export", ...).is_in("export")``.

    Attributes:
        identity: A description.
        is_true: Returns whether the condition is true for a request, given its scope and the key of its address; None
            if unknown, in which case limits and blocks apply and exemptions do not.
    """

    identity: str
    is_true: Callable[[Scope, str], bool | None]

    def __repr__(self) -> str:
        return f"<condition {self.identity}>"


class _Everyone(Key):
    """All requests together."""

    identity = "everyone"
    shared = True

    def read(self, scope: Scope, limiter: Limiter, client_key: str) -> str:
        return "everyone"


everyone: Final = _Everyone()
"""Count all requests together, for a limit on the whole service."""


class Value(Key):
    """A key by a value that the client sends, digested; if it is missing or empty, the client's address counts.

    Args:
        kind: The kind of the value, for display.
        read: Returns the value of a request, empty if there is none.
        encode: Returns the same bytes for a value as the application reads it; empty or raises if there are none.
        expected: Describes such a value.

    Attributes:
        parameter: The name of the path parameter that it reads; empty if it reads none.
    """

    parameter = ""

    def __init__(
        self,
        kind: str,
        read: Callable[[Scope], bytes],
        encode: Callable[[Any], bytes],
        expected: str = "text that is not empty",
    ) -> None:
        self.identity = kind
        self._read = read
        self._encode = encode
        self._expected = expected

    def read(self, scope: Scope, limiter: Limiter, client_key: str) -> str:
        value = self._read(scope)
        if value[:2] == TOKEN_BEGINS:
            value = token_as_read(value)
        if not value:
            return client_key
        return limiter.digest(self.identity, value)

    def of(self, value: str | bytes) -> KeyOf:
        """Return the key of a value, for the methods of a limiter: ``limiter.reset(header("X-API-Key").of("k123"))``.

        Args:
            value: The value as the application reads it from `request.headers`, `request.cookies`,
                `request.query_params` or `request.path_params`; for a header, also the bytes on the wire.

        Raises:
            InvalidKey: No request can have this value.
        """
        try:
            encoded = self._encode(value)
        except (AttributeError, TypeError, ValueError):
            encoded = b""
        if not encoded:
            kind = type(value).__name__  # not the value, which may be a secret
            raise InvalidKey(f"{self.identity}: expected {self._expected}, not this {kind}")
        return KeyOf(self.identity, token_as_read(encoded))


class Combined(Key):
    """A combination of keys; created by `combine`."""

    def __init__(self, keys: tuple[Key, ...]) -> None:
        self.keys = keys
        self.identity = "+".join(key.identity for key in keys)

    def read(self, scope: Scope, limiter: Limiter, client_key: str) -> str:
        parts = [utf8(key.read(scope, limiter, client_key)) for key in self.keys]
        # With the length of each: otherwise "a" and "bc" would equal "ab" and "c".
        return limiter.digest("combined", b"".join(b"%d:%b" % (len(part), part) for part in parts))


def utf8(text: str) -> bytes:
    """Encode a text that may contain lone surrogates."""
    return text.encode(errors="surrogatepass")


def header(name: str) -> Value:
    """Count each value of a request header, for example an API key.

    The value is digested and never stored. If a header is repeated, its first value counts, as
    `request.headers[name]` returns it. A missing or empty header falls back to the client's address.

    Spellings that authentication reads alike are one value: blanks around a value do not count; for ``Authorization``
    and ``Proxy-Authorization`` neither do the case of the scheme, the number of blanks and the encoding of Basic; for
    ``Host`` neither do case, port and a final dot; for a JWT neither does the spelling of its signature. Any other
    value counts by its text, with its case.

    Args:
        name: The header's name, case-insensitive and displayed in lower case: ``"X-API-Key"``.

    Raises:
        ConfigurationError: The name has a character that is not allowed in header names.
    """
    field_name = check_token("header", name, "X-API-Key").lower()
    wanted = field_name.encode()
    normal_form = NORMAL_FORMS.get(field_name, bytes)

    def first(scope: Scope) -> bytes:
        for field, value in scope["headers"]:
            if field == wanted:
                return normal_form(bytes(value).strip(b" \t"))  # Starlette reads a bytearray as well
        return b""

    def encode(value: str | bytes) -> bytes:
        if isinstance(value, str):
            value = value.encode("latin-1")
        if _NO_HEADER.search(value):
            return b""
        return first({"headers": [(wanted, value)]})

    return Value(f"header:{field_name}", first, encode, _OF_HEADER)


def cookie(name: str) -> Value:
    """Count each value of a cookie, digested: the value that `request.cookies[name]` returns.

    Clients can send any cookie, so count by cookies that the application verifies before, or add a limit by address.
    A session cookie is no key: it is signed again whenever the session changes, and each new text is a new client.
    Count the session's user.

    Args:
        name: The cookie's name.

    Raises:
        ConfigurationError: The name has a character that is not allowed in cookie names.
    """
    check_token("cookie", name, "device")

    def read(scope: Scope) -> bytes:
        # Starlette finds the cookie, but sees no quotes: Python before 3.12.6 unquotes in quadratic time.
        fields: list[tuple[bytes, bytes]] = []
        for field, value in scope["headers"]:
            if field == b"cookie":
                fields.append((field, bytes(value).replace(b'"', _QUOTE)))
        cookies = HTTPConnection({"type": "http", "headers": fields}).cookies
        return utf8(unquoted(cookies.get(name, "").replace(_QUOTE.decode(), '"')))

    return Value(f"cookie:{name}", read, utf8)


@options_checked
def query(name: str) -> Value:
    """Count each value of a query parameter, digested: the value that `request.query_params[name]` returns.

    Args:
        name: The parameter's name.

    Raises:
        ConfigurationError: The name is no text.
    """

    def read(scope: Scope) -> bytes:
        text = scope.get("query_string") or b""
        if not isinstance(text, str):
            text = bytes(text)
        return utf8(QueryParams(text).get(name, ""))

    return Value(f"query:{name}", read, utf8)


@options_checked
def path_param(name: str) -> Value:
    """Count each value of a path parameter, digested: ``Rule("/tenants/{tenant}/jobs", key=path_param("tenant"))``.

    The value is the result of the path's convertor. Write ``{id:int}`` in both the rule and the route; otherwise 1 and
    01 are two clients for the rule but one for an endpoint that parses the number itself.

    Args:
        name: The parameter's name, as in the rule's path.

    Raises:
        ConfigurationError: The name is no text.
    """

    def read(scope: Scope) -> bytes:
        value = scope.get("path_params", {}).get(name)
        if value is None:
            return b""
        return utf8(spelled_value(value))

    def encode(value: object) -> bytes:
        return read({"path_params": {name: value}})

    key = Value(f"path:{name}", read, encode)
    key.parameter = name
    key.shared = True
    return key


SENT_BY_NAME: Final = {"header": header, "cookie": cookie, "query": query}
"""The keys by named values that clients send, under their names in configuration, commands and the dashboard."""


def combine(*keys: Key) -> Combined:
    """Count each combination of built-in keys: ``combine(client_ip(), header("X-Tenant"))``.

    Raises:
        ConfigurationError: There are fewer than two keys, or one is not a built-in key.
    """
    if len(keys) < 2 or not all(isinstance(key, Key) for key in keys):
        raise ConfigurationError(
            f'expected keys such as client_ip() and header("X-Tenant"), not {quoted(keys)}; a function returns all '
            "parts itself",
            "combine",
        )
    return Combined(keys)


def check_token(what: str, name: object, example: str) -> str:
    """Return the name of a header or a cookie after checking that it is a token of RFC 9110, section 5.6.2.

    Raises:
        ConfigurationError: It is not a token.
    """
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise ConfigurationError(f'expected a {what} name such as "{example}", not {quoted(name)}', what)
    return name


def parts_of(key: object) -> Iterator[object]:
    """Yield a key and its parts, recursively; a function or a condition has no parts."""
    yield key
    if isinstance(key, Key):
        for part in key.keys:
            yield from parts_of(part)


def path_parameters(*keys: object) -> list[str]:
    """Return the names of the path parameters by which keys count."""
    return [part.parameter for key in keys for part in parts_of(key) if isinstance(part, Value) and part.parameter]


class _User(Key):
    """The authenticated user; see `user`."""

    identity = "user"

    def __init__(self) -> None:
        self._throttle = Throttle()

    def read(self, scope: Scope, limiter: Limiter, client_key: str) -> str:
        name = self.name_in(scope)
        if name is None:
            return client_key
        return limiter.key_for(f"user:{name}")

    def name_in(self, scope: Scope) -> str | None:
        """Return the name or id of the user of a request; None if nobody is logged in, or it cannot be read."""
        try:
            person = person_of(scope)
            # No user: an empty text or mapping, or one of Starlette's whose `is_authenticated` is False.
            if person is None or (isinstance(person, (str, Mapping)) and not person):
                return None
            if getattr(person, "is_authenticated", True) is False:
                return None
            name = _name_of(person)
            kind = type(person).__qualname__
            if not name and self._throttle.left_out(kind, monotonic()) is not None:
                logger.warning(_NAMELESS, kind, ", ".join(_USER_ATTRIBUTES))
        except Exception:
            # A user object may query a database; its failure neither bypasses the limit nor causes a 500.
            if self._throttle.left_out(None, monotonic()) is not None:
                logger.exception("key `user`: reading the user failed, so the client's address is counted")
            return None
        return name or None


user: Final = _User()
"""Count each authenticated user.

The user is `request.user`, which Starlette's `AuthenticationMiddleware` sets (add it outside `RateLimitMiddleware`),
else ``request.state.user``, which for limits at FastAPI endpoints a dependency may set. Its ``identity``, ``id``,
``display_name``, ``username`` or ``sub`` counts, the first that there is, as the application spells it:
``Ann@example.org`` and ``ann@example.org`` are two. Without a user, the client's address counts, and a ban policy does
not strike.
"""


def person_of(scope: Scope) -> object:
    """Return the user object of a request; None if nothing has set one."""
    person = scope.get("user")
    if person is None:
        return scope.get("state", {}).get("user")
    return person


_USER_ATTRIBUTES: Final = ("identity", "id", "display_name", "username", "sub")
"""The attributes, or the items of a mapping, that name a user, in this order."""


def _name_of(person: object) -> str:
    """Return the name or id of a user who is logged in; empty if the user has none."""
    if isinstance(person, (str, int, UUID)):
        return str(person)
    for attribute in _USER_ATTRIBUTES:
        try:
            if isinstance(person, Mapping):
                name = person.get(attribute)
            else:
                name = getattr(person, attribute, None)
        except NotImplementedError:  # Starlette's BaseUser raises this for properties that a subclass does not define
            continue
        if name is not None and name != "":
            return str(name)
    return ""
