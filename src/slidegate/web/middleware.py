"""The public class of the gate: a pure ASGI 3 middleware.

It reads the options, makes the parts of the gate, and opens the record of a request at the outermost gate. All gates
on the way add their decisions to that `Record`, in ``scope["slidegate"]``; the outermost gate writes the header fields
of the tightest decision. The middleware itself keeps nothing about a request. `gate.py` goes on from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..core.arguments import names_checked
from ..core.bans.policy import BanPolicy
from ..core.decision import Bucket, Decision
from ..core.errors import ConfigurationError
from ..core.limits import AnyLimit
from ..core.logs import logger
from ..core.store import Observer
from ..limiter import Limiter
from .answers.feed import Feed
from .answers.header_fields import HeaderStyle, HeaderWriter
from .answers.refusals import Refusals, Refused
from .answers.sending import ENDED, Outgoing
from .bans.signals import AbuseWatch
from .broken import Breakable, end_start
from .callbacks import UserCallbacks
from .checks import Finding, StartupChecks, about_settings, checked_codes
from .endpoints.decorator import check_places
from .endpoints.endpoint_buckets import EndpointBuckets
from .endpoints.per_route import PerRoute
from .endpoints.rate_limit import put_users_last
from .finishing import with_last_figures
from .gate import RequestGate
from .judge import Judge
from .keys.client_ip import ClientAddress, client_ip
from .network_files import AddressList, followed
from .options import check_flag, expect, switched_off
from .record import Record
from .route_checks import about_admin_apps, about_callers, about_exemptions, about_honeypots, about_unmet_rules
from .routers import router_of
from .routes import walk
from .rule_set import BoundRule, RuleSet, all_rules
from .rules import Exceeded, Rule
from .scope_keys import OFF, RECORD
from .settling import Settling
from .websockets.message_limits import MessageCounter, MessageLimits

if TYPE_CHECKING:
    from .reload import Claim, ReloadingMiddleware, Say

_JUDGED: Final = frozenset({"http", "websocket"})


class RateLimitMiddleware(Breakable):
    """Counts requests, and answers those beyond a limit with 429 and an exact `Retry-After`.

    Args:
        app: The application to guard.
        limits: The short form: ``"100/minute"`` for each client address; the same as ``rules=[Rule("*", limits)]``.
        rules: The rules: which requests have which limits. Without `limits` and `rules` only limits at endpoints
            count, which need a middleware above them.
        default_limits: The limits of each route by itself, behind the rules: ``"60/minute"``. ``@RateLimit.exempt`` and
            ``RateLimit(..., override=True)`` at an endpoint take their place.
        limiter: The limiter that counts; by default one of its own, in memory.
        client: How the client's address is found. Rules count by it unless they have a key, and the lists look at it.
        blocklist: `Networks` or `NetworkFiles` whose requests are answered with 403 before anything is counted.
        allowlist: The same; its clients are never refused nor counted. It comes before the blocklist.
        bans: The policies that ban clients which keep abusing; one policy, or several with names of their own.
        on_refused: Makes the answer to a refused HTTP request, sync or async, from the request (which has no body here)
            and the decision.
        headers: ``"draft"`` (RateLimit and RateLimit-Policy of draft 11), ``"legacy"`` (X-RateLimit-*), ``"both"`` or
            None.
        messages: The limits of messages over an accepted websocket: ``MessageLimits("10/second")``.
        statistics: Whether the limiter's `stats` tell what happened to requests.
        enabled: False lets everything pass, and so does ``SLIDEGATE_ENABLED=0`` in the environment.
        ignore_checks: Codes of start-up findings, such as ``"SG103"``, that are not reported.

    Attributes:
        app: The application behind the gate.
        limiter: The limiter that counts.
        rules: The rules of the gate.
        default_limits: The limits of each route; empty where there are none.
        headers: The style of its header fields.
        policies: Its ban policies.
        lists: Its block and allow lists, by the names of their options.
        own_answer: Whether `on_refused` makes its answers.
        findings: Probable mistakes, found at start-up or in the first requests; each was logged once.

    Raises:
        ConfigurationError: A value cannot work; the message says what would. In the stack that an application
            builds, the gate answers ``lifespan.startup.failed`` with it instead, see `broken`.
    """

    @names_checked
    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: str | AnyLimit | Iterable[str | AnyLimit] | None = None,
        rules: Sequence[Rule] | None = None,
        default_limits: str | AnyLimit | Iterable[str | AnyLimit] | None = None,
        limiter: Limiter | None = None,
        client: ClientAddress | None = None,
        blocklist: AddressList | None = None,
        allowlist: AddressList | None = None,
        bans: BanPolicy | Iterable[BanPolicy] | None = None,
        on_refused: Refused | None = None,
        headers: HeaderStyle | None = "draft",
        messages: MessageLimits | None = None,
        statistics: bool = True,
        enabled: bool = True,
        ignore_checks: Iterable[str] = (),
    ) -> None:
        self.app = app
        self.limiter = expect("limiter", limiter, Limiter, "Limiter(MemoryStore())") or Limiter()
        client = expect("client", client, ClientAddress, "client_ip()") or client_ip()
        self._lists = followed(self.limiter.engine.tell, blocklist=blocklist, allowlist=allowlist)
        if headers not in ("draft", "legacy", "both", None):
            raise ConfigurationError(f'headers: expected "draft", "legacy", "both" or None, not {headers!r}')
        self.headers = headers
        self._headers = HeaderWriter(headers) if headers is not None else None
        calls = UserCallbacks()
        self.rules = tuple(all_rules(limits, rules))
        self._defaults = None if default_limits is None else PerRoute(default_limits, self._claim("per-route:"))
        self.default_limits = () if self._defaults is None else self._defaults.limits
        abuse = AbuseWatch(bans, self.limiter, client, allowlist, calls)
        self.policies = tuple(abuse.policies.values())
        self.own_answer = on_refused is not None
        self.lists = lists = {"blocklist": blocklist, "allowlist": allowlist}
        self._events = self.limiter.engine.events
        self._feed = Feed(self.limiter, app) if check_flag("statistics", statistics) else None
        self._gate = self._made(app, client, abuse, lists, on_refused, messages, calls)
        self._judged: frozenset[str] = frozenset()  # nothing before the first request, and while switched off
        self._looked = False
        self._judge: Judge | None = None  # as soon as requests may take the short way
        off = switched_off(enabled)
        self._enabled = not off
        self._ignored = checked_codes(ignore_checks)
        self.findings: list[Finding] = []
        self._watch: StartupChecks | None = StartupChecks(client, self.policies, self.limiter.store)
        for finding in (*about_settings(self, client, off, self.policies), *about_honeypots(self, self.policies)):
            self._say(finding)
        self._enlist()

    def _made(
        self,
        app: ASGIApp,
        client: ClientAddress,
        abuse: AbuseWatch,
        lists: Mapping[str, AddressList | None],
        on_refused: Refused | None,
        messages: MessageLimits | None,
        calls: UserCallbacks,
    ) -> RequestGate:
        """Make the gate that does the work of a request."""
        self._refusals = Refusals(abuse.policies, on_refused, calls)
        ruled = RuleSet(self.rules, self._claim, app, self._defaults)
        if ruled.holds:
            self.limiter.engine.expect_places()
        judge = Judge(
            self.limiter,
            client,
            ruled,
            **lists,
            calls=calls,
            abuse=abuse,
            figures=self._feed is not None,
        )
        counter: MessageCounter | None = None
        messages = expect("messages", messages, MessageLimits, 'MessageLimits("10/second")')
        if messages is not None:
            counter = MessageCounter(messages, self.limiter, client, self._claim("messages:"))
        return RequestGate(
            app,
            self.limiter,
            judge,
            ruled,
            abuse,
            EndpointBuckets(self._claim("endpoints:"), judge.decide_at, calls, judge.price),
            client,
            Settling(self.limiter, ruled, calls),
            self._refusals,
            counter,
            calls,
        )

    @classmethod
    def from_file(
        cls,
        app: ASGIApp,
        path: str | PathLike[str],
        *,
        observers: Iterable[Observer] = (),
        on_exceeded: Exceeded | None = None,
        **options: Any,
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
                has no ``store``, ``deadline`` and ``on_error``.

        Raises:
            ConfigurationError: The file cannot be used; the message names the path of the key.
        """
        # Most gates read no file, and everything that reads one is a tenth of what the package takes to be imported.
        from .reload import ReloadingMiddleware

        return ReloadingMiddleware(app, path, make=_Read, observers=observers, on_exceeded=on_exceeded, **options)

    def bound(self) -> list[BoundRule]:
        """Return the rules of the gate with their buckets, those for endpoints and routes that were met so far too."""
        return [*self._gate.rules.bound(), *self._gate.side.endpoints.met()]

    def buckets(self) -> list[Bucket]:
        """Return the buckets that the gate counts in, those of routes and endpoints that requests have reached."""
        return self._gate.buckets()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Judge one request, and pass it on or answer it.

        This is the short way, of requests about which limits alone decide; `_go_long` takes all others.
        """
        if self.error is not None:
            await end_start(self.error, scope, receive, send)
        judge = self._judge
        decision = None if judge is None else judge.decide_at_once(scope)
        if decision is None:
            await self._go_long(scope, receive, send)
            return
        if not decision.allowed and decision.readings and not self.own_answer:
            start, body = self._refusal(scope, decision)
            await send(start)
            await send(body)
            return
        request = scope[RECORD] = Outgoing()
        request.open(decision, self._gate.side, scope, receive, send, self._headers, self._feed)
        app = self.app
        try:
            try:
                if decision.allowed:
                    await app(scope, receive, request.send)
                else:
                    await self._gate.refuse(scope, receive, request.send_any, decision)
            except BaseException as error:
                if not self._gate.has_refused(request, error):
                    if request.unfinished:
                        await request.give_up(scope, error)
                    request.fail(error)
                    raise
            if request.unfinished:
                await self._gate.end(scope, request.send, request)
            if request.feed is not None:
                request.leave()
        finally:
            request.scope, request.receive, request.out = ENDED

    def _refusal(self, scope: Scope, decision: Decision) -> tuple[Message, Message]:
        """Return the answer to a request that a limit has refused at once: the application has no part in it."""
        record = scope[RECORD] = Record()
        record.refuse(decision, self._gate.side)
        status, body, fields, _ = self._refusals.answer(decision, scope)
        if self._feed is not None:
            self._feed.refused(scope, decision, status, self._feed.now())
        if self._events.refused:
            self._gate.refusal_events.tell(scope, decision, status)
        if self._headers is not None:
            fields = fields + self._headers.complete((), decision)
        return (
            {"type": "http.response.start", "status": status, "headers": fields},
            {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body},
        )

    async def _go_long(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take the long way: look for findings, and ask the gate for everything that it has."""
        if scope["type"] not in self._judged and not await self._begin(scope, receive, send):
            return
        if self._watch is not None or self._lists:
            await self._look(scope)
        record: Record | None = scope.get(RECORD)
        if record is not None:
            await self._gate.serve(scope, receive, send, record, outermost=False)
            return
        request = scope[RECORD] = Outgoing()
        request.open(None, self._gate.side, scope, receive, send, self._headers, self._feed)
        try:
            try:
                await self._gate.serve(scope, receive, request.send_any, request, outermost=True)
            except BaseException as error:
                if request.unfinished:
                    await request.give_up(scope, error)
                request.fail(error)
                raise
            if request.unfinished or request.userless:
                await self._gate.end(scope, request.send_any, request)
            request.leave()
        finally:
            request.scope, request.receive, request.out = ENDED

    async def _begin(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Look at the routes in the first call. Pass on what the gate does not judge; return True for the rest."""
        if self._enabled:
            if not self._looked:
                try:
                    check_places(app := scope.get("app", self.app))
                    put_users_last(walk(app))
                    for finding in about_callers(app):
                        self._say(finding)
                    for finding in about_unmet_rules(self):
                        self._say(finding)
                    below = self.app if router_of(self.app) is not None else app
                    for finding in about_admin_apps(below, self._gate.rules.select):
                        self._say(finding)
                except ConfigurationError as error:
                    await end_start(error, scope, receive, send)
                self._looked = True
            if scope["type"] in _JUDGED:
                self._judged = _JUDGED
                return True
        if scope["type"] in _JUDGED:
            scope[OFF] = True
        elif scope["type"] == "lifespan":
            send = with_last_figures(self.limiter, send)
        await self.app(scope, receive, send)
        return False

    def _enlist(self) -> None:
        """Have the gate found by those who ask the limiter which rules are in force."""
        self.limiter.engine.callers.add(self)

    def _claim(self, identity: str) -> str:
        """Return an identity for counts that no other middleware has; a file that is read again claims the same one."""
        return self.limiter.engine.claim(identity)

    async def _look(self, scope: Scope) -> None:
        """Look for findings in the first requests, and now and then at the files of the lists."""
        for lists in self._lists:
            if lists.due():
                lists.look_aside()
        if self._watch is not None:
            if self._watch.fresh and RECORD not in scope:  # else a gate further out looks at the exemptions
                for finding in about_exemptions(self, scope.get("app", self.app)):
                    self._say(finding)
            for finding in self._watch.look(scope):
                self._say(finding)
            if self._watch.over:
                self._watch = None
                self._judge = self._gate.judge if self._gate.short else None

    def _say(self, finding: Finding) -> None:
        if finding.code not in self._ignored:
            self.findings.append(finding)
            self._log(finding)

    def _log(self, finding: Finding) -> None:
        logger.warning("%s", finding)


class _Read(RateLimitMiddleware):
    """A middleware whose options were read from a file; the one before it, of the same file, claimed its identities.

    Args:
        app: The application to guard.
        claim: Claims an identity, or returns the one that was claimed before.
        say: Logs a finding, unless it was logged before.
        options: Options of `RateLimitMiddleware`.
    """

    def __init__(self, app: ASGIApp, claim: Claim, say: Say, options: Mapping[str, Any]) -> None:
        self._claim_again = claim
        self._say_once = say
        super().__init__(app, **options)

    def _claim(self, identity: str) -> str:
        return self._claim_again(identity)

    def _enlist(self) -> None:
        """Do nothing: the `ReloadingMiddleware` is found, and leads to the gate that is at work."""

    def _log(self, finding: Finding) -> None:
        self._say_once(finding, super()._log)
