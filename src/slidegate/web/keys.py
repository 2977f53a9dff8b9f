"""Whom a rule counts.

A key is text. The built-in ones read the ASGI scope directly and always name somebody: where what they look for is
missing, they fall back to the client's address, so leaving a header out is no way past the gate.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Final, Protocol, TypeAlias, runtime_checkable

from starlette.requests import HTTPConnection
from starlette.types import Scope

from ..core.errors import ConfigurationError
from ..core.networks import Address, parse_address
from ..limiter import IPV6_PREFIX, MAX_KEY_BYTES, Limiter, address_key

UNKNOWN_PEER: Final = "unknown-peer"
"""The key of all requests whose server names no peer, for example behind a Unix socket."""

_MEMO: Final = 4_096

logger = logging.getLogger("slidegate")


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


class ClientAddress:
    """The address of the socket's peer, cut to a prefix; made by `client_ip`."""

    def __init__(self, ipv4_prefix: int, ipv6_prefix: int) -> None:
        _check_prefix("ipv4_prefix", ipv4_prefix, 8, 32)
        _check_prefix("ipv6_prefix", ipv6_prefix, 32, 128)
        if ipv6_prefix > 64:
            logger.warning(
                "ipv6_prefix=%d: one customer usually has a whole /64 and can use any number of its addresses",
                ipv6_prefix,
            )
        self.ipv4_prefix = ipv4_prefix
        self.ipv6_prefix = ipv6_prefix
        self.identity = f"client/{ipv4_prefix}/{ipv6_prefix}"
        self._known: dict[str, tuple[str, Address | None]] = {}

    def find(self, scope: Scope, limiter: Limiter, client_key: str) -> str:
        """See `Key.find`."""
        return self.locate(scope)[0]

    def locate(self, scope: Scope) -> tuple[str, Address | None]:
        """Return the client's key and its address, None where the peer has none."""
        client = scope.get("client")
        host = client[0] if client else ""
        return self._known.get(host) or self._learn(host)

    def _learn(self, host: str) -> tuple[str, Address | None]:
        address = parse_address(host)
        if address is not None:
            key = address_key(*address, self.ipv4_prefix, self.ipv6_prefix)
        elif host:
            key = f"peer:{host}"
            if len(key.encode(errors="surrogatepass")) > MAX_KEY_BYTES:
                key = f"peer#{blake2b(key.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"
        else:
            key = UNKNOWN_PEER
            logger.warning("the server names no peer: all such requests are one client, %r", UNKNOWN_PEER)
        if len(self._known) >= _MEMO:
            self._known.clear()
        self._known[host] = key, address
        return key, address


def client_ip(*, ipv4_prefix: int = 32, ipv6_prefix: int = IPV6_PREFIX) -> ClientAddress:
    """Count each client address: the socket's peer.

    IPv4 mapped into IPv6 is IPv4. A peer that is no address (a test client, a Unix socket) is a client by its name.

    Args:
        ipv4_prefix: Bits of an IPv4 address that make one client, 8 to 32.
        ipv6_prefix: Bits of an IPv6 address that make one client, 32 to 128; above 64 is a warning.

    Raises:
        ConfigurationError: A prefix length is outside its range.
    """
    return ClientAddress(ipv4_prefix, ipv6_prefix)


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
        if (
            not isinstance(name, str)
            or not name
            or not all("!" <= c <= "~" and c not in '"(),/:;<=>?@[\\]{}' for c in name)
        ):
            raise ConfigurationError(f'header: expected a header name such as "X-API-Key", not {name!r}')
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


def _check_prefix(what: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigurationError(
            f"{what}: expected a whole number from {low} to {high}, for example {high}, not {value!r}"
        )
