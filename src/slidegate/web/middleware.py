"""The public class: a pure ASGI 3 middleware that every request passes through.

The constructor validates the options and creates the parts; no per-request state lives on the instance. `__call__`
finds the plan of a request (`rule_set.py`), and the question that was prepared for its client under this plan; the
limiter answers it. Without such a question `decide.py` decides. An `Exchange` (`exchange.py`) records the decision, and
its `send` adds the header fields (`headers.py`) to the first message of the response and calls the hooks (`hooks.py`).
A refused request strikes, is reported and answered (`responses.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..core.arguments import check_name, expect, names_checked
from ..core.bans.policy import BanPolicy
from ..core.buckets import Bucket
from ..core.decision import Decision, Reason
from ..core.networks import Networks
from ..limiter import Limiter
from ..limiter.operators import NetworkLookup
from ..limiter.overrides import NamedLimit
from . import checks
from .bans import BanSignals
from .broken import FailsAtStartup, end_start
from .callbacks import UserCallbacks
from .client_ip import ClientAddress, Clients, client_ip
from .decide import Decider
from .decided import DECIDED_KEY, EXCHANGE_KEY, UNCOUNTED, Decided
from .exchange import Exchange
from .headers import HeaderStyles, HeaderWriter
from .hooks import Report
from .keys import Key, KeyFunction
from .lists import ListFile
from .responses import Refusals, Refused
from .routes import RouteLabels, visible_app
from .rule_set import Plan, RuleSet, all_rules
from .rules import Limits, LimitsFunction, Rule, checked_key
from .websockets import GuardedWebSocket, MessageLimits

if TYPE_CHECKING:
    from pathlib import Path

    from .reload import ReloadingMiddleware

_REQUESTS: Final = ("http", "websocket")
_NOTHING: Final[Mapping[str, Plan | None]] = MappingProxyType({})
_DISABLED: Final = Decision(True, Reason.DISABLED)


class _OfFiles:
    """Gives the class of middlewares that follow a file, a `ReloadingMiddleware`.

    What is given to `add_middleware` is a class, because agents that trace middlewares replace its ``__call__``. It is
    imported where it is used: most applications read no file, and this is a tenth of the package's import time.
    """

    def __get__(self, middleware: object, kind: object) -> type[ReloadingMiddleware]:
        from .reload import ReloadingMiddleware

        return ReloadingMiddleware


class RateLimitMiddleware(FailsAtStartup):
    """Counts requests and answers those over a limit with 429 and an exact `Retry-After`.

    Args:
        app: The application to guard.
        limits: Shorthand for one rule, ``rules=[Rule("*", limits)]``: ``"100/minute"`` for each client address.
        rules: The rules: which requests have which limits. Without `limits` and `rules` only limits at endpoints
            apply; they need a middleware around them.
        default_limits: Limits that apply to each route separately, in addition to the rules: ``"60/minute"``, or a
            function of the request. ``@RateLimit.exempt`` lifts them from an endpoint; a `RateLimit` adds to them.
        key: The key by which `limits`, `default_limits` and rules without their own key count, such as
            ``header("X-API-Key")``. The default is `client`.
        limiter: The limiter that counts. The default is a new one in memory.
        client: Determines the client's address, which is the default key of rules and is checked against the lists.
        blocklist: `Networks` that get a 403 before anything is counted.
        allowlist: `Networks` that are neither refused nor counted. It is checked before the blocklist.
        bans: The ban policy for abusive clients, or several policies with distinct names.
        on_refused: A sync or async function that builds the response to a refused HTTP request from the request
            (without its body) and the decision, whose `status` is that of the default response. It returns None for
            the default.
        headers: ``"draft"`` (RateLimit and RateLimit-Policy of draft 11), ``"legacy"`` (X-RateLimit-*), both in a
            tuple, or None.
        messages: The limits for messages on an accepted websocket: ``MessageLimits("10/second")``.
        enabled: False switches the middleware off, as ``SLIDEGATE_ENABLED=0`` does.
        name: Stands in front of the names of its rules in the store, so that they count apart from rules of the same
            name in other middlewares.

    Attributes:
        app: The application behind the middleware.
        limiter: The limiter that counts.
        client: Determines the client's address.
        prefix: What stands in front of the names of its rules.
        rules: The rules of the middleware.
        default_rule: The rule of each route, made from `default_limits`; None if there is none.
        key: What `default_limits` count by; None for the client's address.
        lists: Its blocklist and its allowlist, by option name.
        policies: Its ban policies.
        signals: What they strike for.
        calls: Calls the user's functions.
        rule_set: Its rules with their buckets, and what is known of requests that match the same ones.
        clients: Determines the clients of requests.
        decider: Decides requests.
        route_labels: Determines the routes of requests for observers.
        report: Reports the outcomes of requests to them.
        refusals: Counts, reports and answers refused requests.
        header_writer: Writes its header fields.
        crowd: What the first requests tell about who makes all clients one.
        findings: Probable mistakes found at start-up or in the first requests. Each is logged once.
        file: The configuration file that its options come from; None if there is none.
        behind: The application whose routes were checked; None before the first call.

    Raises:
        ConfigurationError: An option is invalid; the message names what was expected. Within an application's
            middleware stack the error is sent as ``lifespan.startup.failed`` instead, see `broken`.
    """

    file: Path | None = None
    behind: object = None
    given: tuple[object, ...] = ()
    """Its options as they were given, if it counts apart from others."""
    is_within = False
    """Whether it is at a route or a mount, below what answers the exceptions of an application."""
    _owner: object = None
    """What counts by its identities after it, if it was read from a file."""
    _has_unnamed = False
    """Whether it has limits without a name, which count apart from those of every other middleware."""
    _decided: Mapping[str, Plan | None] = _NOTHING
    """The scope types that are decided without `_begin`, with the plan of all their requests if they have the same one.
    Empty during the first requests, while switched off, and after a failed construction."""

    @names_checked
    def __init__(
        self,
        app: ASGIApp,
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
        on_refused: Refused | None = None,
        headers: HeaderStyles | None = "draft",
        messages: MessageLimits | None = None,
        enabled: bool = True,
        name: str | None = None,
    ) -> None:
        self.app = app
        if self.is_built:
            return
        self.prefix = "" if name is None else f"{check_name(name, 'name')}:"
        self.limiter = expect("limiter", limiter, Limiter, 'Limiter.from_url("redis://localhost:6379/0")') or Limiter()
        self.client = expect("client", client, ClientAddress, "client_ip()") or client_ip()
        self.key = checked_key(key)  # also where no rule counts by it
        self.rules = tuple(all_rules(limits, rules, key))
        self._engine = self.limiter.engine
        self.header_writer = HeaderWriter(headers, self._engine.unix_us)
        self.calls = UserCallbacks()
        self._observers, self._clock = self._engine.observers, self._engine.clock
        self.route_labels = RouteLabels()  # not `routes`: applications have those
        self.report = Report(self._engine, self.route_labels)
        self.lists = {"blocklist": blocklist, "allowlist": allowlist}
        for option, networks in self.lists.items():
            expect(option, networks, Networks, 'Networks(["192.0.2.0/24"]) or Networks.from_file("blocked.netset")')
        in_files: dict[str, ListFile | None] = {
            option: getattr(networks, "file", None) for option, networks in self.lists.items()
        }
        for option, list_file in in_files.items():
            if list_file is not None:
                list_file.serve_as(option)
        files: Sequence[ListFile | NetworkLookup] = (*filter(None, in_files.values()), *self._engine.networks)
        self.signals = BanSignals(self, bans)
        self.policies = tuple(self.signals.policies.values())
        self.rule_set = RuleSet(self, default_limits)
        self.default_rule = None if self.rule_set.defaults is None else self.rule_set.defaults.rule
        self.clients = Clients(self, files)
        self._who = self.clients.who
        self.decider = Decider(self)
        self.refusals = Refusals(self, on_refused)
        messages = expect("messages", messages, MessageLimits, 'MessageLimits("10/second")')
        self._messages = None if messages is None else Bucket(self.unique_id("messages:"), messages.limits)
        for file in files:
            file.observe(self._engine.emit)
        off = checks.switched_off(enabled)
        self._enabled = not off
        self._unchecked = checks.REQUESTS_CHECKED
        self.findings: list[checks.Finding] = []
        self.crowd = checks.Crowd(self)
        checks.report(self, checks.about_settings(self, off))
        if self.file is None:  # else it is made for each change, and the `ReloadingMiddleware` registers it
            if limiter is None or self._has_unnamed:
                self.given = (limits, rules, default_limits, key, limiter, client, blocklist, allowlist, bans, messages)
                checks.report(self, checks.about_building(self))
            self._engine.register(self)
        self.is_built = True

    from_file = _OfFiles()
    """The middleware that reads its options from a TOML file, and again when the file changes; see `_OfFiles`."""

    def unique_id(self, identity: str) -> str:
        """Return an identity for counts, unique among middlewares and stable when a configuration file is reloaded."""
        self._has_unnamed = True
        return self._engine.unique_id(self.prefix + identity, self._owner or self)

    # -- what others read ----------------------------------------------------------------------------------------------

    def buckets(self) -> list[Bucket]:
        """Return all buckets, including those of routes and endpoints that were requested so far."""
        messages = [] if self._messages is None else [self._messages]
        return [*(bucket for bound in self.rule_set.bound() for bucket in bound.buckets()), *messages]

    def limits_by_name(self) -> list[NamedLimit]:
        """Return the limits that operators can change."""
        return [one for bound in self.rule_set.bound() for one in bound.named]

    def begin_anew(self) -> None:
        """Treat the next request like the first one: after a fork, a switch, or a change of an amount."""
        self._decided = _NOTHING
        self.header_writer.forget()
        self.rule_set.forget_questions()

    # -- requests ------------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Decide one request, then call the application or refuse the request."""
        plan = self._decided.get(scope["type"])
        if plan is None or scope.get("method") == "OPTIONS":  # perhaps a preflight
            begun = send if scope["type"] in self._decided else await self._begin(scope, receive, send)
            if begun is None:
                return
            send = begun
            plan = self.rule_set.match(scope)
        who = self._who(scope)
        outer = scope.get(EXCHANGE_KEY)
        decided = scope[DECIDED_KEY] = Decided() if outer is None else outer.decided.entered(self, outer)
        exchange = scope[EXCHANGE_KEY] = Exchange(self, scope, receive, send, plan.hooks, decided)
        try:
            if self._observers.requests and not (decided and self._is_reported(decided)):
                exchange.began_ns = self._clock.monotonic_ns()
                exchange.hooks = plan.reported
            question = plan.questions.get(who)
            if question is None:
                decision = self.decider.decide(exchange, plan, self.clients.of(scope, who))
            else:
                exchange.client = decided.client = question.client
                decision = self._engine.ask(question)
            if not isinstance(decision, Decision):
                decision = await decision
            exchange.own = (decision,)
            decided.append((self, decision))
            if not decision.allowed:
                answer = await self.refusals.count(exchange, scope, decision)
                await self.refusals.send(decision, answer, exchange, exchange.receive)
            else:
                if plan.is_websocket and decision.reason not in UNCOUNTED:
                    GuardedWebSocket(exchange, self._messages)
                await self.app(scope, exchange.receive, exchange.send)
            if exchange.hooks:
                await exchange.end(None)
        except BaseException as error:
            await exchange.end(error)
            raise
        finally:
            scope[EXCHANGE_KEY] = outer  # the exchange refers to the scope

    def _is_reported(self, decided: Decided) -> bool:
        """Return whether another middleware reports a request when it ends: the outermost one of a limiter."""
        return any(other.limiter is self.limiter and decision is not _DISABLED for other, decision in decided)

    # -- the first requests, and those while it is switched off --------------------------------------------------------

    @property
    def is_checking(self) -> bool:
        """Whether findings are still looked for in requests."""
        return self._unchecked > 0

    async def _begin(self, scope: Scope, receive: Receive, send: Send) -> Send | None:
        """Check the routes in the first call. Return the `send` of a call that is to be decided, or pass it on."""
        if self.error is not None:
            await end_start(self.error, scope, receive, send)
        if self._enabled and self._engine.overrides.may_change:
            self._engine.overrides.refresh_if_due()
        counts = self._enabled and self._engine.counts
        if counts and self.behind is None:
            self.check_routes(visible_app(self.app, {"app": scope.get("app", self.app)}))
        if scope["type"] in _REQUESTS:
            self.is_within = "starlette.exception_handlers" in scope
            if counts:
                if self._unchecked:
                    self._unchecked -= 1
                    checks.report(self, checks.about_request(self, scope))
                    send = checks.comparing(self, scope, send)
                self._decided = _NOTHING if self._unchecked else {"http": self.rule_set.always, "websocket": None}
                return send
            await self._pass_on(scope, receive, send)
        else:
            await self.app(scope, receive, _ending(self.limiter, send) if scope["type"] == "lifespan" else send)
        return None

    def check_rules(self) -> None:
        """Report the findings about the rules, where no application is known."""
        checks.report(self, checks.about_rules(self))

    def check_routes(self, behind: object) -> None:
        """Report the findings about the routes of the application behind the middleware."""
        self.behind = behind
        checks.report(self, checks.about_routes(self, behind))

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass while the middleware is switched off. What the application may call finds a decision."""
        outer = scope.get(EXCHANGE_KEY)
        decided = scope[DECIDED_KEY] = Decided() if outer is None else outer.decided.entered(self, outer)
        exchange = scope[EXCHANGE_KEY] = Exchange(self, scope, receive, send, (), decided)
        exchange.client = decided.client = self.clients.find(scope)
        exchange.record(_DISABLED)
        try:
            await self.app(scope, receive, send)
        finally:
            scope[EXCHANGE_KEY] = outer


def _ending(limiter: Limiter, send: Send) -> Send:
    """Return a lifespan `send` that stops the limiter's background work before it reports the shutdown.

    Many applications never close their limiter.
    """

    async def end_first(message: Message) -> None:
        if message["type"].startswith("lifespan.shutdown."):
            await limiter.engine.end()
        await send(message)

    return end_first
