"""Counts a request: its checks are charged together or not at all, in one hit.

A check is (bucket, key, cost). A rule without functions has the same buckets and costs for every request, and its key
needs a look at the client or the scope alone; a function of the user's replaces one of the three.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import HTTPConnection
from starlette.types import Scope

from ..core.buckets import Check, uncharged
from ..core.decision import Decision
from ..core.events import Event
from ..core.memo import remember
from ..limiter.engine import Engine
from .callbacks import UserCallbacks, request_in, whole_cost
from .plan import BoundRule, Plan, RuleMatch
from .rule_set import RuleSet
from .signals import Signals
from .visit import Visit
from .waiting import hit_or_wait


class Counting:
    """Counts the requests of one middleware.

    Args:
        engine: The engine of the limiter.
        calls: Calls the user's functions.
        signals: The signals of ban policies.
    """

    def __init__(self, engine: Engine, rules: RuleSet, calls: UserCallbacks, signals: Signals) -> None:
        self._engine = engine
        self._rules = rules
        self._calls = calls
        self._signals = signals

    async def decide(self, visit: Visit) -> Decision:
        """Decide a request whose plan is not direct.

        Lists come first, as they are free; honeypots before limits.
        """
        if visit.client.verdict is not None:
            return visit.client.verdict
        plan = visit.plan
        request: HTTPConnection | None = None
        if plan.is_conditional:
            request = request_in(visit.scope)
            plan = visit.plan = await self.narrow(visit, plan, request)
            visit.effects = [*visit.effects, *plan.effects]
        if plan.strikes:
            refusal = await self._signals.strike_for_path(visit, plan.strikes)
            if refusal is not None:
                return refusal
        if not plan.limiting and not self._engine.store.bans.may_refuse():
            return plan.verdict
        if plan.calls_functions and request is None:
            request = request_in(visit.scope)
        return await self.count(visit, plan, visit.scope, request)

    async def count(self, visit: Visit, plan: Plan, scope: Scope, request: Any) -> Decision:
        """Charge the limits of a plan, unless a ban refuses the request.

        Args:
            visit: The request in its middleware.
            plan: The plan of the request, or of its endpoint.
            scope: The scope of the request by now.
            request: The request as functions get it; None if the plan calls none.
        """
        subjects = visit.client.subjects
        if plan.calls_functions:
            checks: list[Check] = []
            unlimited: list[str] = []
            for bound in plan.limiting:
                checks += await self._checks_of(bound, visit, request, unlimited)
            # A ban of a key holds where a rule reads it, also if the rule counts nothing of the request.
            subjects = self._signals.joined(subjects, unlimited)
        else:
            checks = plan.checks(scope, visit.client.key)
        if self._signals.keyed:  # a dependency may have set the user since the request arrived
            subjects = self._signals.with_keys(subjects, scope, visit.client.key)
        for earlier in visit.own_decisions:
            if earlier.allowed and earlier.checks:
                checks = uncharged(earlier.checks, checks)
        if not checks:
            is_asked = visit.own_decisions and subjects is visit.client.subjects  # no other key may be banned
            if is_asked or not self._engine.store.bans.may_refuse():  # nothing to ask
                return plan.verdict
        if plan.waiting:
            decision = await hit_or_wait(visit, plan.waiting, checks, subjects, request, self._calls)
        else:
            answer = self._engine.hit(checks, subjects)
            decision = answer if isinstance(answer, Decision) else await answer
        if not checks and decision.allowed:
            return plan.verdict
        return decision

    async def _checks_of(
        self, bound: BoundRule, visit: Visit, request: HTTPConnection, unlimited: list[str]
    ) -> list[Check]:
        """Return what a rule charges a request, calling its functions if it has some.

        Args:
            unlimited: Gets the key if the rule's limits function says that it has no limit.
        """
        if not bound.calls_functions:
            return bound.checks(request.scope, visit.client.key)
        rule = bound.rule
        ask = self._calls.ask
        bucket = bound.bucket
        cost = rule.cost
        if rule.limits_function is not None:
            bucket = await ask(rule, request, "limits", rule.limits_function, bound.bucket_for, bucket)
        key = bound.key_of(request.scope, visit.client.key)
        if bound.key_function is not None:
            returned: str | None = await ask(rule, request, "key", bound.key_function, self._calls.checked_key, None)
            key = returned or key
        if bucket is None and bound.permits is None:
            unlimited.append(key)
            return []
        if rule.cost_function is not None:
            cost = await ask(rule, request, "cost", rule.cost_function, whole_cost, cost)
            if rule.cost_max is not None:
                cost = min(cost, rule.cost_max)
            if bucket is not None:  # an estimate above the amount of a limit would always be refused
                cost = min([cost, *(limit.amount for limit in bucket.limits)])
        checks: list[Check] = []
        for charged, units in bound.charges_of(bucket, cost):
            checks.append((charged, key, units))
        return checks

    # -- conditions and shadow rules -----------------------------------------------------------------------------------

    async def narrow(self, visit: Visit, plan: Plan, request: HTTPConnection) -> Plan:
        """Return the plan of a request after evaluating the conditions of its rules in order, each function once.

        Limits apply generously and exemptions strictly: if a condition fails, a limit or a block applies, but `exempt`
        and `final` do not.
        """
        # By identity, as not every callable is hashable; None for a failure. Rules without a condition apply.
        answers: dict[int, bool | None] = {id(None): True}
        matches: list[RuleMatch] = []
        for match in plan.matches:
            rule = match.bound.rule
            when = id(rule.when)
            if when not in answers:
                answers[when] = await self._calls.truth_of(rule, request, visit.client.key)
            answer = answers[when]
            if answer is False:
                continue
            if answer is None and rule.exempts:
                continue
            if answer is None and not rule.blocks:
                match = RuleMatch(match.bound)
            matches.append(match)
            if match.ends:
                break
        memo_key = tuple(matches)
        evaluated = plan.evaluated.get(memo_key)
        if evaluated is None:
            traits = plan.traits._replace(is_evaluated=True)
            evaluated = self._rules.new_plan(matches, plan.strikes, traits)
            remember(plan.evaluated, memo_key, evaluated)
        return evaluated

    async def observe(self, visit: Visit, shadows: Sequence[BoundRule], request: HTTPConnection) -> None:
        """Count an admitted request under shadow rules, and report those that would have refused it."""
        for bound in shadows:
            checks = await self._checks_of(bound, visit, request, [])
            for earlier, _, _ in visit.observed:
                checks = uncharged(earlier, checks)
            if not checks:
                continue
            answer = self._engine.hit(checks, ())
            decision = answer if isinstance(answer, Decision) else await answer
            refuses = not decision.allowed and bool(decision.readings)  # else a ban, or a store that does not answer
            for around in visit.visits():
                around.observed = (*around.observed, (checks, bound.rule.label, refuses))
            if refuses:
                label = bound.rule.label
                key = checks[0][1]
                self._engine.emit(
                    Event("shadow_refused", f"rule {label!r} would have refused {key}", {"rule": label, "key": key})
                )
                self._engine.observers.report_exceeded(decision, self._engine.monotonic_us())
