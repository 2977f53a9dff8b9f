"""The ban policies of a gate at work: their signals, and the strikes that follow.

Three moments can strike: when a request comes (honeypots), when a gate refuses it, and when the application's answer
begins. Clients on an allowlist are never struck, and nobody
is struck for a request that a rule exempts; a gate's own refusal is no answer of the application.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from inspect import isawaitable
from itertools import chain
from typing import NamedTuple

from starlette.types import Scope

from ...core.addresses import Address
from ...core.bans.in_force import Ban, Guarded, clean_reason
from ...core.bans.policy import BanPolicy
from ...core.bans.targets import WIDEST, ban_target, range_target
from ...core.errors import ConfigurationError, StoreError, quoted
from ...limiter import Limiter
from ...limiter.aio import to_the_end
from ..callbacks import UserCallbacks
from ..keys.client_ip import UNKNOWN_PEER, ClientAddress
from ..keys.key import Combined, Key, Value, everyone
from ..keys.path_param import PathParam
from ..matching import compile_pattern, normal_forms, route_path
from ..network_files import AddressList


class Offence(NamedTuple):
    """One strike to be."""

    policy: BanPolicy
    weight: int
    reason: str


class _Protected:
    """Networks that no policy bans: those of trusted proxies and of the allowlist."""

    def __init__(self, client: ClientAddress, allowlist: AddressList | None) -> None:
        self._lists: list[AddressList] = [client.networks] if client.trusted else []
        if allowlist is not None:
            self._lists.append(allowlist)

    def overlaps(self, version: int, first: int, last: int) -> bool:
        for networks in self._lists:  # noqa: SIM110 - any() costs a generator for each strike
            if networks.overlaps(version, first, last):
                return True
        return False


class AbuseWatch:
    """Strikes for the signals of its policies.

    Args:
        policies: The policies.
        limiter: The limiter that counts strikes.
        client: How the client's address is found.
        allowlist: Networks that are never banned.
        calls: Reports keys that fail.

    Attributes:
        policies: The policies by name.
        keyed: Whether anything but the client can be banned by a policy.
        looks: Whether requests themselves can strike.
        minded: The signals that strike, each as (policy, signal).
        listens: Whether statuses can.
        minds_refusals: Whether refusals can.

    Raises:
        ConfigurationError: A policy is none, two have one name, or a key or path cannot be used.
    """

    def __init__(
        self,
        policies: BanPolicy | Iterable[BanPolicy] | None,
        limiter: Limiter,
        client: ClientAddress,
        allowlist: AddressList | None,
        calls: UserCallbacks,
    ) -> None:
        self.policies = _by_name(policies)
        for policy in self.policies.values():
            _check_width(policy, client if policy.key is None else policy.key)
        self._calls = calls
        self._limiter = limiter
        self._client = client
        self._protected = _Protected(client, allowlist)
        self._spare = {4: 32 - client.prefix(4), 6: 128 - client.prefix(6)}
        """How many bits of an address do not distinguish clients."""
        self._keys: list[Key] = [policy.key for policy in self.policies.values() if policy.key is not None]
        self.keyed = bool(self._keys)
        self._paths: list[tuple[re.Pattern[str], Offence]] = []
        self._statuses: dict[int, list[Offence]] = {}
        self._named: dict[str, list[Offence]] = {}
        for policy in self.policies.values():
            self._read_signals(policy)
        self.looks = bool(self._paths)
        self.listens = bool(self._statuses)
        self.minds_refusals = "refused" in self._named
        paths = [offence for _, offence in self._paths]
        all_of_them = chain(paths, *self._statuses.values(), *self._named.values())
        self.minded = {(offence.policy.name, offence.reason) for offence in all_of_them}

    def _read_signals(self, policy: BanPolicy) -> None:
        for signal, weight in policy.signals.items():
            whole = policy.after.amount if weight == "ban" else weight
            if isinstance(signal, int):
                self._statuses.setdefault(signal, []).append(Offence(policy, whole, f"status {signal}"))
            elif signal.startswith("/"):
                try:
                    pattern, _ = compile_pattern(signal)
                except ConfigurationError as error:
                    raise ConfigurationError(f"bans: {policy!r}: signals: {error}") from None
                self._paths.append((pattern, Offence(policy, whole, clean_reason(f"path {signal}"))))
            elif signal.endswith("xx"):
                first = int(signal[0]) * 100
                for status in set(range(first, first + 100)) - set(policy.signals):
                    self._statuses.setdefault(status, []).append(Offence(policy, whole, f"status {status}"))
            else:
                self._named.setdefault(signal, []).append(Offence(policy, whole, signal))

    def guarded(self, scope: Scope, client_key: str, address: Address | None) -> Sequence[Guarded]:
        """Return the keys and addresses whose bans refuse a request."""
        client: Guarded = client_key if address is None else address
        if not self._keys:
            return (client,)
        return [client, *(key.find(scope, self._limiter, client_key) for key in self._keys)]

    def look(self, scope: Scope, outer: Iterable[AbuseWatch]) -> Sequence[Offence]:
        """Return the offences that the request itself shows, except those for which a gate further out strikes."""
        texts = normal_forms(route_path(scope)) if self._paths else ()
        found = [offence for pattern, offence in self._paths if any(map(pattern.match, texts))]
        return self._not_seen_to(found, outer)

    async def strike(self, offence: Offence, scope: Scope) -> Ban | None:
        """Strike whoever sent a request. A client that leaves meanwhile does not take the strike back.

        Raises:
            StoreUnavailable: The store does not answer, and ``on_error="deny"``.
        """
        policy, weight, reason = offence
        client_key, address = self._client.locate(scope)
        if policy.key is not None or address is None or not self._limiter.engine.per_process:
            return await to_the_end(self._strike(offence, scope, client_key))
        version, value = address
        spare = self._spare[version]
        first = value >> spare << spare
        target = range_target(policy, client_key, version, first, first | (1 << spare) - 1, self._protected)
        if target is None:
            return None
        answer = self._limiter.engine.strike_target(target, policy, weight, reason)
        return await to_the_end(answer) if isawaitable(answer) else answer

    async def _strike(self, offence: Offence, scope: Scope, client_key: str) -> Ban | None:
        """Count a strike where that takes more: a key to be made, or a store that others share."""
        policy, weight, reason = offence
        key = client_key if policy.key is None else policy.key.find(scope, self._limiter, client_key)
        if key == UNKNOWN_PEER or (isinstance(policy.key, Combined) and not self._may_ban(policy, client_key)):
            return None  # this key stands for many people: strike nobody
        try:
            return await self._limiter.strike(key, policy, weight, reason, protected=self._protected)
        except ConfigurationError as error:  # a key of the user's own that cannot be one
            self._calls.report("key", policy.name, error, "nobody is struck")
        return None

    def _may_ban(self, policy: BanPolicy, client_key: str) -> bool:
        return client_key != UNKNOWN_PEER and ban_target(policy, client_key, self._protected) is not None

    async def refused(self, scope: Scope, outer: Iterable[AbuseWatch]) -> None:
        """Strike for a refusal by a limit, unless a gate further out does."""
        with suppress(StoreError):  # it is refused as it is
            for offence in self._not_seen_to(self._named.get("refused", ()), outer):
                await self.strike(offence, scope)

    async def answered(self, status: int, scope: Scope, outer: Iterable[AbuseWatch]) -> None:
        """Strike for the status of the application's answer, unless a gate further out does."""
        with suppress(StoreError):  # the application has answered
            for offence in self._not_seen_to(self._statuses.get(status, ()), outer):
                await self.strike(offence, scope)

    def _not_seen_to(self, offences: Sequence[Offence], outer: Iterable[AbuseWatch]) -> Sequence[Offence]:
        """Leave out offences for which a gate further out strikes under the same policy: one offence is one strike."""
        theirs = [watch.minded for watch in outer if watch._limiter is self._limiter]
        if not theirs:
            return offences
        return [o for o in offences if not any((o.policy.name, o.reason) in minded for minded in theirs)]


def _by_name(policies: object) -> dict[str, BanPolicy]:
    listed = [policies] if isinstance(policies, BanPolicy) else [] if policies is None else policies
    example = 'bans: expected BanPolicy("20/10m", "1h") or a list of them'
    if isinstance(listed, str) or not isinstance(listed, Iterable):
        raise ConfigurationError(f"{example}, not {quoted(policies)}")
    found: dict[str, BanPolicy] = {}
    for policy in listed:
        if not isinstance(policy, BanPolicy):
            raise ConfigurationError(f"{example}, not {quoted(policy)} in it")
        if policy.name in found:
            raise ConfigurationError(f"bans: two policies are called {policy.name!r}; give one of them another name=")
        if policy.key is not None and not isinstance(policy.key, Key):
            raise ConfigurationError(
                f"bans: {policy!r}: key: expected a built-in key such as header, not {quoted(policy.key)}"
            )
        if _names_nobody(policy.key):
            raise ConfigurationError(
                f"bans: {policy!r}: key: {policy.key!r} does not say who it is; use client_ip(), header, cookie or user"
            )
        found[policy.name] = policy
    return found


def _check_width(policy: BanPolicy, key: Key) -> None:
    """Check that a policy bans networks as wide as its clients, where these are wider than one client usually is."""
    if not isinstance(key, ClientAddress):
        return
    for version, name in ((4, "ipv4_prefix"), (6, "ipv6_prefix")):
        length, narrowest = key.prefix(version), min(WIDEST[version], getattr(policy, name))
        if length < narrowest:
            raise ConfigurationError(
                f"bans: {policy!r}: its clients are of {name}={length}, and it bans nothing wider than /{narrowest}; "
                f"if that is meant, write BanPolicy(..., {name}={length})"
            )


def _names_nobody(key: Key | None) -> bool:
    """Tell whether a key, or one that it is made of or falls back to, is that of all clients of a place."""
    parts = [*getattr(key, "keys", ()), *([key.fallback] if isinstance(key, Value) and key.fallback else [])]
    return key is everyone or isinstance(key, PathParam) or any(map(_names_nobody, parts))
