"""The clients of requests, each determined once: after `Clients.of` no part reads the client from a scope.

Middlewares within may change the scope, as those do that read X-Forwarded-For themselves. The same client is counted,
struck, reported, and counted by limits at endpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from starlette.types import Scope

from ..core.addresses import Address, AddressRange
from ..core.bans.ban import BanSubject
from ..core.bans.policy import PRIVATE
from ..core.decision import Decision, Reason
from ..core.memo import MANY, remember
from ..core.networks import Networks
from ..limiter.bans import FollowedFile
from .client_ip import LOCATED_KEY, ClientAddress, may_be_gone, peer_of
from .headers import field_value

KEY: Final = "slidegate"
"""The scope key of the innermost visit of a request."""
_ALLOWLISTED: Final = Decision(True, Reason.ALLOWLISTED)
GONE: Final = Decision(False, Reason.BLOCKED, by="gone")
"""The verdict where the peer is unknown because its connection was reset."""


@dataclass(slots=True, eq=False)
class Client:
    """What all requests of a client have in common.

    Attributes:
        key: Its key.
        subjects: The keys and the address whose bans apply to it.
        verdict: The decision about all its requests, if it is on a list.
        address: Its whole address; None if it has none.
    """

    key: str
    subjects: tuple[BanSubject, ...]
    verdict: Decision | None
    address: Address | None


class Blocklist:
    """The networks that a middleware refuses.

    Lists of others contain private networks (those that must not be routed), whose addresses here are probes, gateways,
    the proxies and the neighbours. A list from a file spares them, unless it says ``private=True``.

    Args:
        trusted: Those of trusted proxies.
    """

    def __init__(self, networks: Networks, trusted: Networks) -> None:
        self._networks = networks
        self._spared = Networks()
        self._name = "blocklist"
        if networks.file is not None:
            self._name = networks.file.name
            if not networks.file.private:
                self._spared = Networks.of_ranges([*PRIVATE.ranges(), *trusted.ranges()])

    def find(self, version: int, value: int) -> str | None:
        """Return the name of the list if it refuses an address, ``blocklist`` without one; None if not."""
        if self._networks.covers(version, value) and not self._spared.covers(version, value):
            return self._name
        return None

    def ranges(self) -> Iterator[AddressRange]:
        """Return the ranges that it refuses."""
        return self._networks.ranges_without(self._spared)


class AnyClients(Protocol):
    """Determines the clients of requests."""

    def of(self, scope: Scope) -> Client:
        """Return the client of a request."""


class Clients:
    """Determines the clients of requests.

    Args:
        address: How the address is determined: `client_ip()`.
        blocklist: The networks that are refused.
        allowlist: The networks that are neither refused nor counted.
        subjects_of: Returns the subjects whose bans apply, given a key and an address.
        has_policies: Whether there are ban policies.
    """

    def __init__(
        self,
        address: ClientAddress,
        blocklist: Blocklist | None,
        allowlist: Networks | None,
        subjects_of: Callable[[str, Address | None], tuple[BanSubject, ...]],
        has_policies: bool,
    ) -> None:
        self.address = address
        self._blocklist = blocklist
        self._allowlist = allowlist
        self._subjects_of = subjects_of
        self._needs_peers = blocklist is not None or has_policies
        self._peers_named = False
        self._clients: dict[object, Client] = {}

    def of(self, scope: Scope) -> Client:
        """Return the client of a request."""
        try:
            return self._clients[scope["client"][0]]
        except (TypeError, LookupError):  # a new one, no peer, or none that is a text
            return self._determine(scope, peer_of(scope))

    def forget(self) -> None:
        """Determine all clients again, because a list has changed."""
        # A new dict: what another thread determines meanwhile, perhaps by the list of before, goes into the old one.
        self._clients = {}

    def _determine(self, scope: Scope, memo_key: object) -> Client:
        """Determine the client of a request, and remember it.

        Args:
            memo_key: What alone decides which client it is; None if that is unknown, and nothing is remembered.
        """
        clients = self._clients  # before any list is read
        self._peers_named = self._peers_named or bool(peer_of(scope))
        key, address = self.address.locate(scope)
        client = Client(key, self._subjects_of(key, address), self._judge(scope, address), address)
        if memo_key is not None:
            remember(clients, memo_key, client, MANY)
        return client

    def _judge(self, scope: Scope, address: Address | None) -> Decision | None:
        """Return the decision about all requests of a client; None if its bans and limits decide."""
        # A listed or banned client could otherwise evade its list or ban. A server that never names peers is another.
        if self._needs_peers and self._peers_named and may_be_gone(scope):
            return GONE
        if address is None:
            return None
        if self._allowlist is not None and self._allowlist.covers(*address):
            return _ALLOWLISTED
        if self._blocklist is None:
            return None
        name = self._blocklist.find(*address)
        if name is None:
            return None
        return Decision(False, Reason.BLOCKED, by=name)


class ClientsBehindProxies(Clients):
    """The same where trusted proxies name their clients in a header."""

    def of(self, scope: Scope) -> Client:
        header = self.address.header
        forwarded: Any = None
        for name, value in scope["headers"]:  # faster than to make a dict of them
            if name == header:
                if forwarded is not None:
                    forwarded = field_value(scope, header).encode("latin-1")  # several lines, which are one list
                    break
                forwarded = value
        try:
            return self._clients[scope["client"][0], forwarded]
        except (TypeError, LookupError):  # a new one, no peer, or none that is a text
            if forwarded is not None:
                forwarded = bytes(forwarded)  # Starlette reads a bytearray as well
            memo_key = self._memo_key(scope, forwarded)
        client = self._clients.get(memo_key)
        if client is None:
            client = self._determine(scope, memo_key)
        return client

    def _memo_key(self, scope: Scope, forwarded: object) -> object:
        """Return what decides which client a request is from: the peer, and the value of the header; None if unknown.

        Requests without a peer come from the trusted proxy on a Unix socket, or they are refused, which depends on what
        this server has done before.
        """
        host = peer_of(scope)
        if host is not None:
            return host, forwarded
        if scope.get("client") is not None or may_be_gone(scope):
            return None
        return None, forwarded


class FollowingClients:
    """The clients while files of lists and networks are followed."""

    def __init__(self, clients: Clients, files: Sequence[FollowedFile]) -> None:
        self._clients = clients
        self._files = files
        self._generation = 0

    def of(self, scope: Scope) -> Client:
        for file in self._files:
            file.check_if_due()
        generation = sum([file.generation for file in self._files])
        if generation != self._generation:
            self._clients.forget()
            self._generation = generation  # last: no thread goes on before they are forgotten
        return self._clients.of(scope)


class KeyedClients:
    """The clients where policies ban further keys of a request, which are read when it arrives.

    Args:
        with_keys: Returns the subjects of a client and these keys, given a scope and the client's own key.
        addresses: Those of them, and of their parts, that read trusted proxies themselves.
    """

    def __init__(
        self,
        clients: AnyClients,
        with_keys: Callable[[tuple[BanSubject, ...], Scope, str], tuple[BanSubject, ...]],
        addresses: Sequence[ClientAddress],
    ) -> None:
        self._clients = clients
        self._with_keys = with_keys
        self._addresses = addresses

    def of(self, scope: Scope) -> Client:
        client = self._clients.of(scope)
        if self._addresses:
            # Applications may change the peer and the fields of proxies, so that the scope keeps what they are now.
            located = {key: key.locate(scope)[0] for key in self._addresses}
            scope[LOCATED_KEY] = {**located, **scope.get(LOCATED_KEY, {})}
        subjects = self._with_keys(client.subjects, scope, client.key)
        return Client(client.key, subjects, client.verdict, client.address)
