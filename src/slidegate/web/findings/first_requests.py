"""Checks of the first requests, for settings that only requests show to be mistakes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from starlette.types import Scope

from ...core.bans.policy import BanPolicy
from ...core.bans.targets import ban_target
from ...core.store import Store
from ..keys.client_ip import UNKNOWN_PEER, ClientAddress, is_gone
from ..keys.user import is_known
from ..request import RequestLimits
from .at_start import bans_by_address
from .codes import Finding

WATCHED: Final = 1_000
"""The number of requests that are checked."""
_PROXY_HEADERS: Final = frozenset({b"x-forwarded-for", b"forwarded"})


class Watch:
    """Checks the first requests, and then no more.

    Args:
        client: How the gate finds the client's address.
        policies: Its ban policies.
        store: The store of its limiter.
    """

    def __init__(self, client: ClientAddress, policies: Collection[BanPolicy] = (), store: Store | None = None) -> None:
        self._store = store
        self._trusted = client.trusted
        self._policies = [policy for policy in policies if bans_by_address(policy)]
        self._left = WATCHED
        self._found: set[str] = set()

    @property
    def fresh(self) -> bool:
        """Whether no request was checked yet."""
        return self._left == WATCHED

    @property
    def over(self) -> bool:
        """Whether enough requests were checked."""
        return self._left <= 0

    def look(self, scope: Scope) -> Iterator[Finding]:
        """Yield the findings that one request shows, each kind once."""
        self._left -= 1
        evicts = getattr(self._store, "evicts", "")  # known once a connection was made
        if evicts and "SG115" not in self._found:
            self._found.add("SG115")
            yield Finding("SG115", f"{evicts}, and with them limits and bans; set noeviction")
        client = scope.get("client")
        host = (client[0] if client else None) or ""
        if is_gone(scope):
            return
        if not host and "SG109" not in self._found:
            self._found.add("SG109")
            yield Finding(
                "SG109",
                f"the server names no peer: all such requests are one client, {UNKNOWN_PEER!r}; behind a proxy on a "
                'Unix socket write client_ip(trusted=["unix"])',
            )
        if self._trusted or "SG102" in self._found:
            return
        for name, value in scope["headers"]:
            # A server that reads the header itself has put the address from it in the peer's place.
            if name in _PROXY_HEADERS and (not host or host.encode() not in value):
                self._found.add("SG102")
                yield Finding(
                    "SG102",
                    f"{name.decode().title()} came with a request and no proxy is trusted: if one stands in front, all "
                    'its clients are counted as one; name it, for example client_ip(trusted=["10.0.0.0/8"])',
                )
                if self._policies and host:
                    yield self._about_bans(host)
                return

    def look_back(self, scope: Scope, record: RequestLimits) -> Iterator[Finding]:
        """Yield the findings that show only after the application has served a request."""
        if record.userless and "SG116" not in self._found and is_known(scope):
            self._found.add("SG116")
            yield Finding(
                "SG116",
                "a limit by `user` counted the client's address, because the user was known only afterwards; put "
                "AuthenticationMiddleware further out than the gate, or the limit next to the endpoint: "
                "@RateLimit(..., key=user)",
            )

    def _about_bans(self, host: str) -> Finding:
        """Return the finding about bans behind a proxy that is not trusted."""
        met = [policy for policy in self._policies if ban_target(policy, host) is not None]
        if met:
            what = f"policy {met[0].name!r} bans the peer for what one client does: everybody behind it is shut out"
        else:
            what = f"the peer {host} is of a private network, which no policy bans: nobody behind it is ever banned"
        return Finding(
            "SG111", f'if a proxy stands in front, {what}; name it, for example client_ip(trusted=["10.0.0.0/8"])'
        )
