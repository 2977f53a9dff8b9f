"""Determines the clients of requests, each once: its key, its address, and whether it is on a list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from starlette.types import Scope

from ..core.addresses import Address
from ..core.bans.ban import BanSubject
from ..core.decision import Decision, Reason
from ..core.memo import MEMO_BYTES, key_bytes, remember
from ..limiter.operators import NetworkLookup
from .bans import BanSignals
from .client_ip import ClientAddress, host_of, may_be_gone
from .headers import field_value
from .lists import AnyList, FollowedList

_ALLOWLISTED: Final = Decision(True, Reason.ALLOWLISTED)
_GONE: Final = Decision(False, Reason.BLOCKED, by="gone")


class Client(NamedTuple):
    """What all requests of a client have in common.

    Attributes:
        who: What identifies it in a request: the peer and, behind trusted proxies, the value of their header. None if
            the server names no peer, or if it is too long to be remembered.
        key: Its key.
        address: Its address, if it has one.
        subjects: The keys and the address whose bans apply to it.
        verdict: The decision about all its requests, if it is on a list.
    """

    who: Any
    key: str
    address: Address | None
    subjects: Sequence[BanSubject]
    verdict: Decision | None


class Clients:
    """Determines the clients of requests, each once.

    Args:
        client: Determines the client's address.
        signals: The ban policies.
        lists: Networks refused before anything is counted (``blocklist``), and let through (``allowlist``).
        files: The files behind these lists, and the databases of networks.
        changed: Called when one of the files was read again.

    Attributes:
        who: Returns what identifies the client of a request; None if that is not known.
    """

    def __init__(
        self,
        client: ClientAddress,
        signals: BanSignals,
        lists: Mapping[str, AnyList | None],
        files: Sequence[FollowedList | NetworkLookup],
        changed: Callable[[], object],
    ) -> None:
        who = _peer_and_header(client.header) if client.trusted else _peer
        self.who: Callable[[Scope], Any] = self._checking_files(who) if files else who
        self._who = who
        self._client = client
        self._signals = signals
        self._blocklist = lists["blocklist"]
        self._allowlist = lists["allowlist"]
        self._files = files
        self._changed = changed
        self._read = 0
        self._known: dict[object, Client] = {}
        self._needs_peers = self._blocklist is not None or bool(signals.policies)
        self._peers_named = False

    def find(self, scope: Scope) -> Client:
        """Return the client of a request."""
        who = self._who(scope)
        client = self._known.get(who)
        if client is None:
            client = self._identify(who if key_bytes(who) <= MEMO_BYTES else None, scope)
            if client.who is not None:
                remember(self._known, who, client)
        return client

    def is_gone(self, scope: Scope) -> bool:
        """Return whether a request is refused because its connection was reset, so that its peer is unknown.

        Applies only if this server has named peers before, and only with a blocklist or bans: a listed or banned client
        could otherwise evade them.
        """
        return self._needs_peers and self._peers_named and may_be_gone(scope)

    def _identify(self, who: object, scope: Scope) -> Client:
        """Determine the client of a request, and whether it is on a list."""
        key, address = self._client.locate(scope)
        verdict: Decision | None = None
        self._peers_named = self._peers_named or bool(host_of(scope))
        if self.is_gone(scope):
            verdict = _GONE
        elif address is not None and self._allowlist is not None and self._allowlist.covers(*address):
            verdict = _ALLOWLISTED
        elif address is not None and self._blocklist is not None:
            name = self._blocklist.find(*address)
            verdict = None if name is None else Decision(False, Reason.BLOCKED, by=name)
        return Client(who, key, address, self._signals.own_subjects(key, address), verdict)

    def _checking_files(self, who: Callable[[Scope], Any]) -> Callable[[Scope], Any]:
        """Return a function that checks the files for changes, if that is due, before it calls `who`."""

        def checked(scope: Scope) -> Any:
            for files in self._files:
                files.look_when_due()
            read = sum([files.generation for files in self._files])
            if read != self._read:
                self._read = read
                self._known.clear()
                self._changed()
            return who(scope)

        return checked


def _peer(scope: Scope) -> str | None:
    """Return the host of the peer; None if it is no text, which no server sends."""
    peer = scope.get("client")
    try:
        host = peer[0] if peer else None
    except (TypeError, LookupError):
        return None
    return host if type(host) is str else None


def _peer_and_header(header: bytes) -> Callable[[Scope], Any]:
    """Return a function that returns the host of the peer, and the value of the header of trusted proxies."""

    def peer_and_value(scope: Scope) -> tuple[str, Any] | None:
        peer, found = scope.get("client"), None
        try:
            host = peer[0] if peer else None
        except (TypeError, LookupError):
            return None
        if type(host) is not str:
            return None
        for name, value in scope["headers"]:  # faster than to make a dict of them
            if name == header:
                if found is not None:
                    return host, field_value(scope, header)  # several lines, which are one list
                found = value
        return host, found

    return peer_and_value
