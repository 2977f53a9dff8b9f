"""The signals of ban policies: strikes when a request arrives, when it is refused, and when its response starts.

The application itself can call `strike`, for example after a wrong password. There are no strikes for clients on an
allowlist, nor for requests that a rule exempts. The status of a refusal is not a signal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from starlette.requests import HTTPConnection
from starlette.types import Scope

from ..core.addresses import Address, address_key
from ..core.arguments import check_whole
from ..core.bans.ban import OWN_PREFIX, Ban, BanSubject, clean_reason, longest
from ..core.bans.policy import WIDEST, BanPolicy, may_ban
from ..core.decision import Decision, Reason, refused_by_ban
from ..core.errors import ConfigurationError, StoreError, closest, quoted
from ..core.memo import MANY, remember
from ..core.networks import Networks
from ..limiter import Limiter
from ..limiter.aio import to_the_end
from ..limiter.bans import operators_of
from .callbacks import UserCallbacks, request_in
from .client_ip import UNKNOWN_PEER, ClientAddress
from .keys import Combined, Key, parts_of, user
from .paths import PathIndex, RulePath, Texts
from .plan import Signal
from .visit import Visit, visit_of


class Signals:
    """Strikes the clients of requests, each policy once a request.

    Args:
        limiter: The limiter that counts strikes.
        address: How clients are determined.
        allowlist: The networks that no policy bans.
        policies: The ban policies.
        calls: Calls their functions.

    Attributes:
        ban_policies: The policies by name.
        keyed: The keys that policies ban in place of the client's.
        addresses: The keys of these, and parts of them, that read trusted proxies themselves.
        honeypots: The signals for the path of a request.
        by_status: The signals for each status of a response.
        by_refusal: The signals for refusals.

    Raises:
        ConfigurationError: Two policies have one name, or a key or path is invalid.
    """

    def __init__(
        self,
        limiter: Limiter,
        address: ClientAddress,
        allowlist: Networks | None,
        policies: BanPolicy | Iterable[BanPolicy] | None,
        calls: UserCallbacks,
    ) -> None:
        self._calls = calls
        self._limiter = limiter
        self._engine = limiter.engine
        self._address = address
        self._protected = [address.networks]
        if allowlist is not None:
            self._protected.append(allowlist)
        self.ban_policies: dict[str, BanPolicy] = {}
        self.by_status: defaultdict[int, list[Signal]] = defaultdict(list)
        self.by_refusal: list[Signal] = []
        self.honeypots: list[tuple[RulePath, Signal]] = []
        if isinstance(policies, BanPolicy):
            policies = [policies]
        for policy in policies or ():
            self._add(policy)
        self.keyed: list[Any] = [policy.key for policy in self.ban_policies.values() if policy.key is not None]
        self._joined: dict[tuple[object, ...], tuple[object, tuple[BanSubject, ...]]] = {}
        parts = [part for key in self.keyed for part in parts_of(key)]
        self.addresses = [part for part in parts if isinstance(part, ClientAddress) and part.trusted]
        self._index = PathIndex(self.honeypots)

    def _add(self, policy: BanPolicy) -> None:
        """Add a policy and its signals."""
        if policy.name in self.ban_policies:
            raise ConfigurationError(f"two policies are named {policy.name!r}; give one of them another name=", "bans")
        self.ban_policies[policy.name] = policy
        try:
            _check_key(policy, self._address)
            for signal, weight in policy.signals.items():
                if weight == "ban":
                    weight = policy.after.amount
                self._read(policy, signal, weight)
        except ConfigurationError as error:
            raise ConfigurationError(f"{policy!r}: {error}", "bans") from None

    def _read(self, policy: BanPolicy, signal: int | str, weight: int) -> None:
        """Read a signal as a policy writes it."""
        if signal == "refused":
            self.by_refusal.append(Signal(policy, weight, "refused"))
        elif isinstance(signal, int):
            self.by_status[signal].append(Signal(policy, weight, f"status {signal}"))
        elif signal.startswith("/"):
            reason = clean_reason(f"path {signal}")
            self.honeypots.append((RulePath(signal, "signals", is_trap=True), Signal(policy, weight, reason)))
        else:
            first = int(signal[0]) * 100  # 400 of "4xx"
            for status in {*range(first, first + 100)} - policy.signals.keys():
                self.by_status[status].append(Signal(policy, weight, f"status {status}"))

    # -- who may be banned ---------------------------------------------------------------------------------------------

    def subjects_of(self, key: str, address: Address | None) -> tuple[BanSubject, ...]:
        """Return the keys and the address whose bans apply to all requests of a client, without the keys in `keyed`."""
        if address is None:
            return (key,)
        own_key = address_key(*address)
        operators = operators_of(own_key, self._engine.networks)
        if self._address.prefixes == OWN_PREFIX:
            return (key, address, *operators)
        return (key, address, own_key, *operators)  # by which a ban of the address is found

    def with_keys(self, subjects: tuple[BanSubject, ...], scope: Scope, client_key: str) -> tuple[BanSubject, ...]:
        """Return the subjects of a client and the keys of a request that policies ban in its place."""
        return self.joined(subjects, [key.read(scope, self._limiter, client_key) for key in self.keyed])

    def joined(self, subjects: tuple[BanSubject, ...], keys: Iterable[str]) -> tuple[BanSubject, ...]:
        """Return the subjects of a client and those of some keys that are not among them.

        Always the same object for the same subjects and keys: stores remember by its identity that no ban concerns it.
        """
        others = [key for key in keys if key not in subjects]
        if not others:
            return subjects
        memo_key = (id(subjects), *others)
        memo = self._joined.get(memo_key)
        if memo is None or memo[0] is not subjects:
            memo = remember(self._joined, memo_key, (subjects, (*subjects, *others)), MANY)
        return memo[1]

    def _banned_key(self, policy: BanPolicy, visit: Visit, scope: Scope) -> str | None:
        """Return the key that a strike may ban.

        Returns:
            The key; None if the policy exempts the client or may not ban the key, if many clients share it, or if a
            policy by `user` knows no user: its strikes are for accounts, and an address may have many.
        """
        client_key = visit.client.key
        address = visit.client.address
        if address is not None and policy.exempt.covers(*address):
            return None
        key = protected = client_key
        if policy.key is not None:
            if user in parts_of(policy.key) and user.name_in(scope) is None:
                return None
            key = policy.key.read(scope, self._limiter, client_key)
            if not isinstance(policy.key, Combined):  # a combination may be banned if the client's address may be
                protected = key
        if protected == UNKNOWN_PEER:
            return None
        spelled, _ = self._engine.keys.normalize(key)
        for banned in (protected, spelled):
            if not may_ban(policy, banned, self._protected):
                return None
        return spelled

    # -- strikes -------------------------------------------------------------------------------------------------------

    def honeypots_at(self, texts: Texts) -> Sequence[Signal]:
        """Return the signals whose paths match that of a request, the heaviest first; none for `ANY_PATH`."""
        signals = {id(signal): signal for signal in self._index.match(texts)}
        return sorted(signals.values(), key=lambda signal: -signal.weight)

    async def strike_for_path(self, visit: Visit, signals: Sequence[Signal]) -> Decision | None:
        """Strike for the path of a request; return its refusal by the ban, or because the store does not answer."""
        try:
            ban = longest(await self.strike_all(visit, signals, visit.scope))
        except StoreError:
            return self._engine.unanswered()
        if ban is None:
            return None
        return refused_by_ban(ban, ban.since_us)

    async def strike_for_refusal(self, visit: Visit, decision: Decision, scope: Scope) -> None:
        """Strike for a refusal by a limit, whose retry-after from now on includes a ban that it has caused.

        Args:
            visit: The request in the middleware.
            scope: The scope in the middleware, or at the endpoint that refuses.
        """
        if not decision.readings or decision.at_least_us:  # no limit refuses it, or only what others may hand back
            return
        bans = await self.strike_quietly(visit, self.by_refusal, scope)
        # So that Retry-After includes the ban.
        decision.at_least_us = max([ban.until_us - ban.since_us for ban in bans if ban.until_us is not None], default=0)

    async def strike_quietly(self, visit: Visit, signals: Sequence[Signal], scope: Scope) -> list[Ban]:
        """Strike for an answer that is decided: a store that fails does not change it."""
        if not visit.may_be_struck:
            return []
        try:
            return await self.strike_all(visit, signals, scope)
        except StoreError:
            return []

    async def strike_all(self, visit: Visit, signals: Sequence[Signal], scope: Scope) -> list[Ban]:
        """Strike for some signals, each policy once a request; return the resulting bans.

        Raises:
            StoreUnavailable: The store does not answer, and ``on_error="deny"``.
        """
        bans: list[Ban] = []
        for signal in signals:
            if signal.ban_policy in visit.struck:
                continue
            visit.struck = (*visit.struck, signal.ban_policy)
            ban = await self.strike(visit, signal, scope)
            if ban is not None:
                bans.append(ban)
        return bans

    async def strike(self, visit: Visit, signal: Signal, scope: Scope) -> Ban | None:
        """Strike the client of a request; return the ban if there is one. A disconnect does not cancel the strike.

        Args:
            visit: The request in the middleware.
            scope: The request where the strike arises, for keys that are not the client's.

        Raises:
            StoreUnavailable: The store does not answer, and ``on_error="deny"``.
        """
        policy, weight, reason = signal
        key = self._banned_key(policy, visit, scope)
        if key is None:
            return None
        if await self._calls.truth_of(policy, request_in(scope), visit.client.key) is False:
            return None
        return await to_the_end(self._engine.strike(policy, key, weight, reason))


def _check_key(policy: BanPolicy, client: ClientAddress) -> None:
    """Check the key of a policy, or the client, which it bans if it has none.

    Raises:
        ConfigurationError: The key finds no client or too many of them.
    """
    key: Any = policy.key
    if key is None:
        key = client
    if any(isinstance(part, Key) and part.shared for part in parts_of(policy.key)):
        raise ConfigurationError(
            f"{policy.key!r} does not identify a client; use client_ip(), header, cookie or user", "key"
        )
    for version, name in ((4, "ipv4_prefix"), (6, "ipv6_prefix")):
        if isinstance(key, ClientAddress) and key.prefixes[version] < WIDEST[version]:
            raise ConfigurationError(
                f"its clients have {name}={key.prefixes[version]}, but policies ban no network wider than "
                f"/{WIDEST[version]}; write BanPolicy(..., key=client_ip({name}={WIDEST[version]}))"
            )


async def strike(
    request: HTTPConnection, weight: int | Literal["ban"] = 1, reason: str = "", *, policy: str | None = None
) -> Ban | None:
    """Record strikes against the client of a request; return the ban if they lead to one.

    The request itself continues, and its status is no further strike under this policy; a ban refuses later ones. There
    are no strikes against clients on an allowlist, on routes that a rule exempts, or against addresses that the policy
    may not ban.

    Args:
        request: The request, or the websocket.
        weight: The number of strikes, 1 or more, or ``"ban"`` for an immediate ban.
        reason: Shown to operators, never to clients.
        policy: The name of the ban policy; required if there are several.

    Raises:
        ConfigurationError: There is no policy of that name, there are several and none is named, or the weight is
            invalid.
        StoreUnavailable: The store does not answer and `on_error` is ``"deny"``, so whether the client is banned is
            unknown.
    """
    if weight != "ban":
        check_whole(weight, 1, 1_000_000, "strike: weight", 'or "ban", for example 1')
    innermost = visit_of(request, "strike")
    if innermost is None:
        return None
    # Innermost first, so that the outermost of two policies with one name wins.
    by_policy: dict[str, Visit] = {
        name: visit for visit in innermost.visits() for name in visit.policy.signals.ban_policies
    }
    name = policy
    if name is None and len(by_policy) == 1:
        (name,) = by_policy
    if name not in by_policy:
        if any(decision.reason is Reason.DISABLED for _, decision in innermost.decisions):
            return None
        names = ", ".join(map(repr, by_policy)) or "none, write RateLimitMiddleware(..., bans=BanPolicy())"
        raise ConfigurationError(
            f"strike: the ban policies of this endpoint are: {names}; name one of them, not "
            f"{quoted(policy)}{closest(policy, by_policy)}"
        )
    visit = by_policy[name]
    if not visit.may_be_struck:
        return None
    signals: Signals = visit.policy.signals
    chosen = signals.ban_policies[name]
    visit.struck = (*visit.struck, chosen)  # so that the status of the response is no further signal
    if weight == "ban":
        weight = chosen.after.amount
    return await signals.strike(visit, Signal(chosen, weight, clean_reason(reason)), request.scope)
