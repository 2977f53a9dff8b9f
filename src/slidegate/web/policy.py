"""What is known about a middleware when it is built. The parts are made in the order in which they need each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ..core.arguments import check_name, expect
from ..core.bans.policy import BanPolicy
from ..core.buckets import Bucket
from ..core.errors import ConfigurationError, quoted
from ..core.networks import Networks
from ..findings.report import Findings
from ..limiter import Limiter
from ..limiter.engine import Engine
from ..limiter.observers import ObserverHub
from .blocklist import Blocklist
from .callbacks import UserCallbacks
from .client_ip import ClientAddress, client_ip
from .clients import AnyClients, Clients, ClientsBehindProxies, FollowedFile, FollowingClients, KeyedClients
from .counting import Counting
from .effects import Report, effects_of
from .headers import Headers, HeaderStyles
from .keys import Key, KeyFunction
from .refusals import OnRefused, Refusals
from .routes import RouteLabels
from .rule_set import Honeypots, Names, RuleSet, all_rules
from .rule_values import Limits, LimitsFunction
from .rules import Rule, checked_key
from .signals import Signals
from .visit import Visit
from .waiting import Waiting
from .websockets import MessageLimits, guard


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Policy:
    """The parts of one middleware, none of which knows it or is replaced; a reload makes another policy.

    Attributes:
        limiter: The limiter that counts.
        engine: Its engine.
        observers: Its observers.
        lists: The blocklist and the allowlist, by option name, as they were given.
        blocklist: The networks that are refused; None for none.
        address: How clients are determined.
        clients: Determines the clients of requests.
        signals: The signals of ban policies.
        rules: The rules, and the plans of requests.
        counting: Makes and charges the checks of requests.
        headers: Writes header fields.
        refusals: Reports and answers refused requests.
        report: Reports outcomes.
        messages: The bucket that counts messages of websockets; None if they have no limits.
        guard: Stands between application and server when a handshake ends.
        names: The names of the buckets.
        files: The files behind the lists and the networks.
        findings: Probable mistakes, found at start-up or in the first requests.
    """

    limiter: Limiter
    engine: Engine
    observers: ObserverHub
    lists: Mapping[str, Networks | None]
    blocklist: Blocklist | None
    address: ClientAddress
    clients: AnyClients
    signals: Signals
    rules: RuleSet
    counting: Counting
    headers: Headers
    refusals: Refusals
    report: Report
    messages: Bucket | None
    guard: Callable[[Visit], None]
    names: Names
    files: Sequence[FollowedFile]
    findings: Findings

    def begin_anew(self) -> None:
        """Render and plan everything anew, because amounts have changed."""
        self.headers.forget()
        self.rules.begin_anew()

    @property
    def default_rule(self) -> Rule | None:
        """The rule of each route, made from `default_limits`; None if there is none."""
        defaults = self.rules.defaults
        return None if defaults is None else defaults.rule

    def buckets(self) -> list[Bucket]:
        """Return all buckets, including those of routes and endpoints that were requested so far."""
        buckets = [bucket for bound in self.rules.bound() for bucket in bound.buckets()]
        if self.messages is not None:
            buckets.append(self.messages)
        return buckets


def build(
    app: object,
    *,
    limits: Limits | LimitsFunction | None = None,
    rules: Sequence[Rule] | None = None,
    default_limits: Limits | LimitsFunction | None = None,
    key: Key | KeyFunction | None = None,
    limiter: Limiter | None = None,
    client: ClientAddress | None = None,
    blocklist: Networks | None = None,
    allowlist: Networks | None = None,
    bans: BanPolicy | Iterable[BanPolicy] | None = None,
    on_refused: OnRefused | None = None,
    headers: HeaderStyles | None = "draft",
    messages: MessageLimits | None = None,
    name: str | None = None,
    owner: object = None,
) -> Policy:
    """Return the policy of a middleware from its options, which `RateLimitMiddleware` describes.

    Args:
        app: The application behind the middleware.
        owner: What owns the names of its unnamed limits, if that outlives the policy.
    """
    if not callable(app):
        example = 'for example RateLimitMiddleware(app, limits="100/minute")'
        raise ConfigurationError(f"expected an ASGI application, {example}, not {quoted(app)}", "app")
    prefix = _prefix_of(name)
    limiter = _limiter_of(limiter)
    expect("client", client, ClientAddress, "client_ip()")
    if client is None:
        client = client_ip()
    checked_key(key)  # also where no rule counts by it
    listed = all_rules(limits, rules, key)
    engine, calls, routes = limiter.engine, UserCallbacks(), RouteLabels()
    writer = Headers(headers, engine.unix_us)
    lists = _checked_lists({"blocklist": blocklist, "allowlist": allowlist})
    blocking: Blocklist | None = None
    if blocklist is not None:
        blocking = Blocklist(blocklist, client.networks, engine.emit)
    signals = Signals(limiter, client, allowlist, bans)
    names = Names(limiter, prefix, owner)
    honeypots: Honeypots | None = None
    if signals.on_request:
        honeypots = signals.honeypots_at
    rule_set = RuleSet(
        listed,
        default_limits,
        key=key,
        app=app,
        limiter=limiter,
        names=names,
        honeypots=honeypots,
        effects_of=partial(effects_of, engine=engine, signals=signals, calls=calls),
        headers=writer,
    )
    files: list[FollowedFile] = [*_follow_lists(lists), *engine.networks]
    of_messages = _bucket_of(messages, names)
    return Policy(
        limiter=limiter,
        engine=engine,
        observers=engine.observers,
        lists=lists,
        blocklist=blocking,
        address=client,
        clients=_clients(client, blocking, allowlist, signals, files),
        signals=signals,
        rules=rule_set,
        counting=Counting(limiter, rule_set, calls, Waiting(limiter, calls), signals),
        headers=writer,
        refusals=Refusals(engine, signals, writer, routes, calls, on_refused),
        report=Report(engine, routes),
        messages=of_messages,
        guard=partial(guard, engine=engine, signals=signals, bucket=of_messages),
        names=names,
        files=files,
        findings=Findings(),
    )


def _prefix_of(name: str | None) -> str:
    """Return what stands in front of the names of the rules of a middleware, from its own name."""
    if name is None:
        return ""
    return f"{check_name(name, 'name')}:"


def _limiter_of(given: Limiter | None) -> Limiter:
    """Return the limiter of a middleware; one of its own if none is given.

    Raises:
        ConfigurationError: It is no limiter, or one that cannot count.
    """
    expect("limiter", given, Limiter, 'Limiter.from_url("redis://localhost:6379/0")')
    if given is None:
        return Limiter()
    if given.store.is_read_only:
        raise ConfigurationError(
            "it was opened with read_only=True, for a tool, and cannot count; leave that out", "limiter"
        )
    return given


def _checked_lists(lists: Mapping[str, Networks | None]) -> Mapping[str, Networks | None]:
    """Return the lists of a middleware, by option name, after checking that they are networks."""
    for option, networks in lists.items():
        expect(option, networks, Networks, 'Networks(["192.0.2.0/24"]) or Networks.from_file("blocked.netset")')
    return lists


def _bucket_of(messages: MessageLimits | None, names: Names) -> Bucket | None:
    """Return the bucket that counts messages of websockets; None if they have no limits."""
    expect("messages", messages, MessageLimits, 'MessageLimits("10/second")')
    if messages is None:
        return None
    return Bucket(names.unique("messages:"), messages.limits)


def _follow_lists(lists: Mapping[str, Networks | None]) -> list[FollowedFile]:
    """Tell the files behind the lists of a middleware what they are used for, and return them.

    Raises:
        ConfigurationError: One of them covers nearly everybody.
    """
    files: list[FollowedFile] = []
    for option, networks in lists.items():
        if networks is not None and networks.file is not None:
            networks.file.serve_as(option)
            files.append(networks.file)
    return files


def _clients(
    address: ClientAddress,
    blocklist: Blocklist | None,
    allowlist: Networks | None,
    signals: Signals,
    files: Sequence[FollowedFile],
) -> AnyClients:
    """Return what determines the clients of requests: the simplest that the options allow."""
    one = Clients
    if address.trusted:
        one = ClientsBehindProxies
    own = one(address, blocklist, allowlist, signals.subjects_of, bool(signals.ban_policies))
    clients: AnyClients = own
    if files:
        clients = FollowingClients(own, files)
    if signals.keyed:
        clients = KeyedClients(clients, signals.with_keys, signals.addresses)
    return clients
