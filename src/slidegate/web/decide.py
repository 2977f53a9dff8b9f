"""Decides requests: the allowlist first, then the blocklist, then bans and all matching rules.

Bans and limits are checked together, in one call to the limiter. `Decider.enter` is not a coroutine function: it
awaits no decision that is available immediately.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope

from ..core.addresses import Address
from ..core.bans.ban import Ban, BanSubject, longest
from ..core.decision import Check, Decision, Reason, refused_by_ban
from ..core.errors import StoreError
from ..core.memo import remember
from ..core.networks import Networks
from ..limiter import Limiter
from ..limiter.operators import NetworkLookup
from ..limiter.queues import Ask, Name, may_wait
from .bans import BanSignals, Signal
from .callbacks import ShadowRules, UserCallbacks
from .client_ip import ClientAddress, host_of, may_be_gone
from .endpoint_refusals import ClientLeft, channel_at_endpoint
from .exchange import SCOPE_KEY, Entry, Exchange, allowlisted, has_passed, is_preflight, passed_checks
from .headers import field_value
from .lists import ListFiles
from .rule_set import BoundRule, Matched, RuleSet
from .rules import Rule

_ALLOWLISTED: Final = Decision(True, Reason.ALLOWLISTED)
_EXEMPT: Final = Decision(True, Reason.EXEMPT)
_GONE: Final = Decision(False, Reason.BLOCKED, by="gone")
_MAX_QUESTIONS: Final = 8
"""How many questions are cached for one client: the requests of most clients match the same few sets of rules."""


class Client:
    """The cached facts about a client that are equal for all its requests.

    Args:
        key: Its key.
        address: Its address, if it has one.
        subjects: The keys and the address whose bans apply to it.
        verdict: The decision for all its requests, if it is on a list.

    Attributes:
        matched: The rules that its first request matched.
        question: The checks of requests that match these rules, prepared by `Store.prepare`.
        others: The checks by other sets of matched rules.
    """

    __slots__ = ("address", "key", "matched", "others", "question", "subjects", "verdict")

    def __init__(
        self,
        key: str,
        address: Address | None,
        subjects: Sequence[BanSubject],
        verdict: Decision | None,
    ) -> None:
        self.key = key
        self.address = address
        self.subjects = subjects
        self.verdict = verdict
        self.matched: Matched | None = None
        self.question: Sequence[Check] = ()
        self.others: dict[Matched, Sequence[Check]] | None = None

    def find(self, matched: Matched) -> Sequence[Check] | None:
        """Return the cached checks for rules other than those of the first request; None if there are none."""
        return None if self.others is None else self.others.get(matched)

    def remember(self, matched: Matched, question: Sequence[Check]) -> None:
        """Cache the checks of requests that match these rules."""
        if self.matched is None:
            self.matched, self.question = matched, question
            return
        if self.others is None:
            self.others = {}
        remember(self.others, matched, question, _MAX_QUESTIONS)


class Decider:
    """Decides requests.

    Args:
        limiter: The limiter that counts.
        client: Determines the client's address.
        rules: The rules of the middleware.
        blocklist: Networks refused before anything is counted.
        allowlist: Networks let through before anything is counted.
        files: The files behind these lists, and the databases of networks.
        calls: Calls the user's functions.
        signals: Strikes clients, and returns the keys whose bans apply to a request.
    """

    def __init__(
        self,
        limiter: Limiter,
        client: ClientAddress,
        rules: RuleSet,
        *,
        blocklist: Networks | None,
        allowlist: Networks | None,
        files: Sequence[ListFiles | NetworkLookup],
        calls: UserCallbacks,
        signals: BanSignals,
    ) -> None:
        self._limiter = limiter
        self._engine = limiter.engine
        self._queues = limiter.engine.queues
        self._bans = limiter.store.bans
        self._rules = rules
        self._client = client
        self._header = client.header if client.trusted else None
        self._allowlist = allowlist
        self._blocklist = blocklist
        self._files = files
        self._clients: dict[object, Client] = {}
        self._read = 0
        self._calls = calls
        self._signals = signals
        self._needs_peers = blocklist is not None or bool(signals.policies)
        self._peers_named = False
        self._shadows = ShadowRules(limiter, calls, self._hit)

    def enter(self, scope: Scope, receive: Receive, exchange: Exchange) -> Decision | Awaitable[Decision] | None:
        """Decide a request, and record the decision if it is available immediately and admits the request.

        Args:
            scope: Its scope.
            receive: Its receive channel.
            exchange: The decisions of outer middlewares. If this one exempts the request, it is added to `exempt`.

        Returns:
            None if the request is admitted, else the refusal, or an awaitable of the decision.
        """
        entries = exchange.entries
        client = self.client(scope)
        answer: Decision | Awaitable[Decision]
        if entries and allowlisted(entries):
            answer = _ALLOWLISTED
        elif client.verdict is not None:
            answer = client.verdict
        else:
            matched = self._rules.match(scope)
            question = client.question if client.matched is matched else client.find(matched)
            if question is not None and not entries:
                answer = self._engine.ask(question)
            else:
                answer = self._decide_uncached(matched, scope, receive, exchange, client)
        if isinstance(answer, Decision) and answer.allowed:
            exchange.record(answer)
            return None
        return answer

    def _decide_uncached(
        self, matched: Matched, scope: Scope, receive: Receive, exchange: Exchange, client: Client
    ) -> Decision | Awaitable[Decision]:
        """Decide a request without a cached question; cache the question if later requests can reuse it."""
        before, subjects = exchange.entries, client.subjects
        if self._signals.keyed:
            subjects = self._signals.subjects(scope, client.key, client.address)
        exempt = matched.exempt or is_preflight(scope)
        if exempt:
            exchange.exempt = (*exchange.exempt, exchange.parts)
        if not matched.plain or before or self._signals.on_request:
            return self._decide(matched, scope, receive, exchange, client.key, subjects)
        checks: Sequence[Check] = [bound.check(scope, self._limiter, client.key) for bound in matched.limiting]
        if not checks:
            return self._uncounted(matched, subjects)
        if matched.by_client and not exempt and not self._signals.keyed:
            question = self._engine.prepare(checks, subjects)
            client.remember(matched, question)
            return self._engine.ask(question)
        return self._engine.decide(checks, subjects)

    def client(self, scope: Scope) -> Client:
        """Return the client of a request. Clients are cached until a list is reloaded."""
        if self._files:
            self._check_files()
        peer = scope.get("client")
        if not peer:
            return self._identify(scope)
        clients = self._clients
        try:
            asked = peer[0] if self._header is None else (peer[0], field_value(scope, self._header))
            known = clients.get(asked)
        except (TypeError, LookupError):  # no server sends such a peer
            return self._identify(scope)
        return known or remember(clients, asked, self._identify(scope))

    def _check_files(self) -> None:
        """Check the files of the lists for changes if that is due; clear the cache of clients if one was reloaded."""
        for files in self._files:
            files.look_when_due()
        read = sum([files.generation for files in self._files])
        if read != self._read:
            self._clients, self._read = {}, read

    def _identify(self, scope: Scope) -> Client:
        """Determine the client of a request, and whether it is on a list."""
        key, address = self._client.locate(scope)
        verdict: Decision | None = None
        self._peers_named = self._peers_named or bool(host_of(scope))
        if self.is_gone(scope):
            verdict = _GONE
        elif address is not None and self._allowlist is not None and self._allowlist.covers(*address):
            verdict = _ALLOWLISTED
        elif address is not None and self._blocklist is not None:
            name = self._blocklist.find(*address)
            verdict = None if name is None else Decision(False, Reason.BLOCKED, by=name)
        return Client(key, address, self._signals.own_subjects(key, address), verdict)

    def is_gone(self, scope: Scope) -> bool:
        """Return whether a request is refused because its connection was reset, so that its peer is unknown.

        Applies only if this server has named peers before, and only with a blocklist or bans: a listed or banned client
        could otherwise evade them.
        """
        return self._needs_peers and self._peers_named and may_be_gone(scope)

    async def _decide(
        self,
        matched: Matched,
        scope: Scope,
        receive: Receive,
        exchange: Exchange,
        client_key: str,
        subjects: Sequence[BanSubject],
    ) -> Decision:
        """Decide a request that involves user functions, decisions of outer middlewares, strikes, or a queue.

        Evaluates conditions, then strikes for the request itself, then limits, and finally shadow rules. Each shadow
        rule has its own windows and counts only requests that the limits admit.
        """
        if matched.conditions:
            matched = await self._calls.evaluated(matched, scope, client_key)
            if matched.exempt:
                exchange.exempt = (*exchange.exempt, exchange.parts)
        before = list(exchange.entries)
        if self._signals.on_request and exchange.parts not in exchange.exempt:
            signals = self._signals.signals_of(scope, [parts.signals for parts, _ in before])
            refusal = await self._struck(signals, scope)
            if refusal is not None:
                return refusal
        decision = await self._decide_limits(matched, scope, receive, exchange, client_key, subjects)
        if decision.allowed and matched.shadows:
            await self._look(matched.shadows, scope, client_key, exchange, decision)
        if not decision.allowed and exchange.waiting is None:
            await self._shadows.tell_all(matched.told, decision)
        return decision

    async def _decide_limits(
        self,
        matched: Matched,
        scope: Scope,
        receive: Receive,
        exchange: Exchange,
        client_key: str,
        subjects: Sequence[BanSubject],
    ) -> Decision:
        """Ask the limiter about the limits of a request, which may wait for room under the first rule with `wait`."""
        before = list(exchange.entries)
        checks: list[Check] = []
        queue: tuple[BoundRule, Check] | None = None
        for bound in matched.limiting:
            own = await self._calls.checks(bound, scope, self._limiter, client_key)
            own = self._uncharged(bound, own, before) if before else own
            checks += own
            if own and bound.rule.wait_us and queue is None:
                queue = bound, own[0]
        if queue is not None:
            bound, (bucket, key, _) = queue
            tenant = await self._calls.tenant(bound, scope, self._limiter, client_key)
            ask = partial(self._hit, checks, subjects)
            return await self._hit_or_wait(bound.rule, (bucket.name, key), tenant, ask, exchange, receive)
        if checks:
            return await self._hit(checks, subjects)
        answer = self._uncounted(matched, subjects)
        return answer if isinstance(answer, Decision) else await answer

    async def _look(
        self, shadows: Sequence[BoundRule], scope: Scope, client_key: str, exchange: Exchange, decision: Decision
    ) -> None:
        """Have some rules look on at a request that the limits let pass; its end gives back what it holds by then."""
        try:
            for bound in shadows:
                await self._shadows.look(bound, scope, client_key)
        except BaseException:  # it is cancelled while a function of the user's is asked, for example
            exchange.enter(decision)
            exchange.holds |= self._rules.holds
            raise

    def _uncharged(self, bound: BoundRule, checks: Sequence[Check], before: Sequence[Entry]) -> Sequence[Check]:
        """Return the checks of a rule without those that the request has passed under rules of the same name."""
        left = bound.uncharged(checks, passed_checks(before, self._limiter))
        if bound.rule.count_if is not None:
            self._rules.reserving.update({bucket.name: bound.rule for bucket, _, _ in left})
        return left

    def _uncounted(self, matched: Matched, subjects: Sequence[BanSubject]) -> Decision | Awaitable[Decision]:
        """Decide a request that no limit counts: only bans and blocking rules can refuse it."""
        blocked = matched.blocked
        otherwise = _EXEMPT if blocked is None else _refused_by_rule(blocked)
        if not self._bans.may_refuse():
            return otherwise
        answer = self._engine.decide((), subjects)
        if isinstance(answer, Decision):
            return otherwise if answer.allowed else answer
        return self._uncounted_later(answer, otherwise)

    async def _uncounted_later(self, answer: Awaitable[Decision], otherwise: Decision) -> Decision:
        decision = await answer
        return otherwise if decision.allowed else decision

    async def _hit(self, checks: Sequence[Check], subjects: Sequence[BanSubject] = ()) -> Decision:
        """Ask the limiter. If a limits function allows no requests at all, refuse; a ban takes precedence."""
        shut = next((bucket for bucket, _, _ in checks if not bucket.limits), None)
        if shut is None:
            answer = self._engine.decide(checks, subjects)
            return answer if isinstance(answer, Decision) else await answer
        decision = await self._limiter.hit_all((), subjects)
        return Decision(False, Reason.NOBODY, by=shut.label) if decision.allowed else decision

    async def _hit_or_wait(
        self, rule: Rule, name: Name, tenant: str, ask: Ask, exchange: Exchange, receive: Receive
    ) -> Decision:
        """Decide a request that may wait for room under a rule; it joins the queue of its key, if there is one.

        Args:
            rule: The first rule with `wait` that counts the request.
            name: Its queue: the bucket of the rule, and the key.
            tenant: The tenant of the request, if the rule is fair.
            ask: Asks the limiter.
            exchange: The request.
            receive: Its channel.
        """
        decision = None if self._queues.is_queued(name) else await ask()
        if decision is None or may_wait(decision):
            decision = await exchange.wait(receive, self._limiter, rule, name, decision, ask, tenant)
        if decision.allowed and rule.fair is not None:
            exchange.share(self._queues, name, tenant)
        return decision

    async def _struck(self, signals: Sequence[Signal], scope: Scope) -> Decision | None:
        """Strike for the signals of a request; return its refusal if that bans it.

        The result of the strike decides, without a further query: the store may have failed since. A strike without a
        result refuses the request, too, because it may have banned it.
        """
        bans: list[Ban] = []
        unanswered: Decision | None = None
        for signal in signals:
            try:
                made = await self._signals.strike(signal, scope)
            except StoreError:
                unanswered = self._engine.unanswered()
            else:
                bans += [] if made is None else [made]
        ban = longest(bans)
        return unanswered if ban is None else refused_by_ban(ban, ban.since_us)

    def decide_at(
        self, bound: BoundRule, request: HTTPConnection, before: Sequence[Entry]
    ) -> Decision | Awaitable[Decision | None] | None:
        """Decide a limit at an endpoint, where the request has its body; None if the request is not counted."""
        client = self.client(request.scope)
        client_key, subjects = client.key, client.subjects
        if self._signals.keyed:
            subjects = self._signals.subjects(request.scope, client_key, client.address)
        if bound.plain and bound.rule.action == "limit" and bound.rule.on_exceeded is None:
            checks: Sequence[Check] = (bound.check(request.scope, self._limiter, client_key),)
            if has_passed(before, bound.bucket.name):
                checks = self._uncharged(bound, checks, before)
            return self._engine.decide(checks, subjects) if checks else None
        return self._decide_at_endpoint(bound, request, client_key, subjects, before)

    async def _decide_at_endpoint(
        self,
        bound: BoundRule,
        request: HTTPConnection,
        client_key: str,
        subjects: Sequence[BanSubject],
        before: Sequence[Entry],
    ) -> Decision | None:
        """Decide a limit at an endpoint that calls user functions, waits, holds permits or is in shadow mode."""
        if await self._calls.holds(bound.rule, request, client_key) is False:
            return None
        if bound.rule.action != "limit":
            await self._shadows.look(bound, request.scope, client_key, request)
            return None
        if bound.rule.concurrency is not None:
            self._engine.expect_permits()
        checks = await self._calls.checks(bound, request.scope, self._limiter, client_key, request)
        checks = self._uncharged(bound, checks, before)
        if not checks:
            return None
        if bound.rule.wait_us:
            exchange: Exchange = request.scope[SCOPE_KEY]
            bucket, key, _ = checks[0]
            tenant = await self._calls.tenant(bound, request.scope, self._limiter, client_key, request)
            ask, receive = partial(self._hit, checks, subjects), channel_at_endpoint(request)
            decision = await self._hit_or_wait(bound.rule, (bucket.name, key), tenant, ask, exchange, receive)
            if exchange.waiting is not None:
                raise ClientLeft(request.scope)
        else:
            decision = await self._hit(checks, subjects)
        if not decision.allowed:
            await self._shadows.tell_all((bound,), decision)
        return decision


def _refused_by_rule(rule: Rule) -> Decision:
    """Return the refusal by a rule that blocks; nothing was counted."""
    return Decision(False, Reason.BLOCKED, by=rule.label, status=rule.status)
