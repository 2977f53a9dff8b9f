"""The ban policies of a middleware at work: their signals, and the strikes that follow.

Three moments can strike: when a request comes (honeypots), when a middleware refuses it, and when the application's
answer begins; and the application itself, with `strike`, for a wrong password for example. Clients on an allowlist are
never struck, and nobody is struck for a request that a rule exempts; a refusal is no answer of the application.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from inspect import isawaitable
from itertools import chain
from typing import Literal, NamedTuple

from starlette.requests import HTTPConnection
from starlette.types import Scope

from ..core.addresses import Address, address_key
from ..core.arguments import check_list
from ..core.bans.ban import OWN_PREFIX, Ban, BanSubject, ban_key, clean_reason
from ..core.bans.policy import WIDEST, BanPolicy, may_ban
from ..core.errors import ConfigurationError, StoreError, closest, quoted
from ..core.limits import check_whole
from ..core.networks import Networks
from ..limiter import Limiter
from ..limiter.aio import to_the_end
from ..limiter.operators import operator_of
from .callbacks import UserCallbacks
from .client_ip import UNKNOWN_PEER, ClientAddress
from .exchange import decided_about
from .keys import Combined, Key, parts_of
from .paths import PathIndex, RulePath, is_astray, normal, route_path


class Signal(NamedTuple):
    """What a policy strikes for, and with how many strikes."""

    policy: BanPolicy
    weight: int
    reason: str


class _Protected:
    """Networks that no policy bans: those of trusted proxies and of the allowlist."""

    def __init__(self, client: ClientAddress, allowlist: Networks | None) -> None:
        self._lists = [networks for networks in (client.networks, allowlist) if networks is not None]

    def overlaps(self, version: int, first: int, last: int) -> bool:
        return any(networks.overlaps(version, first, last) for networks in self._lists)


class BanSignals:
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
        on_request: Whether requests themselves can strike.
        on_status: Whether statuses of answers can.
        on_refusal: Whether refusals can.
        struck_for: All that strikes, each as (policy, reason).

    Raises:
        ConfigurationError: A policy is none, two have one name, or a key or path cannot be used.
    """

    def __init__(
        self,
        policies: BanPolicy | Iterable[BanPolicy] | None,
        limiter: Limiter,
        client: ClientAddress,
        allowlist: Networks | None,
        calls: UserCallbacks,
    ) -> None:
        self.policies = _by_name(policies)
        for policy in self.policies.values():
            _check_width(policy, client if policy.key is None else policy.key)
        self._calls = calls
        self._limiter = limiter
        self._client = client
        self._is_wider = client.prefixes != OWN_PREFIX  # or narrower: a ban of the address is of another key
        self._protected = _Protected(client, allowlist)
        self._keys: list[Key] = [policy.key for policy in self.policies.values() if policy.key is not None]
        self.keyed = bool(self._keys)
        self._honeypots: list[tuple[RulePath, Signal]] = []
        self._signals: defaultdict[int | str, list[Signal]] = defaultdict(list)
        for policy in self.policies.values():
            for signal, weight in policy.signals.items():
                self._read_signal(policy, signal, policy.after.amount if weight == "ban" else weight)
        self._paths = PathIndex(self._honeypots)
        self.on_request = bool(self._honeypots)
        self.on_status = any(isinstance(signal, int) for signal in self._signals)
        self.on_refusal = "refused" in self._signals
        signals = chain((signal for _, signal in self._honeypots), *self._signals.values())
        self.struck_for = {(signal.policy.name, signal.reason) for signal in signals}

    def _read_signal(self, policy: BanPolicy, signal: int | str, weight: int) -> None:
        if isinstance(signal, str) and signal.startswith("/"):
            self._honeypots.append((RulePath(signal), Signal(policy, weight, clean_reason(f"path {signal}"))))
        elif signal == "refused":
            self._signals[signal].append(Signal(policy, weight, signal))
        else:
            for status in {signal} if isinstance(signal, int) else _class_of(signal) - set(policy.signals):
                self._signals[status].append(Signal(policy, weight, f"status {status}"))

    def own_subjects(self, client_key: str, address: Address | None) -> tuple[BanSubject, ...]:
        """Return the keys and the address whose bans refuse a client, whatever its request is."""
        if address is None:
            return (client_key,)
        own: tuple[BanSubject, ...] = (client_key, address)
        own = (*own, address_key(*address)) if self._is_wider else own
        operator = operator_of(address_key(*address), self._limiter.engine.networks)
        return own if operator is None else (*own, operator)

    def subjects(self, scope: Scope, client_key: str, address: Address | None) -> Sequence[BanSubject]:
        """Return the keys and addresses whose bans refuse a request."""
        own = self.own_subjects(client_key, address)
        if not self._keys:
            return own
        return [*own, *(key.find(scope, self._limiter, client_key) for key in self._keys)]

    def signals_of(self, scope: Scope, outer: Iterable[BanSignals]) -> Sequence[Signal]:
        """Return the signals that the request itself shows, except those for which a middleware further out strikes."""
        if not self.on_request or not isinstance(scope["path"], str) or is_astray(scope["path"]):
            return ()
        path = route_path(scope)
        found = self._paths.find([("", path), ("", normal(path))])
        # Two texts of a path may lead to one signal.
        return self._not_struck_by([*{id(signal): signal for signal in found}.values()], outer)

    async def strike(self, signal: Signal, scope: Scope) -> Ban | None:
        """Strike whoever sent a request. A client that leaves meanwhile does not take the strike back.

        Raises:
            StoreUnavailable: The store does not answer, and ``on_error="deny"``.
        """
        policy, weight, reason = signal
        try:
            key = self._banned_key(policy, scope, *self._client.locate(scope))
        except ConfigurationError as error:  # a key of the user's own that cannot be one
            self._calls.report("key", policy.name, error, "nobody is struck")
            return None
        if key is None:
            return None
        answer = self._limiter.engine.strike(key, policy, weight, reason)
        return await to_the_end(answer) if isawaitable(answer) else answer

    def _banned_key(self, policy: BanPolicy, scope: Scope, client_key: str, address: Address | None) -> str | None:
        """Return the key that a strike may ban; None if the policy may not, or where many share the key."""
        if policy.key is None and address is not None:
            return client_key if may_ban(policy, client_key, self._protected) else None
        key = client_key if policy.key is None else policy.key.find(scope, self._limiter, client_key)
        client = client_key if isinstance(policy.key, Combined) else key
        if client == UNKNOWN_PEER or (client is not key and not may_ban(policy, client, self._protected)):
            return None
        ban_key(key)
        spelled = self._limiter.engine.keys.learn(key)[0]
        return spelled if may_ban(policy, spelled, self._protected) else None

    async def strike_for(self, what: int | Literal["refused"], scope: Scope, outer: Iterable[BanSignals]) -> list[Ban]:
        """Strike for the status of the application's answer, or a refusal, unless a middleware further out does.

        Returns:
            The bans that this made.
        """
        bans: list[Ban] = []
        with suppress(StoreError):  # the request is answered or refused as it is
            for signal in self._not_struck_by(self._signals.get(what, ()), outer):
                ban = await self.strike(signal, scope)
                if ban is not None:
                    bans.append(ban)
        return bans

    def _not_struck_by(self, signals: Sequence[Signal], outer: Iterable[BanSignals]) -> Sequence[Signal]:
        """Leave out signals for which a middleware further out strikes under the same policy."""
        theirs = [other.struck_for for other in outer if other._limiter is self._limiter]
        if not theirs:
            return signals
        return [one for one in signals if not any((one.policy.name, one.reason) in struck for struck in theirs)]


def _class_of(name: str) -> set[int]:
    """Return the statuses of a class such as ``"4xx"``."""
    first = int(name[0]) * 100
    return set(range(first, first + 100))


def _by_name(policies: object) -> dict[str, BanPolicy]:
    given = [policies] if isinstance(policies, BanPolicy) else [] if policies is None else policies
    by_name: dict[str, BanPolicy] = {}
    for policy in check_list("bans", given, 'BanPolicy("20/10m", "1h") or a list of them', BanPolicy):
        if policy.name in by_name:
            raise ConfigurationError(f"two policies are called {policy.name!r}; give one of them another name=", "bans")
        try:
            check_policy(policy)
        except ConfigurationError as error:
            raise ConfigurationError(f"{policy!r}: {error}", "bans") from None
        by_name[policy.name] = policy
    return by_name


def check_policy(policy: BanPolicy) -> None:
    """Check those values of a policy that have a meaning only for requests.

    Raises:
        ConfigurationError: The key finds no client, or a path among the signals cannot be used.
    """
    if policy.key is not None and not isinstance(policy.key, Key):
        raise ConfigurationError(f"expected a built-in key such as header, not {quoted(policy.key)}", "key")
    if names_nobody(policy.key):
        raise ConfigurationError(
            f"{policy.key!r} does not identify a client; use client_ip(), header, cookie or user", "key"
        )
    for signal in policy.signals:
        if isinstance(signal, str) and signal.startswith("/"):
            try:
                RulePath(signal)
            except ConfigurationError as error:
                raise ConfigurationError(str(error), "signals") from None


def _check_width(policy: BanPolicy, key: Key) -> None:
    """Check that the clients of a policy are no wider than one customer is: nothing wider is ever banned."""
    if not isinstance(key, ClientAddress):
        return
    for version, name in ((4, "ipv4_prefix"), (6, "ipv6_prefix")):
        if key.prefixes[version] < WIDEST[version]:
            raise ConfigurationError(
                f"{policy!r}: its clients are of {name}={key.prefixes[version]}, and no policy bans a network "
                f"wider than /{WIDEST[version]}; give it a key of its own, for example "
                f"BanPolicy(..., key=client_ip({name}={WIDEST[version]}))",
                "bans",
            )


def names_nobody(key: Key | None) -> bool:
    """Return whether a key, or one that it is made of or falls back to, is that of all clients of a place."""
    return any(getattr(part, "shared", False) for part in parts_of(key))


async def strike(
    request: HTTPConnection, weight: int | Literal["ban"] = 1, reason: str = "", *, policy: str | None = None
) -> Ban | None:
    """Hold something against whoever sent a request, and return the ban if that was one strike too many.

    The request itself goes on; a ban refuses the next. Nothing is held against clients on an allowlist, on routes that
    a rule exempts, and for addresses that the policy may not ban.

    Args:
        request: The request, or the websocket.
        weight: How many strikes it stands for, 1 or more, or ``"ban"`` for all that a ban takes.
        reason: For the operator; clients do not see it.
        policy: The name of the ban policy; needed if there are several.

    Raises:
        ConfigurationError: There is no policy of that name, there are several and none is named, or the weight is
            invalid.
        StoreUnavailable: The store does not answer, and `on_error` is ``"deny"``: whether the client is banned is not
            known.
    """
    if weight != "ban":
        check_whole(weight, 1, 1_000_000, "strike: weight", 'or "ban", for example 1')
    decided = decided_about(request.scope, "strike")
    if decided is None:
        return None
    # The innermost first, so that the outermost of two of one name remains.
    above = {name: parts for parts, _ in reversed(decided.entries) for name in parts.signals.policies}
    if policy is None and len(above) == 1:
        (policy,) = above
    parts = above.get(policy) if policy is not None else None
    if parts is None or policy is None:
        names = ", ".join(map(repr, above)) or "none; write RateLimitMiddleware(..., bans=BanPolicy())"
        problem = "name one of them" if policy is None else f"{policy!r} is none{closest(policy, list(above))}"
        raise ConfigurationError(f"strike: the ban policies above are: {names}; {problem}")
    if decided.exempt_from(parts):
        return None
    held = parts.signals.policies[policy]
    whole = held.after.amount if weight == "ban" else weight
    return await parts.signals.strike(Signal(held, whole, clean_reason(reason)), request.scope)
