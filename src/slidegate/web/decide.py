"""Decides requests: the allowlist first, then the blocklist, then bans and all matching rules in one question.

`Decider.decide` serves the requests whose question is not prepared yet, and limits at endpoints. It is no coroutine
function: it awaits no decision that is available immediately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import HTTPConnection
from starlette.types import Message, Scope

from ..core.bans.ban import BanSubject
from ..core.buckets import Check
from ..core.decision import Decision, Reason
from ..core.events import Event
from ..core.question import Question
from ..limiter.aio import answer_of
from ..limiter.queues import Name, is_too_late, room_in_us
from .callbacks import request_of, whole_cost
from .client_ip import Client, ClientAddress
from .exchange import Exchange
from .headers import windows_of
from .keys import Key, parts_of
from .rule_set import BoundRule, Met, Plan
from .rules import Rule
from .server_end import SERVER_END
from .waiting import Peeked

if TYPE_CHECKING:
    from .middleware import RateLimitMiddleware


class Decider:
    """Decides the requests of one middleware.

    Args:
        middleware: The middleware.
    """

    def __init__(self, middleware: RateLimitMiddleware) -> None:
        self._limiter = middleware.limiter
        self._engine = middleware.limiter.engine
        self._signals = middleware.signals
        self._calls = middleware.calls
        self._rules = middleware.rule_set
        self._writer = middleware.header_writer

    def decide(
        self, exchange: Exchange, plan: Plan, client: Client, request: HTTPConnection | None = None
    ) -> Decision | Awaitable[Decision]:
        """Decide a request.

        Args:
            exchange: The request in its middleware.
            plan: The plan of the request, or of the endpoint.
            client: The client.
            request: The request at the endpoint, with its body; None in the middleware.
        """
        if request is None:
            if self._signals.of_addresses:
                client = self._located(client, exchange.scope)
            exchange.client = exchange.decided.client = client
        if client.verdict is not None:
            return client.verdict
        if plan.asks:
            return self._decide(exchange, client, plan, request)
        if plan.is_exempt:
            exchange.decided.exempt = (*exchange.decided.exempt, exchange.middleware)
        if not plan.limiting:
            may_refuse = self._limiter.store.bans.may_refuse()
            return self._unless_banned(plan, exchange.scope, client) if may_refuse else plan.verdict
        if request is None:
            return self._engine.ask(self._question(plan, exchange.scope, client))
        return self.ask_rest(exchange, plan, self._question(plan, request.scope, client))

    def ask_rest(self, exchange: Exchange, plan: Plan, question: Question) -> Decision | Awaitable[Decision]:
        """Ask a question at an endpoint, without what its request has passed before."""
        left = _uncharged(_passed(exchange), question.checks)
        if left and left is not question.checks:
            question = self._engine.prepare(left, question.subjects)
        return self._engine.ask(question) if left else plan.verdict

    def _located(self, client: Client, scope: Scope) -> Client:
        """Return the client of a request at the entrance, with the addresses that keys of policies find there."""
        return client._replace(located={key: key.locate(scope)[0] for key in self._signals.of_addresses})

    def subjects(self, scope: Scope, client: Client) -> Sequence[BanSubject]:
        """Return the keys and addresses whose bans apply to a request."""
        keys = self._signals.keys
        if not keys:
            return client.subjects
        seen = client.beside(scope)
        return [*client.subjects, *(key.find(seen, self._limiter, client.key) for key in keys)]

    # -- questions -----------------------------------------------------------------------------------------------------

    def _question(self, plan: Plan, scope: Scope, client: Client) -> Question:
        """Return the question of a request that needs no function of the user's."""
        keys = [bound.key_of(scope, self._limiter, client.key) for bound in plan.limiting]
        subjects = self.subjects(scope, client)
        known = client.who if plan.by_client and not self._signals.keys else (client.who, *keys, *subjects)
        question = plan.questions.get(known)
        if question is None:
            checks: list[Check] = []
            for bound, key in zip(plan.limiting, keys, strict=True):
                checks += bound.checks(key, bound.rule.cost, bound.counts)
            question = self._engine.prepare(checks, subjects)
            question.rendered = plan.rendered = plan.rendered or self._writer.render(question)
            if client.who is not None and not plan.is_exempt:
                question.client = client
                self._rules.remember_question(plan, known, question)
        return question

    async def _unless_banned(self, plan: Plan, scope: Scope, client: Client) -> Decision:
        """Decide a request that no limit counts: only bans and blocking rules can refuse it."""
        decision = await self._engine.hit(self._engine.prepare((), self.subjects(scope, client)))
        return plan.verdict if decision.allowed else decision

    # -- functions of the user's, queues, strikes and shadow rules -----------------------------------------------------

    async def _decide(
        self, exchange: Exchange, client: Client, plan: Plan, endpoint: HTTPConnection | None
    ) -> Decision:
        """Evaluate conditions, strike for the path, ask about the limits, and then about shadow rules."""
        request = request_of(exchange.scope) if endpoint is None else endpoint
        if plan.is_conditional:
            plan = await self._evaluated(plan, request, client)
            exchange.hooks = [*exchange.hooks, *plan.hooks]
        if plan.is_exempt:
            exchange.decided.exempt = (*exchange.decided.exempt, exchange.middleware)
        refusal = await self._signals.refuse_by_path(plan.strikes, exchange)
        if refusal is not None:
            return refusal
        passed = _passed(exchange)
        checks: list[Check] = []
        queue: tuple[BoundRule, Name] | None = None
        for bound in plan.limiting:
            own = _uncharged(passed, await self._checks(bound, client, request))
            checks += own
            if own and bound.rule.wait_us and queue is None:
                queue = bound, (own[0][0].name, own[0][1])
        question = self._engine.prepare(checks, self.subjects(request.scope, client))
        decision = await (
            self._engine.hit(question) if queue is None else self._wait(exchange, client, request, question, *queue)
        )
        if decision.allowed and not checks:
            decision = plan.verdict
        try:
            for bound in plan.shadows if decision.allowed else ():
                await self._observe(bound, exchange, client, request)
        except BaseException:  # it is cancelled in a function of the user's: the end gives back what was charged
            exchange.record(decision)
            raise
        return decision

    async def _evaluated(self, plan: Plan, request: HTTPConnection, client: Client) -> Plan:
        """Return the plan of a request after evaluating the conditions of its rules in order, each function once.

        Limits apply generously and exemptions strictly: if a condition fails, a limit or a block applies, but `exempt`
        and `final` do not.
        """
        answers: dict[int, bool | None] = {}  # by identity, as not every callable is hashable; None for a failure
        met: list[Met] = []
        for bound, ends in plan.met:
            rule = bound.rule
            if id(rule.when) not in answers:
                answers[id(rule.when)] = await self._calls.is_true(rule, request, client.key)
            is_true = answers[id(rule.when)]
            if is_true is None:
                ends = ends and rule.blocks
            if is_true is False or (is_true is None and rule.exempt):
                continue
            met.append((bound, ends))
            if ends:
                break
        return self._rules.plan_of(met, plan.strikes, plan.kind._replace(is_evaluated=True))

    async def _checks(self, bound: BoundRule, client: Client, request: HTTPConnection) -> Sequence[Check]:
        """Return the checks of a rule, calling its functions; none if it does not count the request."""
        rule, bucket, cost = bound.rule, bound.counts, bound.rule.cost
        ask = partial(self._calls.ask, rule, request)
        key = bound.key_of(request.scope, self._limiter, client.key)
        if rule.limits_function is not None:
            bucket = await ask("limits", rule.limits_function, bound.with_limits, bucket)
            if bucket is None and bound.permits is None:
                return ()
        if bound.key_function is not None:
            found: str | None = await ask("key", bound.key_function, self._key_for, key)
            if found is None:
                return ()
            key = found or key
        if rule.cost_function is not None:
            cost = await ask("cost", rule.cost_function, whole_cost, cost)
            # Cap the estimate: one above the amount of a limit would always be refused.
            amounts = [limit.amount for limit in bucket.limits] if bucket is not None else []
            cost = min([cost, *amounts] if rule.cost_max is None else [cost, rule.cost_max, *amounts])
        return bound.checks(key, cost, bucket)

    def _key_for(self, found: Any) -> str | None:
        """Return the key that a user's function has returned; None and an empty text stay as they are."""
        return found if found is None or found == "" else self._limiter.key_for(found)

    async def _observe(self, bound: BoundRule, exchange: Exchange, client: Client, request: HTTPConnection) -> None:
        """Count a request under a shadow rule, and report it if the rule would have refused it."""
        checks = _uncharged(exchange.observed, await self._checks(bound, client, request))
        if not checks:
            return
        decision = await self._engine.hit(self._engine.prepare(checks, ()))
        exchange.observed = (*exchange.observed, checks)
        if decision.allowed or decision.reason is Reason.BANNED:
            return
        label, key = bound.rule.label, checks[0][1]
        exchange.decided.shadowed = (*exchange.decided.shadowed, (exchange.middleware, label))
        message = f"rule {label!r} would have refused {key}"
        self._engine.emit(Event("shadow_refused", message, {"rule": label, "key": key}))
        self._engine.observers.report_exceeded(decision, self._engine.now_us())

    # -- waiting -------------------------------------------------------------------------------------------------------

    async def _wait(
        self,
        exchange: Exchange,
        client: Client,
        request: HTTPConnection,
        question: Question,
        bound: BoundRule,
        name: Name,
    ) -> Decision:
        """Ask about the limits of a request, which may wait in the queue of a name under its first rule with `wait`.

        The store is asked many times, so limits with `count_denied` count a refusal here, once.
        """
        rule, queues = bound.rule, self._engine.queues
        counted = [check for check in question if check[0].count_denied]
        asked = self._engine.prepare([*map(_uncounted, question)], question.subjects) if counted else question
        tenant = await self._tenant(bound, client, request)
        if is_queued := queues.is_queued(name):  # who is refused by a ban or another limit takes no place from others
            decision = await self._peek(question)
        else:
            decision = await self._engine.hit(asked)
        if not is_too_late(decision, rule.wait_us) if is_queued else room_in_us(decision) is not None:
            decision = await self._queue(exchange, rule, name, tenant, asked, None if is_queued else decision)
        if decision.allowed and decision.checks and rule.fair is not None:  # no checks while switched off
            queues.count_permit(name, tenant, 1)
            exchange.permits = (*exchange.permits, (name, tenant))
        if counted and decision.reason is Reason.LIMITED and exchange.decided.left is None:
            seen = await self._peek(question)  # with this refusal counted
            decision = seen if seen.reason is Reason.LIMITED else decision
            await answer_of(self._engine.charge(counted))
        return decision

    async def _peek(self, question: Question) -> Decision:
        """Return what the limiter would answer now."""
        decision = await answer_of(self._engine.peek(question, question.subjects))
        if decision.readings:
            decision.checks = question
        return decision

    async def _queue(
        self, exchange: Exchange, rule: Rule, name: Name, tenant: str, question: Question, refused: Decision | None
    ) -> Decision:
        """Wait in the queue of a rule and key; a request that joins one without having asked was not refused.

        If the client leaves meanwhile, nothing stays charged, and the refusal is sent but not told of. If the server is
        told to end, all that wait are refused.
        """
        channel = _peeked(exchange)
        channel.begin()
        left = Decision(False, Reason.LIMITED, by=rule.label, status=429) if refused is None else refused
        try:
            with SERVER_END.watched():
                decision = await self._engine.queues.wait(
                    name,
                    refused,
                    partial(self._engine.hit, question),
                    wait_us=rule.wait_us,
                    wait_max=rule.wait_max,
                    tenant=tenant,
                    is_gone=lambda: channel.is_gone() or SERVER_END.is_near,
                )
        except BaseException as error:
            if not isinstance(error, Exception):
                exchange.decided.cut_short = left
                exchange.record(left)
            raise
        if channel.is_gone():
            exchange.decided.left, exchange.decided.left_with = left, exchange.status
            if exchange.scope["type"] == "websocket":  # Starlette's BaseHTTPMiddleware fails without an answer
                exchange.send_on = _send_nobody
            await self._engine.refund(decision.begin_refund())
            return left
        if not isinstance(decision.checks, Question):  # what a refusal of another request says about this one
            decision.checks = self._engine.prepare(decision.checks, ())
        return decision

    async def _tenant(self, bound: BoundRule, client: Client, request: HTTPConnection) -> str:
        """Return the tenant whose share of the permits a request uses; ``""`` if it is unknown or the rule not fair."""
        fair = bound.rule.fair
        if fair is None:
            return ""
        if isinstance(fair, Key):
            found = fair.find(bound.routed(request.scope), self._limiter, client.key)
            asks_address = any(isinstance(key, ClientAddress) for key in parts_of(fair))
            return found if found != client.key or asks_address else ""
        return await self._calls.ask(bound.rule, request, "fair", fair, self._key_for, None) or ""


def _passed(exchange: Exchange) -> list[Sequence[Check]]:
    """Return the questions that a request has passed in its middleware. A refusal charges nothing."""
    return [decision.checks for decision in exchange.own if decision.allowed and decision.checks]


def _uncharged(earlier: Sequence[Sequence[Check]], checks: Sequence[Check]) -> Sequence[Check]:
    """Return the checks without what earlier questions have charged: the same limits of a key count a request once.

    Of several costs the largest one is charged, so a later question has charged what was missing.
    """
    if not earlier:
        return checks
    charged = Counter[tuple[object, ...]]()
    for question in earlier:  # in which no window is twice
        charged.update({windows_of(check): check[2] for check in question})
    costs = [(check, charged.get(windows_of(check))) for check in checks]
    left = [(check[0], check[1], check[2] - (cost or 0)) for check, cost in costs if cost is None or cost < check[2]]
    return checks if left == [*checks] else left


def _uncounted(check: Check) -> Check:
    """Return a check that charges no refusal."""
    bucket = copy(check[0])
    bucket.count_denied = False
    return bucket, check[1], check[2]


def _peeked(exchange: Exchange) -> Peeked:
    """Return a channel that reads ahead, which is in front of that of a request until it ends."""
    channel = exchange.channel if isinstance(exchange.channel, Peeked) else Peeked(exchange.channel)
    exchange.channel = channel
    if channel not in exchange.hooks:
        exchange.hooks = [channel, *exchange.hooks]  # before those that are awaited
    return channel


async def _send_nobody(message: Message) -> None:
    """Drop a message: the client has left, though the application answers."""
