"""The public class: a pure ASGI 3 middleware, and the way of every request through it.

It reads the options, makes its parts, and holds nothing about a request. `__call__` asks `decide.py`, enters the
decision into the `Exchange` of the request (`exchange.py`), and passes the request on, or refuses it: it waits if it
may, the policies strike, the observers are told, and `responses.py` answers. Every message of an answer leaves by the
`send` of the exchange, which adds the header fields (`headers.py`) and tells observers, if there are any, what became
of the request (`outcomes.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Unpack

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..core.arguments import expect, names_checked
from ..core.bans.ban import BanSubject
from ..core.bans.policy import BanPolicy
from ..core.decision import Decision, LimitSet, Reason
from ..core.errors import ConfigurationError
from ..core.networks import Networks
from ..limiter import Limiter
from ..limiter.observers import AnyObserver
from ..limiter.operators import NetworkLookup
from ..limiter.overrides import NamedLimit, Override
from ..limiter.waiting import may_wait
from .bans import BanSignals
from .broken import FailsAtStartup, end_start
from .callbacks import UserCallbacks
from .checks import StartupChecks, about_request, about_routes, about_settings, switched_off
from .client_ip import ClientAddress, client_ip
from .decide import Decider
from .default_limits import DefaultLimits
from .endpoint_refusals import answer_unanswered
from .endpoints import EndpointBuckets, check_decorator_order, limits_below
from .exchange import (
    DISABLED_KEY,
    SCOPE_KEY,
    Exchange,
    Parts,
    allowlisted,
    begin,
    hand_back_uncounted,
    is_failure,
)
from .file_watcher import FileWatcher
from .headers import HeaderStyle, HeaderWriter
from .keys import Key, KeyFunction, files_asked
from .lists import ListFiles, followed
from .outcomes import Outcomes
from .responses import Refusals, Refused
from .routes import RouteIndex, layers
from .rule_set import BoundRule, RuleSet, all_rules, check_names, named_limits
from .rules import Exceeded, Limits, LimitsFunction, Rule
from .websockets import GuardedWebSocket, MessageCounter, MessageLimits, OpenWebSockets

if TYPE_CHECKING:
    from pathlib import Path

    from .reload import FileOptions, ReloadingMiddleware

_GUARDED: Final = frozenset({"http", "websocket"})


class RateLimitMiddleware(FailsAtStartup):
    """Counts requests, and answers those beyond a limit with 429 and an exact `Retry-After`.

    Args:
        app: The application to guard.
        limits: The short form: ``"100/minute"`` for each client address; the same as ``rules=[Rule("*", limits)]``.
        rules: The rules: which requests have which limits. Without `limits` and `rules` only limits at endpoints
            count, which need a middleware above them.
        default_limits: The limits of each route by itself, behind the rules: ``"60/minute"``, or a function of the
            request. ``@RateLimit.exempt`` at an endpoint lifts them; a limit there counts beside them.
        key: Whom `limits`, `default_limits` and rules without a key of their own count: ``header("X-API-Key")``; by
            default the `client`.
        limiter: The limiter that counts; by default one of its own, in memory.
        client: How the client's address is found. Rules count by it unless they have a key, and the lists look at it.
        blocklist: `Networks` whose requests are answered with 403 before anything is counted.
        allowlist: `Networks` whose clients are neither refused nor counted. It is checked before the blocklist.
        bans: The policies that ban clients which keep abusing; one policy, or several with names of their own.
        on_refused: Makes the answer to a refused HTTP request, sync or async, from the request (which has no body here)
            and the decision.
        headers: ``"draft"`` (RateLimit and RateLimit-Policy of draft 11), ``"legacy"`` (X-RateLimit-*), ``"both"`` or
            None.
        messages: The limits of messages over an accepted websocket: ``MessageLimits("10/second")``.
        enabled: False lets everything pass, and so does ``SLIDEGATE_ENABLED=0`` in the environment.
        ignore_checks: Codes of start-up findings, such as ``"SG103"``, that are not reported.

    Attributes:
        app: The application behind the middleware.
        limiter: The limiter that counts.
        rules: The rules of the middleware.
        default_limits: The limits of each route; empty where there are none.
        headers: The style of its header fields.
        on_refused: What makes its answers to refused requests; None for problem details.
        policies: Its ban policies.
        lists: Its block and allow lists, by the names of their options.
        findings: Probable mistakes, found at start-up or in the first requests; each was logged once.
        file: The configuration file that its options come from; None if there is none.

    Raises:
        ConfigurationError: A value cannot work; the message says what would. In the stack that an application
            builds, the middleware answers ``lifespan.startup.failed`` with it instead, see `broken`.
    """

    file: Path | None = None
    _guarded: frozenset[str] = frozenset()
    """What is decided about without a look at it: nothing in the first requests, while it is switched off, or where it
    could not be made."""

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
        headers: HeaderStyle | None = "draft",
        messages: MessageLimits | None = None,
        enabled: bool = True,
        ignore_checks: Iterable[str] = (),
    ) -> None:
        self.app = app
        self.limiter = expect("limiter", limiter, Limiter, 'Limiter.from_url("redis://localhost:6379/0")') or Limiter()
        self._client = expect("client", client, ClientAddress, "client_ip()") or client_ip()
        networks = self.limiter.engine.networks
        lists = followed(self.limiter.engine.emit, blocklist=blocklist, allowlist=allowlist)
        self._files: Sequence[ListFiles | NetworkLookup] = (*lists, *networks)
        self.lists = {"blocklist": blocklist, "allowlist": allowlist}
        self.headers = headers
        self.on_refused = on_refused
        self.rules = tuple(all_rules(limits, rules, key))
        defaults = None
        if default_limits is not None:
            defaults = DefaultLimits(default_limits, key, self._unique_id("per-route:"), app)
        self.default_limits = () if defaults is None else defaults.limits
        self._calls = UserCallbacks()
        self._signals = BanSignals(bans, self.limiter, self._client, allowlist, self._calls)
        self.policies = tuple(self._signals.policies.values())
        self._rules = RuleSet(self.rules, self._unique_id, app, defaults)
        if self._rules.holds:
            self.limiter.engine.expect_permits()
        self._decider = self._made_decider()
        self._messages = self._made_counter(messages)
        self._observe_files(key, getattr(messages, "key", None))
        self._parts = self._made_parts()
        self._sockets = OpenWebSockets(self.limiter.engine.find_ban)
        waits = self._rules.waits or self._rules.holds
        self._hooked = bool(self._rules.reserving) or self._signals.on_status or waits
        self._looked = False
        self._below: list[Rule] = []
        self._check_settings(switched_off(enabled), ignore_checks)
        self._enlist()
        self.limiter.engine.overrides.apply(self)

    def _made_decider(self) -> Decider:
        return Decider(
            self.limiter,
            self._client,
            self._rules,
            **self.lists,
            files=self._files,
            calls=self._calls,
            signals=self._signals,
        )

    def _observe_files(self, *asked: object) -> None:
        """Send observers the events of the files that know networks: those of the limiter, of rules and of keys."""
        for rule in self.rules:
            asked += rule.asked
        engine = self.limiter.engine
        files: list[NetworkLookup | FileWatcher] = [*engine.networks, *files_asked(*asked)]
        for file in files:
            file.observe(engine.emit)

    def _made_counter(self, messages: MessageLimits | None) -> MessageCounter | None:
        """Make what counts the messages of websockets, if they have limits."""
        messages = expect("messages", messages, MessageLimits, 'MessageLimits("10/second")')
        if messages is None:
            return None
        return MessageCounter(messages, self.limiter, self._client, self._unique_id("messages:"))

    def _made_parts(self) -> Parts:
        """Make what requests use of this middleware."""
        routes, engine = RouteIndex(), self.limiter.engine
        return Parts(
            self.limiter,
            self._rules.names(),
            self._signals,
            EndpointBuckets(self._unique_id("endpoints:"), routes, self._decider, self._calls, engine.emit),
            Refusals(self.limiter, self._client, self._signals.policies, self.on_refused, self._calls),
            HeaderWriter(self.headers),
            Outcomes(engine, routes),
        )

    def _check_settings(self, off: str, ignored: Iterable[str]) -> None:
        """Say what is probably a mistake in the options, and get ready to look at the first requests."""
        check_names(self._named_rules())
        self._enabled = not off
        self._checks = StartupChecks(ignored)
        self.findings = self._checks.findings
        self._checks.say(about_settings(self, off))

    @classmethod
    def from_file(
        cls,
        app: ASGIApp,
        path: str | PathLike[str],
        *,
        observers: Iterable[AnyObserver] = (),
        on_exceeded: Exceeded | None = None,
        **options: Unpack[FileOptions],
    ) -> ReloadingMiddleware:
        """Make a middleware whose rules stand in a TOML file, and follow the file's changes.

        Use it as ``app.add_middleware(RateLimitMiddleware.from_file, path="slidegate.toml")``.

        Args:
            app: The application to guard.
            path: The file. It is looked at again at most once a second, when requests come.
            observers: Called with events of the limiter that the file describes, ``config_reloaded`` and
                ``config_rejected`` among them. A limiter given in code has its own.
            on_exceeded: The function that the file's rules with ``on_exceeded = true`` call.
            options: Options of `RateLimitMiddleware`; they go before those of the file. Beside a `limiter` the file
                has no ``store``, ``deadline``, ``on_error`` and ``networks``.

        Raises:
            ConfigurationError: The file cannot be used; the message names the path of the key.
        """
        # Most read no file, and everything that reads one is a tenth of what the package takes to be imported.
        from .reload import ReloadingMiddleware

        return ReloadingMiddleware(app, path, make=_Read, observers=observers, on_exceeded=on_exceeded, **options)

    def bound(self) -> list[BoundRule]:
        """Return the rules with their buckets, those for endpoints and routes that were met so far too."""
        return [*self._rules.bound(), *self._parts.endpoints.met()]

    def buckets(self) -> list[LimitSet]:
        """Return the buckets to count in, those of routes and endpoints that requests have reached."""
        messages = () if self._messages is None else self._messages.buckets()
        return [*(bucket for bound in self.bound() for bucket in bound.buckets()), *messages]

    def named_limits(self) -> Iterator[NamedLimit]:
        """Yield the limits as the code says them, those at endpoints that no request has met yet too."""
        for bound in self.bound():
            yield from bound.named_limits()
        for rule in self._below:
            yield from named_limits(rule, rule.wire_names(), rule.all_limits)

    def override(self, overrides: Mapping[str, Override]) -> None:
        """Count by the limits that operators have changed from now on, and by the code where there is none."""
        for bound in self._rules.bound():
            bound.override(overrides)
        self._parts.endpoints.override(overrides)
        self._decider.forget_clients()

    def begin_anew(self) -> None:
        """Look at the next request as at the first ones: what these have begun goes on in the parent of `fork`."""
        self._guarded = frozenset()

    @property
    def client(self) -> ClientAddress:
        """What finds the client's address."""
        return self._client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Decide about one request, and pass it on or answer it."""
        if scope["type"] not in self._guarded and not await self._begin(scope, receive, send):
            return
        outer: Exchange | None = scope.get(SCOPE_KEY)
        above = None if outer is None else outer.parts
        exchange = begin(self._parts, scope, send, outer)
        if outer is None:
            send = exchange.send
        hooks = 0 if outer is None else len(outer.on_start)
        try:
            answer = self._decider.decide(scope, exchange)
            decision = answer if isinstance(answer, Decision) else await answer
            allowed = exchange.enter(decision)
            if allowed or await self._refuse(exchange, scope, receive, send, decision):
                if self._hooked or scope["type"] == "websocket":
                    receive, send = self._prepare(exchange, scope, receive, send)
                await self.app(scope, receive, send)
            if outer is None and exchange.is_open:
                await answer_unanswered(None, exchange, scope, receive, send)
                await exchange.end()
        except BaseException as error:
            if not await self._fail(exchange, scope, receive, send, error, hooks, outermost=outer is None):
                raise
        finally:
            if above is None:
                exchange.leave()
            else:
                exchange.parts = above  # the application further out may go on, with limits at endpoints of its own

    async def _refuse(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send, decision: Decision) -> bool:
        """Refuse a request: let it wait if it may, count strikes, notify the observers, then answer.

        Returns:
            Whether it was let in after all.
        """
        if self._rules.waits and may_wait(decision):
            last = await exchange.wait(receive, decision, self.limiter, self._subjects(scope))
            if last is None:
                return False
            if exchange.enter(last):
                await self._decider.look_after_wait(scope, exchange)
                return True
            decision, receive = last, exchange.channel_of(receive)
        if decision.reason is not Reason.BANNED and (self.policies or exchange.entries):
            decision = await exchange.strike(scope, decision)
        await self._parts.refusals.send(decision, exchange.refuse(scope, decision), scope, receive, send)
        return False

    async def _fail(
        self,
        exchange: Exchange,
        scope: Scope,
        receive: Receive,
        send: Send,
        error: BaseException,
        hooks: int,
        *,
        outermost: bool,
    ) -> bool:
        """Do what an exception of the application leaves to do; return whether it ends here.

        Args:
            exchange: The request.
            scope: Its scope.
            receive: Its receive channel.
            send: Sends to the client.
            error: The exception.
            hooks: How many hooks are those of middlewares further out.
            outermost: Whether no middleware stands further out.
        """
        answered = False
        try:
            if isinstance(error, Exception):
                if is_failure(error) and exchange.refusal is None and not exchange.status:
                    await exchange.start(scope, 500, (), hooks)  # a server makes that of it
                answered = await answer_unanswered(error, exchange, scope, receive, send)
        finally:
            if outermost:
                await exchange.end(None if answered else error)
        return answered

    def _prepare(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """Note what waits for the status of the answer, and watch over a websocket."""
        _, decision = exchange.entries[-1]
        exchange.holds |= self._rules.holds
        for index, (bucket, _, _) in enumerate(decision.checks if self._rules.reserving else ()):
            rule = None if bucket.held else self._rules.reserving.get(bucket.rule)
            if rule is not None:
                settle = hand_back_uncounted(self._calls, rule, self.limiter, decision, index)
                exchange.on_start = [*exchange.on_start, settle]
        if self._signals.on_status and self._parts not in exchange.exempt:
            outer = [parts.signals for parts, _ in exchange.entries[:-1]]
            exchange.on_start = [*exchange.on_start, partial(self._strike_for_status, outer)]
        if scope["type"] == "websocket" and not allowlisted(exchange.entries):
            socket = self._watch_over(exchange, scope, receive, send)
            return socket.receive, socket.send
        return exchange.channel_of(receive), send

    async def _strike_for_status(self, outer: Sequence[BanSignals], scope: Scope, status: int, fields: object) -> None:
        """Strike for the status of an answer, unless it is a refusal, or nothing is held against the client."""
        exchange: Exchange = scope[SCOPE_KEY]
        if exchange.refusal is None and not exchange.exempt_from(self._parts):
            await self._signals.strike_for(status, scope, outer)

    def _subjects(self, scope: Scope) -> Sequence[BanSubject]:
        """Return the keys and addresses whose bans refuse a request."""
        return self._signals.subjects(scope, *self._client.locate(scope))

    def _watch_over(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> GuardedWebSocket:
        """Return a websocket that ends when its client is banned."""

        async def strike() -> bool:
            # A middleware further in may have let it pass.
            return not allowlisted(exchange.entries) and bool(await exchange.strike_for_refusal(scope))

        channel, subjects = exchange.read_ahead(receive), self._subjects(scope)
        return GuardedWebSocket(scope, channel, send, subjects, self._sockets, strike, self._messages)

    async def _begin(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Look at the routes in the first call. Pass on what is not decided about; return True for the rest."""
        if self.error is not None:
            await end_start(self.error, scope, receive, send)
        if self._enabled:
            if not self._looked:
                try:
                    self._look_at_routes(scope.get("app", self.app))
                except ConfigurationError as error:
                    await end_start(error, scope, receive, send)
                self._looked = True
            self.limiter.engine.overrides.start()
            if scope["type"] in _GUARDED:
                self._look_at_request(scope)
                return True
        if scope["type"] in _GUARDED:
            scope[DISABLED_KEY] = True
        elif scope["type"] == "lifespan":
            send = _ending(self.limiter, send)
        await self.app(scope, receive, send)
        return False

    def _look_at_routes(self, app: ASGIApp) -> None:
        """Check the limits at endpoints, and say what the routes show to be probable mistakes."""
        check_decorator_order(app)
        below = list(limits_below(self.app, self.limiter))
        check_names([*self._named_rules(), *below])
        self._below = [rule for rule, _ in below if rule.name is not None]
        self._checks.say(about_routes(self, app))

    def _named_rules(self) -> list[tuple[Rule, str]]:
        """Return the rules of this middleware and those further in that ask the same limiter."""
        named = [(rule, "in a middleware") for rule in self.rules]
        for layer in layers(self.app):
            if isinstance(layer, RateLimitMiddleware) and layer.error is None and layer.limiter is self.limiter:
                named += [(rule, "in another further in") for rule in layer.rules]
        return named

    def _enlist(self) -> None:
        """Have the middleware found by those who ask the limiter which rules are in force."""
        self.limiter.engine.callers.add(self)

    def _unique_id(self, identity: str) -> str:
        """Return an identity for counts that no other middleware has; a file that is read again claims the same one."""
        return self.limiter.engine.unique_id(identity)

    def _look_at_request(self, scope: Scope) -> None:
        """Look for findings in the first requests."""
        if self._checks.left:
            self._checks.left -= 1
            self._checks.say(about_request(scope, self._client, gone=self._decider.is_gone(scope)))
        else:
            self._guarded = _GUARDED


class _Read(RateLimitMiddleware):
    """A middleware whose options were read from a file; the one before it, of the same file, claimed its identities.

    Args:
        app: The application to guard.
        shared: Follows the file, and knows the identities that its middlewares share.
        options: Options of `RateLimitMiddleware`.
    """

    def __init__(self, app: ASGIApp, shared: ReloadingMiddleware, options: Mapping[str, Any]) -> None:
        self._shared = shared
        self.file = shared.file
        super().__init__(app, **options)

    def _unique_id(self, identity: str) -> str:
        return self._shared.unique_id(identity, self.limiter)

    def _enlist(self) -> None:
        """Do nothing: the `ReloadingMiddleware` enlists those that it puts to work."""


def _ending(limiter: Limiter, send: Send) -> Send:
    """Return the `send` of a lifespan, made to end what stands on the limiter before the server ends.

    Many applications never close their limiter. Where nothing stands on it `send` stays as it is.
    """

    async def end_first(message: Message) -> None:
        if message["type"].startswith("lifespan.shutdown."):
            await limiter.engine.end()
        await send(message)

    return end_first if limiter.engine.ending else send
