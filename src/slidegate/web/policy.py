"""What is known about a middleware when it is built, and the findings about it.

The parts of a policy are made in the order in which they need each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, ClassVar, Final, NamedTuple

from ..core.buckets import Bucket
from ..core.errors import ConfigurationError
from ..core.logs import logger
from ..core.networks import Networks, networks_of
from ..limiter import Limiter
from ..limiter.bans import FollowedFile
from .callbacks import UserCallbacks
from .client_ip import ClientAddress, client_ip
from .clients import AnyClients, Blocklist, Clients, ClientsBehindProxies, FollowingClients, KeyedClients
from .counting import Counting
from .headers import Headers
from .refusals import Refusals
from .routes import RouteLabels
from .rule_set import Names, RuleSet, all_rules
from .signals import Signals
from .websockets import GuardedWebSocket

MOST_ALIKE: Final = 10
"""The most rules and routes that findings of one kind name."""
REQUESTS_CHECKED: Final = 1_000
"""The number of requests that are checked."""


class Finding(NamedTuple):
    """A setting that works, but probably not as intended.

    Attributes:
        code: Its kind, for example ``"SG103"``.
        message: The probable mistake and its remedy.
    """

    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class Findings:
    """The findings about one middleware.

    Attributes:
        reported: The findings so far.
        requests_left: How many of the next requests are checked.
        latest_limits: The limits at endpoints that were met last for the first time, each as a weak reference.
        first: The first requests: the key of the client of each, and a hash of what its header fields name.
    """

    def __init__(self) -> None:
        self.reported: list[Finding] = []
        self.requests_left = REQUESTS_CHECKED
        self.latest_limits: deque[Any] = deque(maxlen=10)
        self.first: list[tuple[str, int]] = []

    def report(self, findings: Iterable[Finding]) -> None:
        """Report the first findings of one kind. If a check raises, that is logged and no request fails."""
        try:
            for finding in islice(findings, MOST_ALIKE):
                if finding not in self.reported:
                    self.reported.append(finding)
                    logger.warning("%s", finding)
        except Exception:
            logger.exception("checking for findings failed")


class Policy:
    """The parts of one middleware, none of which knows it or is replaced; a reload makes another policy.

    Args:
        app: The application behind the middleware.
        options: The options that `RateLimitMiddleware` describes; those that are left out have their defaults.
        owner: What owns the names of its unnamed limits; it outlives the policy.

    Attributes:
        limiter: The limiter that counts.
        engine: Its engine.
        observers: Its observers.
        lists: The blocklist and the allowlist, by option name, as they were given.
        address: How clients are determined.
        clients: Determines the clients of requests.
        signals: The signals of ban policies.
        names: The names of the buckets.
        headers: Writes header fields.
        rules: The rules, and the plans of requests.
        counting: Decides requests, and charges their checks.
        refusals: Reports and answers refused requests.
        routes: Determines the routes of requests.
        messages: The bucket that counts messages of websockets; None if they have no limits.
        guard: Stands between application and server when a handshake ends.
        files: The files behind the lists and the networks.
        findings: Probable mistakes, found at start-up or in the first requests.
    """

    inspection: ClassVar[Any]
    """What looks for these, the module `findings.inspection`: it stands above what decides requests."""

    def __init__(self, app: object, options: Mapping[str, Any], owner: object) -> None:
        option = options.get
        self.lists: Mapping[str, Networks | None] = {
            name: networks_of(option(name), name) for name in ("blocklist", "allowlist")
        }
        self.limiter: Limiter = option("limiter") or Limiter()
        if self.limiter.store.is_read_only:
            raise ConfigurationError(
                "it was opened with read_only=True, for a tool, and cannot count; leave that out", "limiter"
            )
        self.engine = engine = self.limiter.engine
        self.observers = engine.observers
        self.names = Names(self.limiter, option("name"), owner)
        self.address: ClientAddress = option("client") or client_ip()
        calls = UserCallbacks(self.limiter)
        self.signals = signals = Signals(self.limiter, self.address, self.lists["allowlist"], option("bans"), calls)
        self.headers = Headers(option("headers", "draft"), engine.unix_us)
        self.routes = RouteLabels()
        self.rules = RuleSet(
            all_rules(option("limits"), option("rules"), option("key")),
            option("default_limits"),
            key=option("key"),
            app=app,
            limiter=self.limiter,
            names=self.names,
            signals=signals,
            calls=calls,
            headers=self.headers,
        )
        self.files = self._followed()
        self.clients = self._clients()
        self.counting = Counting(engine, self.rules, calls, signals)
        self.refusals = Refusals(engine, signals, self.headers, calls, option("on_refused"))
        self.messages: Bucket | None = None
        messages = option("messages")
        if messages is not None:
            self.messages = Bucket(self.names.unique("messages:"), messages.limits)
        self.guard = GuardedWebSocket
        self.findings = Findings()

    def _followed(self) -> list[FollowedFile]:
        """Return the files behind the lists and the networks.

        Raises:
            ConfigurationError: A list covers nearly everybody.
        """
        files: list[FollowedFile] = [*self.engine.networks]
        exempt = [("exempt", policy.exempt) for policy in self.signals.ban_policies.values()]
        for option, networks in (*self.lists.items(), *exempt):
            if networks is not None and networks.file is not None:
                networks.file.serve_as(option)
                files.append(networks.file)
        return files

    def _clients(self) -> AnyClients:
        """Return what determines the clients of requests: the simplest that the options allow."""
        signals = self.signals
        kind = Clients
        if self.address.trusted:
            kind = ClientsBehindProxies
        blocklist, allowlist = self.lists.values()
        self.blocklist: Blocklist | None = None
        if blocklist is not None:
            self.blocklist = Blocklist(blocklist, self.address.networks)
        remembered = kind(self.address, self.blocklist, allowlist, signals.subjects_of, bool(signals.ban_policies))
        clients: AnyClients = remembered
        if self.files:
            clients = FollowingClients(remembered, self.files)
        if signals.keyed:
            clients = KeyedClients(clients, signals.with_keys, signals.addresses)
        return clients

    def restart(self) -> None:
        """Render and plan everything again, because amounts have changed."""
        self.headers.forget()
        self.rules.restart()

    def buckets(self) -> list[Bucket]:
        """Return all buckets, including those of routes and endpoints that were requested so far."""
        buckets = [bucket for bound in self.rules.bound() for bucket in bound.buckets()]
        if self.messages is not None:
            buckets.append(self.messages)
        return buckets
