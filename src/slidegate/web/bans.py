"""Applies the ban policies of a middleware: matches their signals and records strikes.

Strikes are recorded at three points: when a request arrives (honeypots), when a middleware refuses it, and when the
application's response starts. The application itself can call `strike`, for example after a wrong password. There are
no strikes for clients on an allowlist, nor for requests that a rule exempts. The status of a refusal is not a signal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from starlette.requests import HTTPConnection
from starlette.types import Scope

from ..core.addresses import Address, address_key
from ..core.arguments import check_list, check_whole, expect
from ..core.bans.ban import OWN_PREFIX, Ban, BanSubject, clean_reason, longest
from ..core.bans.policy import WIDEST, BanPolicy, may_ban
from ..core.decision import Decision, Reason, refused_by_ban
from ..core.errors import ConfigurationError, StoreError, closest, quoted
from ..limiter.aio import answer_to_the_end
from ..limiter.operators import operators_of
from .client_ip import UNKNOWN_PEER, Client, ClientAddress
from .decided import DECIDED_KEY, Decided, of_request
from .exchange import Exchange
from .keys import Combined, Key, parts_of, user
from .paths import PathIndex, RulePath, Texts

if TYPE_CHECKING:
    from .middleware import RateLimitMiddleware


class Signal(NamedTuple):
    """A reason for which a policy strikes, and the number of strikes."""

    policy: BanPolicy
    weight: int
    reason: str


class BanSignals:
    """Strikes clients for the signals of ban policies.

    Args:
        middleware: The middleware.
        policies: The policies.

    Attributes:
        policies: The policies by name.
        by_kind: The signals for each status, and for refusals.
        keys: The keys that policies ban in place of the client.
        of_addresses: Those of them, and of their parts, that read trusted proxies themselves.
        on_request: Whether there are signals for the path of a request.
        on_status: Whether there are signals for the status of a response.
        on_refusal: Whether there are signals for refusals.

    Raises:
        ConfigurationError: An item is not a policy, two policies have one name, or a key or path is invalid.
    """

    def __init__(
        self,
        middleware: RateLimitMiddleware,
        policies: BanPolicy | Iterable[BanPolicy] | None,
    ) -> None:
        self._limiter = middleware.limiter
        client = middleware.client
        self._is_wider = client.prefixes != OWN_PREFIX  # or narrower: a ban of the address then has a different key
        self._protected = [middleware.lists["allowlist"], *([client.networks] if client.trusted else ())]
        self.policies: dict[str, BanPolicy] = {}
        self._honeypots: list[tuple[RulePath, Signal]] = []
        self.by_kind: defaultdict[int | str, list[Signal]] = defaultdict(list)
        given = [policies] if isinstance(policies, BanPolicy) else () if policies is None else policies
        for policy in check_list("bans", given, 'BanPolicy("20/10m", "1h") or a list of them', BanPolicy):
            if policy.name in self.policies:
                raise ConfigurationError(
                    f"two policies are named {policy.name!r}; give one of them another name=", "bans"
                )
            self.policies[policy.name] = policy
            try:
                _check_key(policy, client)
                for signal, weight in policy.signals.items():
                    self._read_signal(policy, signal, policy.after.amount if weight == "ban" else weight)
            except ConfigurationError as error:
                raise ConfigurationError(f"{policy!r}: {error}", "bans") from None
        self.keys: list[Key] = [policy.key for policy in self.policies.values() if policy.key is not None]
        parts = [part for key in self.keys for part in parts_of(key)]
        self.of_addresses = [part for part in parts if isinstance(part, ClientAddress) and part.trusted]
        self._index = PathIndex(self._honeypots)
        self.on_request = bool(self._honeypots)
        self.on_status = any(isinstance(signal, int) for signal in self.by_kind)
        self.on_refusal = "refused" in self.by_kind

    def _read_signal(self, policy: BanPolicy, signal: int | str, weight: int) -> None:
        if isinstance(signal, str) and signal.startswith("/"):
            self._honeypots.append(
                (RulePath(signal, "signals"), Signal(policy, weight, clean_reason(f"path {signal}")))
            )
        elif signal == "refused":
            self.by_kind[signal].append(Signal(policy, weight, signal))
        else:
            first = signal if isinstance(signal, int) else int(signal[0]) * 100  # 400 of "4xx"
            for status in {signal} if first == signal else {*range(first, first + 100)} - policy.signals.keys():
                self.by_kind[status].append(Signal(policy, weight, f"status {status}"))

    def own_subjects(self, client_key: str, address: Address | None) -> tuple[BanSubject, ...]:
        """Return the keys and the address whose bans apply to all requests of a client; those of `keys` are further."""
        if address is None:
            return (client_key,)
        own: tuple[BanSubject, ...] = (client_key, address)
        files = self._limiter.engine.networks
        if not (self._is_wider or files):
            return own
        key = address_key(*address)
        return *own, *((key,) if self._is_wider else ()), *operators_of(key, files)

    def met(self, texts: Texts) -> Sequence[Signal]:
        """Return the signals whose paths match that of a request, the heaviest first; none for `ANY_PATH`."""
        found = {id(signal): signal for signal in self._index.find(texts)}
        return sorted(found.values(), key=lambda signal: -signal.weight)

    async def strike(self, signal: Signal, scope: Scope, client: Client) -> Ban | None:
        """Strike the client of a request; return the ban if there is one. A disconnect does not cancel the strike.

        Args:
            signal: The reason.
            scope: The request where the strike arises, from which a policy's own key is read.
            client: The client, as it was found at the entrance.

        Raises:
            StoreUnavailable: The store does not answer, and ``on_error="deny"``.
        """
        policy, weight, reason = signal
        key = self._banned_key(policy, client.beside(scope), client.key)
        if key is None:
            return None
        return await answer_to_the_end(self._limiter.engine.strike(policy, key, weight, reason))

    def _banned_key(self, policy: BanPolicy, scope: Scope, client_key: str) -> str | None:
        """Return the key that a strike may ban.

        Returns:
            The key; None if the policy may not ban it, if many clients share it, or if a policy by `user` knows no
            user: its strikes are for accounts, and an address may have many.
        """
        if any(part is user and user.name_in(scope) is None for part in parts_of(policy.key)):
            return None
        key = client_key if policy.key is None else policy.key.find(scope, self._limiter, client_key)
        client = client_key if isinstance(policy.key, Combined) else key
        if client == UNKNOWN_PEER or (client is not key and not self._may_ban(policy, client)):
            return None
        spelled = self._limiter.engine.keys.normalize(key)[0]
        return spelled if self._may_ban(policy, spelled) else None

    def _may_ban(self, policy: BanPolicy, key: str) -> bool:
        """Return whether a policy may ban a key; those of trusted proxies and the allowlist are protected."""
        return all(may_ban(policy, key, listed) for listed in self._protected)

    async def strike_for(
        self, what: int | Literal["refused"], scope: Scope, exchange: Exchange, *, is_message: bool = False
    ) -> list[Ban]:
        """Strike for the status of the application's response or for a refusal; return the resulting bans.

        Args:
            what: The status, or that it was refused.
            scope: The request.
            exchange: The request in the middleware, which strikes each policy once, and none if a rule exempts it.
            is_message: Whether it is a message of a websocket, each of which strikes.
        """
        if exchange.decided.is_exempt_from(exchange.middleware):
            return []
        try:
            signals = self.by_kind.get(what, ())
            return await self.strike_all(signals, scope, exchange.client, None if is_message else exchange)
        except StoreError:  # does not change the answer to the request
            return []

    async def refuse_by_path(self, signals: Sequence[Signal], exchange: Exchange) -> Decision | None:
        """Strike for the path of a request; return its refusal if that bans it, or if it may have."""
        try:
            ban = longest(await self.strike_all(signals, exchange.scope, exchange.client, exchange))
        except StoreError:
            return self._limiter.engine.unanswered()
        return None if ban is None else refused_by_ban(ban, ban.since_us)

    async def strike_all(
        self, signals: Sequence[Signal], scope: Scope, client: Client, exchange: Exchange | None
    ) -> list[Ban]:
        """Strike for some signals, each policy once; return the resulting bans.

        Raises:
            StoreUnavailable: The store does not answer, and ``on_error="deny"``.
        """
        struck = [
            signal
            for signal in signals
            if exchange is None or exchange.decided.strikes(exchange.middleware, signal.policy)
        ]
        bans = [await self.strike(signal, scope, client) for signal in struck]
        return [ban for ban in bans if ban is not None]


def _check_key(policy: BanPolicy, client: Key) -> None:
    """Check the key of a policy, or the client, which it bans if it has none.

    Raises:
        ConfigurationError: The key finds no client or too many of them.
    """
    key = client if policy.key is None else policy.key
    if policy.key is not None and not isinstance(policy.key, Key):
        raise ConfigurationError(f"expected a built-in key such as header, not {quoted(policy.key)}", "key")
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
    expect("policy", policy, str, '"abuse"')
    decided: Decided | None = of_request(request, DECIDED_KEY, "strike")
    if decided is None:
        return None
    # Innermost first, so that the outermost of two policies with one name wins.
    above = {name: middleware for middleware, _ in reversed(decided) for name in middleware.signals.policies}
    if policy is None and len(above) == 1:
        (policy,) = above
    middleware = above.get(policy) if policy is not None else None
    if middleware is None or policy is None:
        if any(decision.reason is Reason.DISABLED for _, decision in decided):
            return None
        names = ", ".join(map(repr, above)) or "none"
        if not above:
            problem = "write RateLimitMiddleware(..., bans=BanPolicy())"
        elif policy is None:
            problem = "name one of them"
        else:
            problem = f"{quoted(policy)} is none{closest(policy, list(above))}"
        raise ConfigurationError(f"strike: the ban policies of this endpoint are: {names}; {problem}")
    if decided.is_exempt_from(middleware):
        return None
    chosen = middleware.signals.policies[policy]
    whole = chosen.after.amount if weight == "ban" else weight
    decided.strikes(middleware, chosen)  # so that the status of the response is no further signal
    signal = Signal(chosen, whole, clean_reason(reason))
    return await middleware.signals.strike(signal, request.scope, decided.client_of(middleware))
