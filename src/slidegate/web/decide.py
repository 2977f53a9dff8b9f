"""The order in which a request is decided, in one place.

The allowlist comes first, then the blocklist, then bans and every rule that applies, in one question to the limiter.
Nothing is awaited that has its answer at once: a decision is returned, or an awaitable of one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import Scope

from ..core.addresses import Address
from ..core.bans.ban import Ban, BanSubject, longest
from ..core.decision import BanRefusal, Check, Decision, Reason, RuleRefusal
from ..core.errors import StoreError
from ..core.memo import remember
from ..core.networks import Networks
from ..limiter import Limiter
from ..limiter.operators import NetworkLookup
from ..limiter.waiting import may_wait
from .bans import BanSignals, Signal
from .callbacks import ShadowRules, UserCallbacks
from .client_ip import ClientAddress, may_be_gone
from .endpoint_refusals import wait_at_endpoint
from .exchange import Entry, Exchange, allowlisted, asked_checks, is_asked, is_preflight
from .headers import field_value
from .lists import ListFiles
from .rule_set import BoundRule, Matched, RuleSet

_ALLOWLISTED: Final = Decision(True, Reason.ALLOWLISTED)
_EXEMPT: Final = Decision(True, Reason.EXEMPT)
_GONE: Final = BanRefusal("gone")
_MAX_QUESTIONS: Final = 8
"""How many questions of one client are remembered: most meet the same few rules again and again."""


class Client:
    """What is the same about all requests of a client.

    Args:
        key: Its key.
        address: Its address, if it has one.
        subjects: The keys and the address whose bans refuse it.
        verdict: The decision about it, if it is on a list.

    Attributes:
        matched: The rules that its first request has met.
        question: What is charged for requests that meet these; prepared, see `Store.prepare`.
        others: The same for other rules.
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
        """Return what is charged for a request that meets other rules than the first one, if that is remembered."""
        return None if self.others is None else self.others.get(matched)

    def remember(self, matched: Matched, question: Sequence[Check]) -> None:
        """Remember what is charged for a request by the rules that it meets."""
        if self.matched is None:
            self.matched, self.question = matched, question
            return
        if self.others is None:
            self.others = {}
        remember(self.others, matched, question, _MAX_QUESTIONS)


class Decider:
    """Decides about requests.

    Args:
        limiter: The limiter that counts.
        client: How the client's address is found.
        rules: The rules of the middleware.
        blocklist: Networks refused before anything is counted.
        allowlist: Networks let through before anything is counted.
        files: The files that these follow, and those that know networks.
        calls: Calls the user's functions.
        signals: Strikes, and names the keys whose bans refuse a request.
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
        self._looks_at_peers = blocklist is not None or bool(signals.policies)
        self._names_peers = False
        self._shadows = ShadowRules(limiter, calls, self._hit)

    def decide(self, scope: Scope, exchange: Exchange) -> Decision | Awaitable[Decision]:
        """Decide about a request.

        Args:
            scope: Its scope.
            exchange: What the middlewares further out have decided; it learns whether this one exempts the request.
        """
        before = exchange.entries
        client = self.client(scope)
        if before and allowlisted(before):
            return _ALLOWLISTED
        if client.verdict is not None:
            return client.verdict
        matched = self._rules.match(scope)
        question = client.question if client.matched is matched else client.find(matched)
        if question is not None and not before:
            return self._engine.decide(question, client.subjects)
        return self._decide_anew(matched, scope, exchange, client)

    def _decide_anew(
        self, matched: Matched, scope: Scope, exchange: Exchange, client: Client
    ) -> Decision | Awaitable[Decision]:
        """Decide about a request for which no question is remembered; remember one that will be asked again."""
        before, subjects = exchange.entries, client.subjects
        if self._signals.keyed:
            subjects = self._signals.subjects(scope, client.key, client.address)
        exempt = matched.exempt or is_preflight(scope)
        if exempt:
            exchange.exempt = (*exchange.exempt, exchange.parts)
        if not matched.plain or before or self._signals.on_request:
            return self._decide(matched, scope, exchange, client.key, subjects)
        checks: Sequence[Check] = [bound.check(scope, self._limiter, client.key) for bound in matched.limiting]
        if not checks:
            return self._uncounted(matched, subjects)
        if self._rules.waits:
            return self._queues.decide(checks, subjects)
        if matched.by_client and not exempt and not self._signals.keyed:
            checks = self._engine.prepare(checks)
            client.remember(matched, checks)
        return self._engine.decide(checks, subjects)

    def client(self, scope: Scope) -> Client:
        """Return the client of a request; it is remembered until a list is read anew."""
        if self._files:
            self._look_at_files()
        peer = scope.get("client")
        if not peer:
            return self._meet(scope)
        asked = peer[0] if self._header is None else (peer[0], field_value(scope, self._header))
        clients = self._clients
        return clients.get(asked) or remember(clients, asked, self._meet(scope))

    def forget_clients(self) -> None:
        """Find every client anew: what is charged for one has changed."""
        self._clients = {}

    def _look_at_files(self) -> None:
        """Have the files of the lists looked at when that is due, and forget all clients where one was read anew."""
        for files in self._files:
            files.look_when_due()
        read = sum([files.generation for files in self._files])
        if read != self._read:
            self._clients, self._read = {}, read

    def _meet(self, scope: Scope) -> Client:
        """Find a client, and look for it on the lists."""
        key, address = self._client.locate(scope)
        verdict: Decision | None = None
        peer = scope.get("client")
        self._names_peers = self._names_peers or bool(peer and peer[0])
        if self.is_gone(scope):
            verdict = _GONE
        elif address is not None and self._allowlist is not None and self._allowlist.covers(*address):
            verdict = _ALLOWLISTED
        elif address is not None and self._blocklist is not None:
            name = self._blocklist.find(*address)
            verdict = None if name is None else BanRefusal(name)
        return Client(key, address, self._signals.own_subjects(key, address), verdict)

    def is_gone(self, scope: Scope) -> bool:
        """Return whether a request is refused because its connection was reset: nobody is left to read the answer.

        That is known only of a server that names peers, and matters only where a banned or listed client would hide.
        """
        return self._looks_at_peers and self._names_peers and may_be_gone(scope)

    async def _decide(
        self,
        matched: Matched,
        scope: Scope,
        exchange: Exchange,
        client_key: str,
        subjects: Sequence[BanSubject],
    ) -> Decision:
        """Decide where functions of the user's are called, middlewares further out have decided, or policies strike.

        Conditions come first, then the strikes for the request itself, the limits, and last the rules that only look
        on: each counts on windows of its own, and only what the limits let pass.
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
        checks: list[Check] = []
        for bound in matched.limiting:
            asked = await self._calls.checks(bound, scope, self._limiter, client_key)
            checks += self._uncharged(bound, asked, before) if before else asked
        if checks:
            decision = await self._hit(checks, subjects)
        else:
            answer = self._uncounted(matched, subjects)
            decision = answer if isinstance(answer, Decision) else await answer
        if decision.allowed and matched.shadows:
            await self._look(matched.shadows, scope, client_key, exchange, decision)
        if not decision.allowed:
            exchange.to_look = matched.shadows
            await self._shadows.tell_all(matched.told, decision)
        return decision

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

    async def look_after_wait(self, scope: Scope, exchange: Exchange) -> None:
        """Have the rules look on that would have done so if the request had been let in at once."""
        shadows, exchange.to_look = exchange.to_look, ()
        for bound in shadows:
            await self._shadows.look(bound, scope, self.client(scope).key)

    def _uncharged(self, bound: BoundRule, checks: Sequence[Check], before: Sequence[Entry]) -> Sequence[Check]:
        """Leave out the checks of a rule that others of its name have made on this request."""
        left = bound.uncharged(checks, asked_checks(before, self._limiter))
        if bound.rule.count_if is not None:
            self._rules.reserving.update({bucket.rule: bound.rule for bucket, _, _ in left})
        return left

    def _uncounted(self, matched: Matched, subjects: Sequence[BanSubject]) -> Decision | Awaitable[Decision]:
        """Decide about a request that no limit counts: a ban refuses it, or a rule that blocks."""
        blocked = matched.blocked
        otherwise = _EXEMPT if blocked is None else RuleRefusal(blocked.label, blocked.status)
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
        """Put one question to the limiter, unless a limits function says that nobody may pass: a ban goes before it."""
        shut = next((bucket for bucket, _, _ in checks if not bucket.limits), None)
        if shut is None:
            answer = self._queues.decide(checks, subjects)
            return answer if isinstance(answer, Decision) else await answer
        decision = await self._limiter.hit_all((), subjects)
        return BanRefusal(shut.label, reason=Reason.NOBODY) if decision.allowed else decision

    async def _struck(self, signals: Sequence[Signal], scope: Scope) -> Decision | None:
        """Strike for the signals of a request; return its refusal if that bans it.

        The store is not asked whether it is banned: it may be gone since it made the ban. A strike that may have banned
        the request, and was not answered, refuses it, too.
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
        return unanswered if ban is None else BanRefusal(ban.by, ban, ban.made_us)

    def decide_at(
        self, bound: BoundRule, request: HTTPConnection, before: Sequence[Entry]
    ) -> Decision | Awaitable[Decision | None] | None:
        """Decide about a limit at an endpoint, where the request has its body; None if it is not counted."""
        client = self.client(request.scope)
        client_key, subjects = client.key, client.subjects
        if self._signals.keyed:
            subjects = self._signals.subjects(request.scope, client_key, client.address)
        if bound.plain and not bound.rule.wait_us and bound.rule.action == "limit" and bound.rule.on_exceeded is None:
            checks: Sequence[Check] = (bound.check(request.scope, self._limiter, client_key),)
            if is_asked(before, bound.bucket.rule):
                checks = self._uncharged(bound, checks, before)
            return self._engine.decide(checks, subjects) if checks else None
        return self._decide_there(bound, request, client_key, subjects, before)

    async def _decide_there(
        self,
        bound: BoundRule,
        request: HTTPConnection,
        client_key: str,
        subjects: Sequence[BanSubject],
        before: Sequence[Entry],
    ) -> Decision | None:
        """Decide about a limit at an endpoint that calls functions, waits, holds permits or looks on."""
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
        decision = await self._hit(checks, subjects)
        if bound.rule.wait_us and may_wait(decision):
            decision = await wait_at_endpoint(request, decision, self._limiter, subjects)
        if not decision.allowed:
            await self._shadows.tell_all((bound,), decision)
        return decision
