"""Determines the client's address, also behind proxies.

A client can send any header, but it cannot change the entries that *your* proxies append to it. The socket's peer is
therefore the client, unless it is a trusted proxy. In that case the header is read from the right, past trusted
entries, to the first untrusted one; the leftmost entry alone proves nothing. An invalid entry ends the walk at the last
trusted hop. If all entries are trusted, the leftmost is the client. The parsers also start at the right end, so an
unclosed quote from the client cannot hide the entries that proxies have appended.

::

    X-Forwarded-For: 6.6.6.6, 203.0.113.9, 10.0.0.7        peer 10.0.0.1, trusted 10.0.0.0/8
                     written  ^ the client <- trusted  <-  trusted
                     by the client
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

from starlette.types import Scope

from ..core.addresses import (
    IPV6_PREFIX,
    Address,
    address_key,
    format_network,
    is_unspecified,
    network_of,
    parse_address,
    prefix_length,
)
from ..core.arguments import check_whole
from ..core.errors import ConfigurationError
from ..core.networks import AnyNetworks, Networks, networks_of
from ..core.options import options_checked
from ..limiter import MAX_KEY_BYTES, Limiter
from .headers import field_value
from .keys import Key, check_token

UNKNOWN_PEER: Final = "unknown-peer"
"""The key of all requests for which the server names no peer, for example on a Unix socket."""
LOCATED_KEY: Final = "slidegate.located"
"""The scope key of the addresses that were determined at the entrance, by key; `KeyedClients` writes it."""
UNIX: Final = "unix"
"""The entry among trusted proxies that represents peers without an address."""

MAX_HOPS: Final = 64

# More lenient than RFC 7239: many proxies omit the quotes around IPv6 addresses and ports.
_PAIR = re.compile(r"""[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=([^\s;,"\\]+|"(?:[^"\\]|\\.)*")[ \t]*""", re.DOTALL)
_ELEMENT = re.compile(f"{_PAIR.pattern}(?:;{_PAIR.pattern})*", re.DOTALL)
_MARK = re.compile(r',|(?<!\\)(?:\\\\)*"')
"""A comma, or a quote that no backslash escapes."""
_ANYBODY: Final = Networks(["0.0.0.0/0", "::/0"])
_NODE = re.compile(r"\[(?P<v6>[^\]]*)\](?::[0-9]*)?|(?P<v4>[^:]*)(?::[0-9]*)?|(?P<bare>.*)", re.DOTALL)


class ClientAddress(Key):
    """A key that determines the client's address; created by `client_ip`.

    Attributes:
        trusted: Whether any proxy is trusted.
        prefixes: The prefix lengths that identify one client, by IP version.
        networks: The networks of trusted proxies.
        header: The lower-case name of the header in which proxies name the client.
    """

    def __init__(self, networks: Networks, unix: bool, hops: int, header: str, prefixes: dict[int, int]) -> None:
        self.networks = networks
        self._unix = unix
        self._hops = hops
        self.header = header.lower().encode()
        self._split = split_list
        if self.header == b"forwarded":
            self._split = split_forwarded
        self.prefixes = prefixes
        self.trusted = bool(hops or unix or len(networks))
        self.identity = f"client/{prefixes[4]}/{prefixes[6]}"

    def read(self, scope: Scope, limiter: Limiter, client_key: str) -> str:
        """See `Key.read`. Without trusted proxies, the middleware's client is truncated to the prefixes of this key."""
        if not self.trusted:
            return self.truncated(client_key)
        located: str | None = scope.get(LOCATED_KEY, {}).get(self)
        if located is None:
            located, _ = self.locate(scope)
        return located

    def truncated(self, key: str) -> str:
        """Return the key of the client that has an address or is within a network; any other key unchanged."""
        network = network_of(key)
        if network is None:
            return key
        version, first, last = network
        return format_network(version, first, min(prefix_length(version, first, last), self.prefixes[version]))

    def locate(self, scope: Scope) -> tuple[str, Address | None]:
        """Return the client's key, and its address or None."""
        host = peer_of(scope) or ""
        # A server that reads the header itself may leave port, brackets and quotes around the address.
        peer = parse_address(host) or read_node(host)
        # Only a peer on a Unix socket is trusted without an address.
        is_trusted = self._unix
        if peer is not None:
            is_trusted = self.networks.covers(*peer)
        address = peer
        nodes = self._split(field_value(scope, self.header))
        if self._hops:
            address = count_back(nodes, self._hops, peer)
        elif is_trusted and not may_be_gone(scope):  # else a client could reset its connection to be trusted as Unix
            address = walk(nodes, self.networks, peer)
        if address is None and host:
            name = f"peer:{host}".encode(errors="backslashreplace")
            return name[:MAX_KEY_BYTES].decode(errors="ignore"), None
        if address is None or is_unspecified(address):
            return UNKNOWN_PEER, None
        return address_key(*address, self.prefixes[4], self.prefixes[6]), address


def may_be_gone(scope: Scope) -> bool:
    """Return whether the connection may have been reset before the server queried its peer.

    uvicorn queries the peer after accepting a connection. After a reset this fails, and it continues with
    ``client=None``. A server on TCP provides a port in ``server``, a server on a Unix socket does not. hypercorn drops
    such connections, and granian always knows the peer. Serverless adapters provide a port but never a peer, so the
    result means nothing for them.
    """
    if scope.get("client") is not None:
        return False
    server = scope.get("server")
    return isinstance(server, Sequence) and len(server) > 1 and server[1] is not None


def peer_of(scope: Scope) -> str | None:
    """Return the host of the peer; None if the server names none, or something else than text."""
    try:
        host = scope["client"][0]
    except (TypeError, LookupError):
        return None
    if type(host) is not str:
        return None
    return host


@options_checked
def client_ip(
    trusted: AnyNetworks | int = (),
    *,
    header: str = "x-forwarded-for",
    ipv4_prefix: int = 32,
    ipv6_prefix: int = IPV6_PREFIX,
) -> ClientAddress:
    """Count each client address.

    The address is the socket's peer, unless the peer is a trusted proxy. In that case the header's entries (all its
    lines) are read from the right, past trusted networks, to the first untrusted one. An invalid entry ends the walk at
    the last trusted hop. As the key of a rule, without `trusted`, it is the middleware's `client`, truncated to the
    prefixes given here. IPv4-mapped IPv6 addresses count as IPv4. A peer that is not an address (a test client) is
    counted by name.

    Args:
        trusted: The networks of your proxies, with ``"unix"`` for a Unix socket; or how many proxies there are. With a
            number, which suits proxies of unknown addresses, the client is that many entries from the right.
        header: ``"x-forwarded-for"``, ``"forwarded"`` (RFC 7239), ``"x-real-ip"`` or whatever your proxy sets.
        ipv4_prefix: The prefix length of one IPv4 client, 8 to 32.
        ipv6_prefix: The prefix length of one IPv6 client, 32 to 128. One customer usually has a /64.

    Raises:
        ConfigurationError: A network is invalid, the networks cover most addresses, or a value is out of range.
    """
    hops = 0
    if isinstance(trusted, int):
        hops = check_whole(trusted, 1, MAX_HOPS, "trusted", "the number of your proxies")
        trusted = ()
    is_unix = UNIX in trusted
    if not isinstance(trusted, Networks):
        trusted = [entry for entry in trusted if entry != UNIX]
    networks = networks_of(trusted, "trusted")
    if networks.covers_most():
        raise ConfigurationError(
            "these networks cover most addresses, so any client could forge its address; list your proxies, "
            'for example client_ip(trusted=["10.0.0.0/8"]), or the number of proxies, client_ip(trusted=1)',
            "trusted",
        )
    check_whole(ipv4_prefix, 8, 32, "ipv4_prefix", "for example 32")
    check_whole(ipv6_prefix, 32, 128, "ipv6_prefix", "for example 128")
    name = check_token("header", header, "X-Forwarded-For")
    return ClientAddress(networks, is_unix, hops, name, {4: ipv4_prefix, 6: ipv6_prefix})


def walk(nodes: Iterator[str], trusted: Networks, peer: Address | None) -> Address | None:
    """Return the first untrusted address from the right, else the last trusted one."""
    last = peer
    for node in nodes:
        address = read_node(node)
        if address is None:
            return last
        if not trusted.covers(*address):
            return address
        last = address
    return last


def count_back(nodes: Iterator[str], hops: int, peer: Address | None) -> Address | None:
    """Return the address `hops` entries from the right; the peer if there are fewer, the hop before an invalid one."""
    entries = [*islice(nodes, hops)]
    if len(entries) < hops:
        return peer
    return walk(iter(entries), _ANYBODY, peer)


def split_list(value: str) -> Iterator[str]:
    """Yield the non-empty entries of a list like X-Forwarded-For from the right (RFC 9110, section 5.6.1)."""
    for entry in reversed(value.split(",")):
        entry = entry.strip(" \t")
        if entry:
            yield entry


def split_forwarded(value: str) -> Iterator[str]:
    """Yield the `for` node of each element of a Forwarded field (RFC 7239, section 4), from the right.

    An element that is malformed or does not have exactly one `for` yields an empty string.
    """
    for element in _elements(value):
        if element.strip(" \t"):
            yield _for_node(element)


def _elements(value: str) -> Iterator[str]:
    """Yield what stands between commas outside of quotes, from the right."""
    end = len(value)
    is_in_quotes = False
    for mark in reversed([*_MARK.finditer(value)]):
        if mark[0] != ",":
            is_in_quotes = not is_in_quotes
        elif not is_in_quotes:
            yield value[mark.end() : end]
            end = mark.start()
    yield value[:end]


def _for_node(element: str) -> str:
    if not _ELEMENT.fullmatch(element):
        return ""
    nodes = [value for name, value in _PAIR.findall(element) if name.lower() == "for"]
    if len(nodes) != 1:
        return ""
    node: str = nodes[0]
    if node.startswith('"'):
        return re.sub(r"\\(.)", r"\1", node[1:-1], flags=re.DOTALL)
    return node


def read_node(text: str) -> Address | None:
    """Parse an address as proxies write it, optionally with port, brackets or quotes; None for anything else.

    Returns None for ``0.0.0.0`` and ``::`` as well, which identify no host (RFC 6890).
    """
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1]
    match: Any = _NODE.fullmatch(text)  # any text is one
    bare = match["v6"] or match["v4"] or match["bare"] or ""
    if match["v6"] is not None and ":" not in bare:
        return None  # only IPv6 addresses are written in brackets
    address = parse_address(bare)
    if address is None or is_unspecified(address):
        return None
    return address
