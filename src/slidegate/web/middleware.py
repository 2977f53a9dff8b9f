"""The public class: a pure ASGI 3 middleware that every request passes through.

The constructor validates the options and creates the parts; no per-request state lives on the instance. `__call__` gets
a decision from `decide.py`, for which a request may have to wait, records it in the request's `Exchange`
(`exchange.py`), and then calls the application or refuses the request: ban policies count strikes, observers are
notified, and `responses.py` sends the answer. Every message of a response passes through `Exchange.send`, which adds
the header fields (`headers.py`) and reports the outcome to observers, if there are any (`outcomes.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Final, Unpack

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..core.arguments import expect, names_checked
from ..core.bans.ban import BanSubject
from ..core.bans.policy import BanPolicy
from ..core.decision import Bucket, Decision, Reason
from ..core.errors import ConfigurationError
from ..core.networks import Networks
from ..limiter import Limiter
from ..limiter.named_limits import NamedLimit
from ..limiter.observers import AnyObserver
from ..limiter.operators import NetworkLookup
from .bans import BanSignals
from .broken import FailsAtStartup, end_start
from .buckets import buckets_of, named_limits
from .callbacks import UserCallbacks
from .checks import StartupChecks, about_building, about_request, about_routes, about_settings, switched_off
from .client_ip import ClientAddress, client_ip
from .decide import Decider
from .declared_limits import check_decorator_order, limits_below
from .default_limits import DefaultLimits
from .endpoint_refusals import answer_unanswered
from .endpoints import EndpointBuckets
from .exchange import (
    DISABLED_KEY,
    SCOPE_KEY,
    Above,
    Exchange,
    Parts,
    allowlisted,
    begin,
    hand_back_uncounted,
    is_failure,
)
from .headers import HeaderStyle, HeaderWriter
from .keys import Key, KeyFunction, files_asked
from .lists import ListFiles, checked_files
from .outcomes import Outcomes
from .paths import PathReader
from .responses import Refusals, Refused
from .routes import RouteIndex, layers
from .rule_list import all_rules, check_names
from .rule_set import BoundRule, RuleSet
from .rules import Exceeded, Limits, LimitsFunction, Rule
from .websockets import GuardedWebSocket, MessageCounter, MessageLimits, OpenWebSockets

if TYPE_CHECKING:
    from pathlib import Path

    from .reload import FileOptions, ReloadingMiddleware

_GUARDED: Final = frozenset({"http", "websocket"})


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
        blocklist: `Networks` whose requests are answered with 403 before anything is counted.
        allowlist: `Networks` whose clients are neither refused nor counted. It is checked before the blocklist.
        bans: The ban policy for abusive clients, or several policies with distinct names.
        on_refused: A sync or async function that builds the response to a refused HTTP request from the request
            (without its body) and the decision, whose `status` is that of the default response. It returns None for
            the default.
        headers: ``"draft"`` (RateLimit and RateLimit-Policy of draft 11), ``"legacy"`` (X-RateLimit-*), ``"both"`` or
            None.
        messages: The limits for messages on an accepted websocket: ``MessageLimits("10/second")``.
        enabled: False switches the middleware off, as ``SLIDEGATE_ENABLED=0`` in the environment does.
        ignore_checks: Codes of start-up findings, such as ``"SG103"``, that are not reported.

    Attributes:
        app: The application behind the middleware.
        limiter: The limiter that counts.
        client: Determines the client's address.
        rules: The rules of the middleware.
        default_limits: The limits that apply to each route; empty if there are none.
        key: What `default_limits` count by; None for the client's address.
        headers: The style of its header fields.
        on_refused: The function that builds responses to refused requests; None for problem details.
        policies: Its ban policies.
        lists: Its blocklist and allowlist, by option name.
        findings: Probable mistakes found at start-up or in the first requests. Each is logged once.
        file: The configuration file that its options come from; None if there is none.

    Raises:
        ConfigurationError: An option is invalid; the message names what was expected. Within an application's
            middleware stack the error is sent as ``lifespan.startup.failed`` instead, see `broken`.
    """

    file: Path | None = None
    _guarded: frozenset[str] = frozenset()
    """The scope types that skip `_begin`. Empty during the first requests, while switched off, and after a failed
    construction."""

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
        self.client = expect("client", client, ClientAddress, "client_ip()") or client_ip()
        self.lists = {"blocklist": blocklist, "allowlist": allowlist}
        self._files: Sequence[ListFiles | NetworkLookup] = (*checked_files(self.lists), *self.limiter.engine.networks)
        self.headers = headers
        self.on_refused = on_refused
        self.rules = tuple(all_rules(limits, rules, key))
        defaults = None
        if default_limits is not None:
            defaults = DefaultLimits(
                default_limits, key, self._unique_id("per-route:"), app, self.limiter.engine.overrides.register
            )
        self.default_limits = () if defaults is None else defaults.limits
        self.key = key
        self._calls = UserCallbacks()
        paths = PathReader(app)
        self._signals = BanSignals(bans, self.limiter, self.client, allowlist, self._calls, paths)
        self.policies = tuple(self._signals.policies.values())
        self._rules = RuleSet(self.rules, self._unique_id, paths, defaults)
        if self._rules.holds:
            self.limiter.engine.expect_permits()
        self._decider = self._made_decider()
        self._messages = self._made_counter(messages)
        self._observe_files(key, getattr(messages, "key", None))
        self._parts = self._made_parts()
        self._sockets = OpenWebSockets(self.limiter.engine.find_ban)
        waits = self._rules.waits or self._rules.holds
        self._hooked = bool(self._rules.reserving) or self._signals.on_status or waits
        self._routes_checked = False
        self._below: list[NamedLimit] = []
        self._check_settings(switched_off(enabled), ignore_checks)
        if limiter is None:
            given = (limits, rules, default_limits, key, client, blocklist, allowlist, bans, messages)
            self._checks.report(about_building(self, given))
        self._register()

    def _made_decider(self) -> Decider:
        return Decider(
            self.limiter,
            self.client,
            self._rules,
            **self.lists,
            files=self._files,
            calls=self._calls,
            signals=self._signals,
        )

    def _observe_files(self, *asked: object) -> None:
        """Send observers the events of all files of networks: those of the lists, the limiter, rules and keys."""
        for rule in self.rules:
            asked += rule.asked
        for file in (*self._files, *files_asked(*asked)):
            file.observe(self.limiter.engine.emit)

    def _made_counter(self, messages: MessageLimits | None) -> MessageCounter | None:
        """Return the counter of websocket messages; None if they have no limits."""
        messages = expect("messages", messages, MessageLimits, 'MessageLimits("10/second")')
        if messages is None:
            return None
        return MessageCounter(messages, self.limiter, self.client, self._unique_id("messages:"))

    def _made_parts(self) -> Parts:
        """Return the parts of this middleware that requests use."""
        routes, engine = RouteIndex(), self.limiter.engine
        return Parts(
            self.limiter,
            self._rules.names(),
            self._signals,
            EndpointBuckets(
                self._unique_id("endpoints:"),
                routes,
                self._decider,
                self._calls,
                engine.emit,
                engine.overrides.register,
            ),
            Refusals(self.limiter, self.client, self._signals.policies, self.on_refused, self._calls),
            HeaderWriter(self.headers),
            Outcomes(engine, routes),
        )

    def _check_settings(self, off: str, ignored: Iterable[str]) -> None:
        """Report probable mistakes in the options, and prepare the checks of the first requests."""
        check_names(self._named_rules())
        self._enabled = not off
        self._checks = StartupChecks(ignored)
        self.findings = self._checks.findings
        self._checks.report(about_settings(self, off))

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
        """Create a middleware that reads its rules from a TOML file and reloads them when the file changes.

        Use it as ``app.add_middleware(RateLimitMiddleware.from_file, path="slidegate.toml")``.

        Args:
            app: The application to guard.
            path: The file. Requests trigger a check for changes at most once a second.
            observers: Receive the events of the limiter that the file describes, including ``config_reloaded`` and
                ``config_rejected``. A limiter given in code has its own.
            on_exceeded: The function that rules with ``on_exceeded = true`` in the file call.
            options: Options of `RateLimitMiddleware`, which override those of the file. With a `limiter` the file
                must not set ``store``, ``deadline``, ``on_error`` or ``networks``.

        Raises:
            ConfigurationError: The file is invalid; the message names the path of the key.
        """
        # Imported lazily: most applications read no file, and this is a tenth of the package's import time.
        from .reload import ReloadingMiddleware

        return ReloadingMiddleware(app, path, observers=observers, on_exceeded=on_exceeded, **options)

    def bound(self) -> list[BoundRule]:
        """Return the rules with their buckets, including those of endpoints and routes that were requested so far."""
        return [*self._rules.bound(), *self._parts.endpoints.bound()]

    def buckets(self) -> list[Bucket]:
        """Return all buckets, including those of routes and endpoints that were requested so far."""
        messages = () if self._messages is None else self._messages.buckets()
        return [*(bucket for bound in self.bound() for bucket in bound.buckets()), *messages]

    def fallbacks(self) -> list[Bucket]:
        """Return those of them whose limits apply only if a limits function fails."""
        return [bucket for bound in self.bound() for bucket in bound.fallbacks()]

    def limits_by_name(self) -> list[NamedLimit]:
        """Return the limits that operators can change, including those of endpoints that were not requested yet."""
        return [*(one for bound in self.bound() for one in bound.named), *self._below]

    def begin_anew(self) -> None:
        """Treat the next request like the first one: after a fork, background work runs only in the parent."""
        self._guarded = frozenset()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Decide one request, then call the application or refuse the request."""
        if scope["type"] not in self._guarded and not await self._begin(scope, receive, send):
            return
        exchange, send, above = begin(self._parts, scope, send)
        try:
            answer = self._decider.enter(scope, receive, exchange)
            if answer is None or await self._admits(exchange, scope, receive, send, answer):
                if self._hooked or scope["type"] == "websocket":
                    receive, send = self._prepare(exchange, scope, receive, send)
                await self.app(scope, receive, send)
            if above is None and exchange.is_open:
                await answer_unanswered(None, exchange, scope, receive, send)
                await exchange.end()
        except BaseException as error:
            if not await self._fail(exchange, scope, receive, send, error, above):
                raise
        finally:
            exchange.leave(above)

    async def _admits(
        self,
        exchange: Exchange,
        scope: Scope,
        receive: Receive,
        send: Send,
        answer: Decision | Awaitable[Decision],
    ) -> bool:
        """Return whether a request is admitted, waiting for the decision if necessary; if not, it has been refused."""
        decision = answer if isinstance(answer, Decision) else await answer
        if exchange.enter(decision):
            return True
        if exchange.waiting is None:  # else the client has left while the request waited
            await self._refuse(exchange, scope, exchange.channel_of(receive), send, decision)
        return False

    async def _refuse(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send, decision: Decision) -> None:
        """Count strikes for a refusal, notify observers and answer it."""
        if decision.reason is not Reason.BANNED and (self.policies or exchange.entries):
            decision = await exchange.strike(scope, decision)
        await self._parts.refusals.send(decision, exchange.refuse(scope, decision), scope, receive, send)

    async def _fail(
        self,
        exchange: Exchange,
        scope: Scope,
        receive: Receive,
        send: Send,
        error: BaseException,
        above: Above | None,
    ) -> bool:
        """Clean up after an exception; return whether it is handled, so that it must not be raised again.

        Args:
            exchange: The request.
            scope: Its scope.
            receive: Its receive channel.
            send: Sends to the client.
            error: The exception.
            above: The middleware further out, if there is one.
        """
        answered = False
        try:
            if isinstance(error, Exception):
                if is_failure(error) and exchange.refusal is None and not exchange.status:
                    # The server will answer 500.
                    await exchange.start(scope, 500, (), 0 if above is None else above[1])
                answered = await answer_unanswered(error, exchange, scope, receive, send)
        finally:
            if above is None:
                await exchange.end(None if answered else error)
        return answered

    def _prepare(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """Register the hooks that need the response status, and guard a websocket; return the channels to use."""
        _, decision = exchange.entries[-1]
        exchange.holds |= self._rules.holds
        for index, (bucket, _, _) in enumerate(decision.checks if self._rules.reserving else ()):
            rule = None if bucket.is_permit else self._rules.reserving.get(bucket.name)
            if rule is not None:
                settle = hand_back_uncounted(self._calls, rule, self.limiter, decision, index)
                exchange.on_start = [*exchange.on_start, settle]
        if self._signals.on_status and self._parts not in exchange.exempt:
            outer = [parts.signals for parts, _ in exchange.entries[:-1]]
            exchange.on_start = [*exchange.on_start, partial(self._strike_for_status, outer)]
        if scope["type"] == "websocket" and not allowlisted(exchange.entries):
            socket = self._guard_websocket(exchange, scope, receive, send)
            return socket.receive, socket.send
        return exchange.channel_of(receive), send

    async def _strike_for_status(self, outer: Sequence[BanSignals], scope: Scope, status: int, fields: object) -> None:
        """Strike for a response status, unless the request was refused or is exempt."""
        exchange: Exchange = scope[SCOPE_KEY]
        if exchange.refusal is None and not exchange.exempt_from(self._parts):
            await self._signals.strike_for(status, scope, outer)

    def _subjects(self, scope: Scope) -> Sequence[BanSubject]:
        """Return the keys and addresses whose bans apply to a request."""
        return self._signals.subjects(scope, *self.client.locate(scope))

    def _guard_websocket(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> GuardedWebSocket:
        """Return a wrapper that closes the websocket when its client is banned."""

        async def strike() -> bool:
            # An inner middleware may have allowlisted the client.
            return not allowlisted(exchange.entries) and bool(await exchange.strike_for_refusal(scope))

        channel, subjects = exchange.read_ahead(receive), self._subjects(scope)
        return GuardedWebSocket(scope, channel, send, subjects, self._sockets, strike, self._messages)

    async def _begin(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Check the routes in the first call. Return True if the call is to be decided; otherwise pass it on."""
        if self.error is not None:
            await end_start(self.error, scope, receive, send)
        if self._enabled and self.limiter.engine.counting:
            self.limiter.engine.overrides.start()
        if self._enabled and self.limiter.engine.counts:
            if not self._routes_checked:
                try:
                    self._check_routes(scope.get("app", self.app))
                except ConfigurationError as error:
                    await end_start(error, scope, receive, send)
                self._routes_checked = True
            if scope["type"] in _GUARDED:
                self._check_request(scope)
                return True
        if scope["type"] in _GUARDED:
            scope[DISABLED_KEY] = self._decider
        elif scope["type"] == "lifespan":
            send = _ending(self.limiter, send)
        await self.app(scope, receive, send)
        return False

    def _check_routes(self, app: ASGIApp) -> None:
        """Check the limits at endpoints, and report probable mistakes that the routes reveal."""
        check_decorator_order(app)
        self.check_below()
        self.limiter.engine.overrides.register(self._below)
        self._checks.report(about_routes(self, app))

    def check_below(self) -> None:
        """Check that the rules and the limits at endpoints with the same name have the same limits.

        Raises:
            ConfigurationError: Two of them differ.
        """
        below = list(limits_below(self.app, self.limiter))
        check_names([*self._named_rules(), *below])
        named = [rule for rule, _ in below if rule.name is not None]
        self._below = [
            one for rule in named for one in named_limits(rule, buckets_of(rule, rule.identity, rule.wire_names()))
        ]

    def _named_rules(self) -> list[tuple[Rule, str]]:
        """Return the rules of this middleware, and those of inner middlewares with the same limiter."""
        named = [(rule, "in a middleware") for rule in self.rules]
        for layer in layers(self.app):
            if isinstance(layer, RateLimitMiddleware) and layer.error is None and layer.limiter is self.limiter:
                named += [(rule, "in an inner middleware") for rule in layer.rules]
        return named

    def _register(self) -> None:
        """Register with the limiter, which lists the active rules and applies overrides to them."""
        self.limiter.engine.callers.add(self)
        self.limiter.engine.overrides.register(self.limits_by_name())

    def _unique_id(self, identity: str) -> str:
        """Return an identity for counts, unique among middlewares and stable when a configuration file is reloaded."""
        return self.limiter.engine.unique_id(identity)

    def _check_request(self, scope: Scope) -> None:
        """Check one of the first requests for probable mistakes."""
        if self._checks.left:
            self._checks.left -= 1
            self._checks.report(about_request(scope, self.client, gone=self._decider.is_gone(scope)))
        else:
            self._guarded = _GUARDED


def _ending(limiter: Limiter, send: Send) -> Send:
    """Return a lifespan `send` that stops the limiter's background work before it reports the shutdown.

    Many applications never close their limiter. `send` is returned unchanged if there is nothing to stop.
    """

    async def end_first(message: Message) -> None:
        if message["type"].startswith("lifespan.shutdown."):
            await limiter.engine.end()
        await send(message)

    return end_first if limiter.engine.ending else send
