"""Limits at endpoints: `RateLimit`, which is both a FastAPI dependency and a decorator.

`RateLimit` asks the limiter of the innermost middleware around it, for the client that this middleware sees. It refuses
by raising an `HTTPException`, which the application answers as any other. Whatever it answers, the middleware adds the
header fields that every refusal must have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from copy import copy
from functools import cached_property, partial
from inspect import Parameter, Signature
from typing import Any, Final, NoReturn, ParamSpec, TypeAlias, TypeVar, Unpack, overload
from weakref import ref

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import Scope

from ..core.decision import Decision
from ..core.errors import ConfigurationError, closest, quoted
from ..core.exceeded import RateLimitExceeded
from ..core.logs import logger
from ..core.memo import remember
from ..core.options import misplaced_option
from .callbacks import begin_body
from .clients import KEY
from .effects import ReportRefusal
from .endpoint_rule import LIMITS_MARK, EndpointOptions, EndpointRule, decorated, full_text_of, rule_at, text_of
from .keys import Key, path_parameters
from .plan import Plan, RuleMatch, Traits
from .policy import Finding, Policy
from .refusals import Answer, close_of, takes_answer
from .routes import MountedRoute, attribute_of
from .rule_set import EXEMPT_MARK
from .rules import Limits, LimitsFunction, Rule, method_of
from .visit import STARTS, Visit, active_visit_of, visit_of

_MEMO_ALIKE: Final = 256  # limits that are found by what they count, for requests that make limits for themselves

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Async: TypeAlias = Callable[_P, Coroutine[Any, Any, _T]]


class EndpointRefusal(RateLimitExceeded, HTTPException):
    """The refusal of a request by a limit at its endpoint, for the exception handlers of the application.

    Args:
        answer: The answer of its innermost middleware.
    """

    def __init__(self, decision: Decision, answer: Answer) -> None:
        self._refused = decision
        HTTPException.__init__(self, answer.status, answer.detail, answer.headers.copy())

    @cached_property
    def decision(self) -> Decision:  # type: ignore[override]
        """The refusal, with the status of the answer, as `on_refused` gets it."""
        decision = copy(self._refused)
        decision.status = self.status_code
        return decision


class RateLimit:
    """Limits an endpoint: ``Depends(RateLimit("5/second"))``, or ``@RateLimit("5/second")`` above a function.

    As a dependency it applies to a FastAPI route, router or application, for HTTP and websockets. As a decorator it
    applies to a Starlette or FastAPI endpoint, a function that needs no `request` parameter, or a method of a class. It
    requires a `RateLimitMiddleware` around the endpoint, and uses the limiter and the client address of the innermost.

    Each endpoint function has its own count, at whichever routes it is, and also below a router or an application with
    the limit. Objects of one name have the same limits and share their counts, also with a `Rule` of that name in a
    middleware without one. A request that meets the same limit twice is charged once, with the larger cost.

    A refusal raises `RateLimitExceeded`, which is a Starlette `HTTPException` with status 429 (503 under
    ``on_error="deny"``). The application answers it; see `rate_limit_exceeded`. An accepted websocket is closed with
    code 1013.

    Args:
        written: The limits as for `Rule`: ``"5/minute; 50/hour"``, a `Limit`, a `Quota`, or several.
        limits: The same, or a function of the request that returns limits.
        fallback_limits: The limits that apply when the `limits` function fails.
        when: As for `Rule`: a sync or async function of the request (with its body); only requests for which it
            returns a true value are counted.
        methods: As for `Rule`: the HTTP methods of the requests that are counted, by default all.
        concurrency: As for `Rule`: the most simultaneous requests of a key, alone or in addition to limits.
        key: The key to count by, as for `Rule`; a function gets the request with its body.
        cost: Units per request, or a sync or async function of the request (with its body).
        cost_max: As for `Rule`: the most units that the cost function charges.
        unit: As for `Rule`: what the limits count, for example ``"tokens"``.
        count_if: As for `Rule`: count only requests with certain responses.
        count_denied: Count refused requests as well.
        shadow: As for `Rule`: report the requests that would have been refused, and refuse none.
        wait: As for `Rule`: a request that would be admitted within this time waits at the endpoint.
        wait_max: The most requests of one key that wait at a time.
        fair: As for `Rule`: shares permits fairly among waiting tenants.
        on_error: As for `Rule`: how this limit decides when the store fails.
        name: The name of the limit in headers and logs, by default ``endpoint`` and the route. Objects of one name
            share their counts. If several limits of an endpoint come from partials, or from lambdas in one line, give
            them names.

    Attributes:
        exempt: Exempts an endpoint from the middleware's `default_limits`: ``@RateLimit.exempt``.

    Raises:
        ConfigurationError: An option is invalid; or, on a request, there is no middleware around the endpoint.
    """

    def __init__(
        self,
        written: Limits | None = None,
        /,
        *,
        limits: Limits | LimitsFunction | None = None,
        **options: Unpack[EndpointOptions],
    ) -> None:
        if callable(written):  # else the decorated function would be one that returns limits
            raise ConfigurationError(
                'RateLimit: write @RateLimit("5/minute") with parentheses, or RateLimit(limits=...) for a function '
                "that returns limits"
            )
        if written is not None:
            if limits is not None:
                raise ConfigurationError(f"is given twice; write RateLimit({quoted(written)})", "limits")
            limits = written
        accepted = [*EndpointOptions.__annotations__, "limits"]
        for option in options:
            if option not in accepted:  # one of a `Rule`, which would have no effect
                raise ConfigurationError(f"RateLimit: {misplaced_option(option, accepted)}")
        self.rule = EndpointRule("*", limits, **options)
        # FastAPI inspects the instance's `__call__` and signature. If `__call__` were not a coroutine function there,
        # FastAPI would not await its result, and no request would ever be limited. It is not bound, because then the
        # limit would refer to itself, and one that a request makes would not end with it.
        vars(self)["__call__"] = RateLimit.check
        parameter = Parameter("connection", Parameter.POSITIONAL_OR_KEYWORD, annotation=HTTPConnection)
        vars(self)["__signature__"] = Signature([parameter])

    def __repr__(self) -> str:
        return f"<RateLimit {text_of(self.rule)}>"

    @overload
    def __call__(self, connection: HTTPConnection) -> Coroutine[Any, Any, None]: ...

    @overload
    def __call__(self, connection: _Async[_P, _T]) -> _Async[_P, _T]: ...

    @overload
    def __call__(self, connection: Callable[_P, _T]) -> _Async[_P, _T]: ...

    def __call__(self, connection: Any) -> Any:
        """Check a request, as a FastAPI dependency, or decorate an endpoint."""
        if callable(connection) or not hasattr(connection, "scope"):  # faster than `isinstance` of `HTTPConnection`
            return decorated(self.check, connection, self.rule)
        return self.check(connection)

    @staticmethod
    def exempt(endpoint: _T) -> _T:
        """Exempt an endpoint from the `default_limits` of a middleware: ``@RateLimit.exempt``.

        Marks a function or a class, and returns it unchanged. It can be placed above or below the route decorator.
        Lists, bans, rules and limits at the endpoint still apply.

        Raises:
            ConfigurationError: The endpoint is an application with routes of its own.
        """
        if hasattr(endpoint, "routes"):
            raise ConfigurationError(
                f"RateLimit.exempt: expected the function or class of an endpoint, not {quoted(endpoint)}; for "
                'everything below a path, write Rule("/path/{rest:path}", exempt=True)'
            )
        # Each access to a method creates a new bound method.
        setattr(getattr(endpoint, "__func__", endpoint), EXEMPT_MARK, True)
        return endpoint

    async def check(  # noqa: C901 - the way of a request at its endpoint
        self, connection: HTTPConnection, endpoint: object = None, /
    ) -> None:
        """Charge a request, once however often it is checked; an endpoint may call this before it sends anything.

        As a dependency write the limit itself, ``Depends(LIMIT)``: FastAPI would let clients name the endpoint.

        Args:
            connection: The request or websocket.
            endpoint: The function whose count is charged; by default the endpoint of the route.

        Raises:
            RateLimitExceeded: The limit is exceeded. It is `starlette.exceptions.WebSocketException` for a websocket
                that was accepted before, and for one whose server cannot send an answer before.
            ConfigurationError: There is no middleware around the endpoint; or it has counted this websocket before, of
                which it counts no messages.
        """
        scope = getattr(connection, "scope", {})  # `active_visit_of` raises for what is no request
        visit: Visit | None = scope.get(KEY)
        if visit is None or visit.scope is None:  # there is none, or the innermost one is over
            visit = active_visit_of(connection, "RateLimit")
        if visit is None or not visit.plan.is_enforced:
            return
        policy = visit.policy
        # Where no route names an endpoint, all that reach equal limits have one count.
        plan = self._plan(policy, scope, scope.get("endpoint", RateLimit) if endpoint is None else endpoint)
        # After the plan, so that `charge` knows the limit of a request that it does not count.
        if self.rule.methods is not None and not self.rule.may_match(scope["type"], method_of(scope)):
            return
        if policy.findings.requests_left:
            policy.inspection.of_endpoint(visit, plan.matches[0].bound.rule, scope)
        if not plan.is_direct:  # it may call functions
            begin_body(visit)
            if plan.is_conditional:
                plan = await policy.counting.narrow(visit, plan, connection)
        decision = await policy.counting.count(visit, plan, scope, connection)
        if not decision.allowed:
            await self._refuse(visit, decision, scope)  # raises
        if decision.checks:
            visit.add(decision)
            if plan.effects:
                visit.effects = [*visit.effects, *plan.effects]
        elif visit.refusal is not None:  # a refusal that was caught; otherwise what counts nothing is no decision
            visit.add(decision)
        elif visit.status == STARTS["websocket.accept"]:
            # Who checks each message would let all of them pass; a permit is held until the end.
            counted = [
                bucket.name for one in visit.own_decisions for bucket, _, _ in one.checks if not bucket.is_permit
            ]
            if any(bound.identity in counted for bound in plan.limiting):
                raise ConfigurationError(
                    "RateLimit: it has counted this websocket, each of which it counts once; for each message write "
                    'RateLimitMiddleware(..., messages=MessageLimits("10/second")), or await limiter.hit(...)'
                )
        if plan.is_followed:
            policy.engine.reservations.open(decision, plan.reserving)
            if plan.shadows:
                await policy.counting.observe(visit, plan.shadows, connection)

    async def _refuse(self, visit: Visit, decision: Decision, scope: Scope) -> NoReturn:
        """Refuse a request at its endpoint.

        Raises:
            RateLimitExceeded: The refusal; `WebSocketException` for a websocket that gets no answer.
        """
        policy: Policy = visit.policy
        if policy.engine.reservations.by_window:
            visit.explain(decision)
        visit.add(decision)
        try:
            if policy.signals.by_refusal:
                await policy.signals.strike_for_refusal(visit, decision, scope)
        finally:  # also if the strike is cut off, after which the application may answer; it may change the decision
            visit.answer = policy.refusals.answer(decision)
        is_websocket = scope["type"] == "websocket"
        # The connection breaks if an HTTP response has begun; no refusal is reported then.
        if policy.refusals.wants("exceeded") and (is_websocket or not visit.status):
            visit.effects = [*visit.effects, ReportRefusal(decision, scope)]
        if is_websocket and (visit.status or not takes_answer(scope)):
            raise close_of(decision, is_accepted=bool(visit.status))
        raise EndpointRefusal(decision, visit.answer)

    def _plan(self, policy: Policy, scope: Scope, endpoint: Any) -> Plan:
        """Return the plan of the requests to an endpoint."""
        rules = policy.rules
        function = getattr(endpoint, "__func__", endpoint)  # each access to a method creates a new bound method
        memo_key = id(self), id(function)
        memo = rules.at_endpoints.get(memo_key)
        if memo is not None:
            return memo[0]
        policy.inspection.of_new_limit(policy, self, function)
        # One that a request makes for itself is equal to the one before. With other functions, such as closures, it
        # needs a plan of its own.
        alike = full_text_of(self.rule), id(function)
        values = [value for value in vars(self.rule).values() if not isinstance(value, Key)]  # keys are in the text
        plan, _, known = rules.alike.get(alike, (None, None, None))
        if plan is None or known != values:
            plan = self._new_plan(policy, scope, function)
            remember(rules.alike, alike, (plan, function, values), _MEMO_ALIKE)
        # What follows keeps the function alive, so that no other one gets its id, and ends with the limit.
        end = ref(self, lambda _: rules.at_endpoints.pop(memo_key, None))
        remember(rules.at_endpoints, memo_key, (plan, function, end))
        return plan

    def _new_plan(self, policy: Policy, scope: Scope, function: Any) -> Plan:
        """Make it: give the limit its names at this endpoint, compare it with the first of its name, and bind it."""
        label = min([route.label for route in policy.routes.routes_for(scope)], default="")  # as other workers choose
        rule = rule_at(self.rule, function, scope.get("endpoint"), label)
        rule.where = f"RateLimit at {label or 'another endpoint'}"
        problem = policy.rules.other_limits(rule)
        if problem:
            policy.findings.report([Finding("SG143", problem)])
            # What has one name counts together, and so has the limits of the first.
            first = policy.rules.first_by_name[rule.identity]
            rule.limits, rule.limits_function, rule.concurrency = first.limits, first.limits_function, first.concurrency
        names: Collection[str] = scope.get("path_params", ())
        for name in path_parameters(rule.key, rule.fair):
            if name not in names:  # no error: a router may have the limit, and one of its routes the parameter
                text = "RateLimit of %s: its route has no parameter %r to count by%s"
                logger.warning(text, rule.label, name, closest(name, names))
        return policy.rules.new_plan([RuleMatch(policy.rules.bind(rule, rule.identity))], (), Traits())


# -- refusals ----------------------------------------------------------------------------------------------------------


async def rate_limit_exceeded(request: HTTPConnection, error: Exception) -> Any:
    """Exception handler: answer a refusal at an endpoint as the innermost middleware answers its own.

    That is with problem details, or with the answer of its `on_refused`; a websocket that was accepted is closed::

        app.add_exception_handler(RateLimitExceeded, rate_limit_exceeded)

    Args:
        request: The request or websocket.
        error: The `RateLimitExceeded`. Any other `HTTPException` is answered with its status and detail.

    Raises:
        ConfigurationError: There is no middleware around the application.
    """
    if not isinstance(error, RateLimitExceeded):
        if isinstance(error, HTTPException):  # of the application, where this is the handler of a status
            return JSONResponse({"detail": error.detail}, error.status_code, error.headers)
        raise error
    visit = visit_of(request, "rate_limit_exceeded")
    if visit is None:
        raise error
    # The fields list no limits of functions and of outbound calls, which raise `RateLimitExceeded` as well.
    names_limits = isinstance(error, EndpointRefusal)
    # Starlette calls what a handler returns with scope, receive and send.
    return partial(visit.policy.refusals.answer_at_endpoint, visit, error.decision, names_limits=names_limits)


# -- what the routes of an application show of them --------------------------------------------------------------------


def rules_of_route(route: MountedRoute) -> list[Rule]:
    """Return the limits of a route: those of FastAPI's dependencies, and those around its endpoint."""
    rules: list[Rule] = []
    dependencies = [route.dependant]
    for dependency in dependencies:  # in breadth, as the list grows by those of each
        dependencies += attribute_of(dependency, "dependencies", ())
        call = attribute_of(dependency, "call")
        if isinstance(call, RateLimit):
            rules.append(call.rule)
    rules += getattr(route.endpoint, LIMITS_MARK, ())
    return [*{id(rule): rule for rule in rules}.values()]  # each object once: two equal rules are two limits
