"""What depends on the status or the end of a response: `count_if`, strikes, permits, outcomes.

An effect is there only for requests whose rules need it. A request ends with the last message of its body, a websocket
when the application's call returns. Anything after the end, such as a failing background task, does not affect the
outcome.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from typing import Any, Final

from starlette.types import Scope

from ..core.decision import Decision, Reason
from ..core.errors import ConfigurationError, quoted
from ..core.reservation import Reservation
from ..limiter.aio import in_background
from ..limiter.observers import Outcome, notify
from .callbacks import UserCallbacks
from .failures import FAILED, is_failure
from .plan import LEFT, Plan
from .rules import Rule
from .signals import Signals
from .visit import Effect, Visit


def _true_or_false(counts: object) -> bool:
    """Return what `count_if` has returned; a function without `return` would count nothing.

    Raises:
        ConfigurationError: It is neither True nor False.
    """
    if not isinstance(counts, bool):
        raise ConfigurationError(f"expected True or False, not {quoted(counts)}", "count_if")
    return counts


class CloseReservations(Effect):
    """Closes at the end what rules with `cost_max` have reserved, if nobody has settled it."""

    def end(self, visit: Visit, error: BaseException | None) -> None:
        reservations = visit.policy.engine.reservations
        for decision in visit.own_decisions:
            for check in decision.checks:
                reservations.close(decision, check)


class HandBack(CloseReservations):
    """Refunds what rules have charged, unless their `count_if` counts the response, and closes these reservations.

    Args:
        rules: The rules with `count_if`, by the marks of their buckets.
        calls: Calls the user's functions.
    """

    statuses = None

    def __init__(self, rules: Mapping[object, Rule], calls: UserCallbacks) -> None:
        self._rules = rules
        self._calls = calls

    async def start(self, visit: Visit, status: Any) -> None:
        for decision in visit.own_decisions:
            for index, check in enumerate(decision.checks):
                rule: Any = self._rules.get(check[0].by)  # another may have its name
                if rule is None or not decision.allowed:
                    continue
                if not await self._calls.ask(rule, status, "count_if", rule.count_if, _true_or_false, True):
                    await visit.policy.engine.refund(decision.begin_refund(index))
                visit.policy.engine.reservations.close(decision, check)


class StrikeForStatus(Effect):
    """Strikes for the status of a response; a status that is no signal costs a look-up.

    The status of a refusal, also by a middleware or a limit within, is no signal.

    Args:
        signals: The signals of ban policies.
    """

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self.statuses = signals.by_status.keys()

    def start(self, visit: Visit, status: Any) -> Awaitable[object] | None:
        """See `Effect.start`, which is called for a status that another effect needs, too."""
        if status not in self._signals.by_status:
            return None
        for _, decision in visit.decisions:
            if not decision.allowed:
                return None
        return self._signals.strike_quietly(visit, self._signals.by_status[status], visit.scope)


class Release(Effect):
    """Releases the permits of a request, even if it is cancelled meanwhile. Of several, the first releases all."""

    def end(self, visit: Visit, error: BaseException | None) -> Awaitable[object] | None:
        permits: list[Sequence[Reservation]] = []
        for decision in visit.own_decisions:
            given = visit.policy.engine.release(decision)
            if given:
                permits.append(given)
        if not permits:
            return None
        released: Coroutine[Any, Any, Any] = visit.policy.engine.refund(*permits)
        if isinstance(error, GeneratorExit):  # a coroutine that is being closed cannot await
            in_background(released)
            return None
        return released


class ReportRefusal(Effect):
    """Reports the refusal of a request by a limit at its endpoint, if it stands when the response starts.

    It stands whatever status the application chose, unless another limit has decided the request after it.

    Args:
        scope: The scope at the endpoint.
    """

    statuses = None

    def __init__(self, refusal: Decision, scope: Scope) -> None:
        self._refusal = refusal
        self._scope = scope

    def start(self, visit: Visit, status: Any) -> None:
        self.end(visit, None)

    def end(self, visit: Visit, error: BaseException | None) -> None:
        if visit.refusal is self._refusal:
            visit.policy.refusals.report(visit, self._refusal, self._scope)


class ReportOutcome(Effect):
    """Reports the outcomes of requests.

    A request that is exempt, or that ends, because its client leaves or its server cancels it, before it is decided or
    while it waits, is not reported.
    """

    def end(self, visit: Visit, error: BaseException | None) -> None:
        policy = visit.policy
        observers = policy.observers
        duration_us = (policy.engine.clock.monotonic_ns() - visit.began_ns) // 1_000
        route = policy.routes.label(visit.scope)
        own = visit.own_decisions
        if error is None and len(own) == 1 and visit.shared is None and not visit.observed:
            decision = own[0]
            if decision.allowed and decision.checks:
                # Limits admit it in one decision: observers that need no `Outcome` get its parts, which costs less.
                notify(observers.passed, (visit.client.key, decision.checks, route, duration_us, visit.status))
                if observers.outcomes:
                    _report(observers.outcomes, visit, error, route, duration_us)
                return
        _report(observers.requests, visit, error, route, duration_us)


REPORT_OUTCOME: Final = ReportOutcome()


def _report(receivers: Sequence[Any], visit: Visit, error: BaseException | None, route: str, duration_us: int) -> None:
    """Report the outcome of a request, if it has one."""
    decisions = [decision for _, decision in visit.decisions if decision.reason is not Reason.DISABLED]
    if visit.was_waiting and not (visit.status or isinstance(error, Exception)):  # it is cancelled with its wait
        return
    if not _has_outcome(visit, decisions):
        return
    refusal: Decision | None = None
    failed = is_failure(error)
    # A limit at an endpoint that refuses after the response has begun breaks the connection: a failure.
    if not decisions[-1].allowed and not (visit.status and failed):
        refusal = decisions[-1]
        failed = False
    status = visit.status
    if failed:
        status = status or FAILED
    began_us = visit.policy.engine.unix_us() - duration_us
    notify(
        receivers,
        Outcome(
            visit.client.key,
            decisions,
            refusal,
            visit.shadow_rules,
            route,
            status,
            failed,
            began_us,
            duration_us,
            visit.observing_rules,
        ),
    )


def _has_outcome(visit: Visit, decisions: Sequence[Decision]) -> bool:
    """Return whether a request was decided; of an exempt one, whether anything refused it or counted it after all."""
    if LEFT in decisions:
        return False
    if not visit.plan.is_exempt:
        return bool(decisions)
    return bool(visit.observed) or any(decision.checks or not decision.allowed for decision in decisions)


def effects_of(plan: Plan, signals: Signals, calls: UserCallbacks) -> list[Effect]:
    """Return what depends on the responses to the requests of a plan, in the order in which it happens.

    What is reserved is first: behind an effect that is cancelled, the others have their end alone, and a cancelled
    strike may be lost. Permits are last, because their release is awaited.
    """
    effects: list[Effect] = []
    if plan.is_conditional:  # the effects depend on its conditions, and are those of another plan
        return effects
    judging = {mark: rule for mark, rule in plan.reserving.items() if rule.count_if is not None}
    if judging:
        effects.append(HandBack(judging, calls))
    if signals.by_status and not plan.is_exempt:
        effects.append(StrikeForStatus(signals))
    if len(judging) < len(plan.reserving):
        effects.append(CloseReservations())
    if any(bound.permits is not None for bound in plan.limiting):
        effects.append(Release())
    return effects
