"""The finding about a client that is many: a proxy, a frontend server, or a call within the process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from starlette.types import Scope

from ..core.addresses import network_of
from ..web.client_ip import ClientAddress
from ..web.policy import Policy
from .report import Finding
from .requests import PROXY_HEADERS
from .rules import counting_rules

_NAMING: Final = (
    *PROXY_HEADERS,
    *(b"x-real-ip", b"x-client-ip", b"cf-connecting-ip", b"true-client-ip", b"fastly-client-ip", b"fly-client-ip"),
    *(b"x-original-forwarded-for", b"x-vercel-forwarded-for", b"x-envoy-external-address"),
)
"""The header fields in which proxies, CDNs and frontend servers name the client."""
_MANY_NAMES: Final = 20
"""As many values of such a field from one client are no coincidence."""
_NEARLY_ALL: Final = 0.9
"""The share of a client that passes for everybody; a health check may come from elsewhere."""


class FirstRequests:
    """What the first requests tell about who makes all clients one.

    Args:
        policy: The policy of the middleware.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._header = policy.address.header
        self._has_clients = _has_clients(policy)
        self._is_found = False
        self._requests = Counter[str]()
        self._names: dict[tuple[str, bytes], set[int]] = {}

    def about_everybody(self, scope: Scope) -> Iterator[Finding]:
        """Count a request, and yield the finding about its client if that is nearly everybody."""
        if self._is_found or not self._has_clients:
            return
        client_key = self._policy.clients.of(scope).key
        self._requests[client_key] += 1
        field = self._field_naming_many(client_key, scope["headers"])
        share = self._requests[client_key] / self._requests.total()
        if not field or share < _NEARLY_ALL:
            return
        self._is_found = True
        proxy = "10.0.0.5"
        if network_of(client_key) is not None:
            proxy = client_key
        header = ""
        if field != "X-Forwarded-For":
            header = f', header="{field}"'
        yield Finding(
            "SG140",
            f"{int(100 * share)} % of the first requests come from one client, {client_key!r}, and {field} names many: "
            "a proxy, a frontend server, or a call within the process asks for all its users, who are counted and "
            f'banned as one; if its header can be trusted, name it, client_ip(trusted=["{proxy}"]{header}), else count '
            "by key=user",
        )

    def _field_naming_many(self, client_key: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Remember whom a client names, and return a field in which it has named many; empty if there is none."""
        field = ""
        for name, value in headers:
            if name not in _NAMING and name != self._header:
                continue
            names = self._names.setdefault((client_key, bytes(name)), set())
            names.add(hash(bytes(value)))
            if len(names) >= _MANY_NAMES:
                field = bytes(name).decode(errors="replace").title()
        return field


def _has_clients(policy: Policy) -> bool:
    """Return whether a middleware counts, lists or bans clients by their addresses, as far as it knows."""
    keys = [rule.charging.key for rule in counting_rules(policy)]
    if not keys or any(key is None or isinstance(key, ClientAddress) for key in keys):
        return True
    if any(networks is not None for networks in policy.lists.values()):
        return True
    return any(one.key is None for one in policy.signals.ban_policies.values())
