"""Calls the user's functions, including those of shadow rules.

A failing function neither bypasses limits nor breaks the response. If a key function fails, the request is counted
under the client's address; if a limits function fails, the fallback limits apply; if a cost function fails, the cost is
1; if a `count_if` fails, the request counts. If a `when` fails, limits and blocks apply and exemptions do not. If an
`on_refused` fails, the default answer is sent. Each failure is logged with the rule's name, at most once a minute.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable
from math import inf
from operator import index
from typing import Any, Final, NoReturn, SupportsIndex, TypeAlias, TypeVar

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request
from starlette.types import Message, Receive, Scope

from ..core.decision import Bucket, Check, Decision, Reason
from ..core.errors import ConfigurationError
from ..core.logs import Throttle, logger
from ..core.memo import remember
from ..core.store import Event
from ..limiter import Limiter, check_cost
from .client_ip import ClientAddress
from .exchange import SCOPE_KEY, Exchange
from .keys import Key, KeyCondition, parts_of
from .rule_set import BoundRule, Matched, chosen
from .rules import Rule

_T = TypeVar("_T")
Fields: TypeAlias = Iterable[tuple[bytes, bytes]]

_CONSEQUENCES: Final = {
    "limits": "its fallback limits apply",
    "key": "the request is counted under the client's address",
    "cost": "the request costs 1",
    "count_if": "the request is counted",
    "when": "the rule limits or blocks the request, or does not exempt it",
    "fair": "the request waits with those of unknown tenants",
    "on_exceeded": "this key was not reported",
}


_ALREADY_READ: Final = ("_body", "_form", "_json", "_stream_consumed")
"""Where Starlette keeps what was read of a request."""


async def _no_body() -> NoReturn:
    raise RuntimeError(
        "the request has no body here, because it is decided before its body is read; use headers, path or query, "
        "or limit at the endpoint with RateLimit(key=...)"
    )


def request_of(scope: Scope) -> HTTPConnection:
    """Return the request for the user's functions; its body cannot be read."""
    return Request(scope, _no_body) if scope["type"] == "http" else HTTPConnection(scope)


class _ReadTwice:
    """The messages of a request's body, for a function of the user's and then again for the endpoint.

    Args:
        receive: The receive channel of the request.
        max_body: How many bytes the function may read.
    """

    def __init__(self, receive: Receive, max_body: int) -> None:
        self._receive = receive
        self._left = max_body
        self._kept: deque[Message] = deque()

    async def receive(self) -> Message:
        """Receive for the function."""
        message = await self._receive()
        self._kept.append(message)
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise RuntimeError(
                "the body is larger than a function may read before the endpoint; write RateLimit(..., "
                'max_body="10MB"), or use headers, path or query'
            )
        return message

    async def receive_again(self) -> Message:
        """Receive for the endpoint, whatever the function has read."""
        return self._kept.popleft() if self._kept else await self._receive()


def with_body(request: HTTPConnection, max_body: int) -> HTTPConnection:
    """Return a request for functions at an endpoint, which may read its body in any way, and the endpoint again."""
    own = vars(request)
    if not isinstance(request, Request):
        return request
    channel = _ReadTwice(request.receive, max_body)
    own["_receive"] = channel.receive_again
    shown = Request(request.scope, channel.receive)
    vars(shown).update({name: own[name] for name in _ALREADY_READ if name in own})
    return shown


class UserCallbacks:
    """Calls the user's functions and throttles the logging of their failures."""

    def __init__(self) -> None:
        self._throttle = Throttle()

    async def checks(
        self, bound: BoundRule, scope: Scope, limiter: Limiter, client_key: str, request: HTTPConnection | None = None
    ) -> Sequence[Check]:
        """Return the checks of a request, calling the rule's functions; none if the rule does not count it."""
        rule = bound.rule

        def shown() -> HTTPConnection:
            return request_of(scope) if request is None else with_body(request, rule.max_body)

        bucket: Bucket | None
        bucket, key, cost = bound.check(scope, limiter, client_key)
        if rule.limits_function is not None:
            bucket = await self.ask("limits", rule.label, rule.limits_function, (shown(),), bound.plan, bucket)
            if bucket is None and bound.permits is None:
                return ()
        if bound.key_function is not None:
            found: str | None = await self.ask(
                "key", rule.label, bound.key_function, (shown(),), _key_for(limiter), key
            )
            if found is None:
                return ()
            key = found or key
        if bound.cost_function is not None:
            cost = await self.ask("cost", rule.label, bound.cost_function, (shown(),), _whole, cost)
            # Cap the estimate: one above the amount of a limit would always be refused.
            amounts = [limit.amount for limit in bucket.limits] if bucket is not None else []
            cost = min([cost, *amounts] if rule.cost_max is None else [cost, rule.cost_max, *amounts])
        checks = [] if bucket is None else [(bucket, key, cost)]
        return checks if bound.permits is None else [*checks, (bound.permits, key, 1)]

    async def tenant(
        self, bound: BoundRule, scope: Scope, limiter: Limiter, client_key: str, request: HTTPConnection | None = None
    ) -> str:
        """Return the tenant whose share of the permits a request uses; ``""`` if it is unknown or the rule not fair."""
        rule = bound.rule
        if rule.fair is None:
            return ""
        if isinstance(rule.fair, Key):
            found = rule.fair.find(bound.routed(scope), limiter, client_key)
            asks_address = any(isinstance(key, ClientAddress) for key in parts_of(rule.fair))
            return found if found != client_key or asks_address else ""
        shown = request_of(scope) if request is None else with_body(request, rule.max_body)
        return await self.ask(
            "fair", rule.label, rule.fair, (shown,), lambda found: limiter.key_for(found) if found else "", ""
        )

    async def holds(self, rule: Rule, request: HTTPConnection, client_key: str) -> bool | None:
        """Return whether the condition of a rule is true; True without a condition, None if the condition fails."""
        if isinstance(rule.when, KeyCondition):
            return rule.when.holds(request.scope, client_key)
        if rule.when is None:
            return True
        shown = with_body(request, rule.max_body)
        return await self.ask("when", rule.label, rule.when, (shown,), bool, None)

    async def evaluated(self, matched: Matched, scope: Scope, client_key: str) -> Matched:
        """Return the rules that match a request after evaluating their conditions, in order, each function once.

        Limits apply generously and exemptions strictly: if a condition fails, a limit or a block applies, but `exempt`
        and `final` do not.
        """
        request = request_of(scope)
        answers: dict[int, bool | None] = {}  # by identity, as not every callable is hashable; None for a failure
        met: list[tuple[BoundRule, bool]] = []
        for bound, ends in matched.conditions:
            rule = bound.rule
            if id(rule.when) not in answers:
                answers[id(rule.when)] = await self.holds(rule, request, client_key)
            holds = answers[id(rule.when)]
            if holds is None:
                ends = ends and rule.blocks
            if holds is False or (holds is None and rule.exempt):
                continue
            met.append((bound, ends))
            if ends:
                break
        return chosen(met)

    async def ask(
        self,
        what: str,
        label: str,
        function: Callable[..., object],
        given: tuple[object, ...],
        read: Callable[[Any], _T],
        default: _T,
    ) -> _T:
        """Return the result of a user's function, sync or async.

        Args:
            what: The name of the option, for the log.
            label: The label of the rule, for the log.
            function: The function.
            given: Its arguments.
            read: Converts its result, and raises if the result is invalid.
            default: The result if either of them fails.
        """
        try:
            answer = function(*given)
            return read(await answer if isawaitable(answer) else answer)
        except Exception as error:
            self.report(what, label, error, _CONSEQUENCES[what])
            return default

    async def counts(self, rule: Rule, status: int, fields: Fields, scope: Scope) -> bool:
        """Return whether the `count_if` of a rule counts a response; if it raises, the request is counted."""
        given: tuple[object, ...] = (status,)
        if rule.count_if_takes > 1:
            given = (status, Headers(raw=list(fields)), request_of(scope))[: rule.count_if_takes]
        return rule.count_if is None or await self.ask("count_if", rule.label, rule.count_if, given, bool, True)

    def report(self, what: str, where: str, error: Exception, consequence: str) -> None:
        """Log a failure of the user's function, at most once a minute for each function and rule."""
        suppressed = self._throttle.left_out((what, where), time.monotonic())
        if suppressed is None:
            return
        trace = None if isinstance(error, ConfigurationError) else error
        said = "%s function of rule %r failed, so %s (suppressed=%d): %r"
        logger.error(said, what, where, consequence, suppressed, error, exc_info=trace)


@dataclass
class ShadowRules:
    """Evaluates shadow rules, each on its own windows, and calls `on_exceeded` functions.

    Args:
        limiter: The limiter that counts.
        calls: Calls the user's functions.
        hit: Asks the limiter.
    """

    limiter: Limiter
    calls: UserCallbacks
    hit: Callable[[Sequence[Check]], Awaitable[Decision]]
    _exceeded: dict[tuple[str, str], int] = field(default_factory=dict)

    async def look(
        self, bound: BoundRule, scope: Scope, client_key: str, request: HTTPConnection | None = None
    ) -> None:
        """Count a request under a shadow rule, once, and report it if the rule would have refused it."""
        exchange: Exchange = scope[SCOPE_KEY]
        checks = await self.calls.checks(bound, scope, self.limiter, client_key, request)
        looked = [check for limiter, check in exchange.looked if limiter is self.limiter]
        checks = bound.uncharged(checks, looked)
        if not checks:
            return
        (check,) = checks
        exchange.looked = [*exchange.looked, (self.limiter, check)]
        seen = await self.hit((check,))
        if seen.allowed or seen.reason is Reason.BANNED:
            return
        await self.tell(bound, check[1], seen)
        exchange.shadow_rules = (*exchange.shadow_rules, bound.bucket.label)
        message = f"rule {bound.rule.label!r} would have refused {check[1]}"
        self.limiter.engine.emit(Event("shadow_refused", message, {"rule": bound.rule.label, "key": check[1]}))

    async def tell_all(self, rules: Iterable[BoundRule], decision: Decision) -> None:
        """Call the `on_exceeded` functions of the rules whose limits caused a refusal."""
        passed = {state.rule: state.key for state in decision.violated}
        for bound in rules:
            if bound.bucket.name in passed:
                await self.tell(bound, passed[bound.bucket.name], decision)

    async def tell(self, bound: BoundRule, key: str, decision: Decision) -> None:
        """Call `on_exceeded` for a key that has exceeded a limit, unless it already did so within the last window."""
        function = bound.rule.on_exceeded
        if function is None:
            return
        known = bound.bucket.name, key
        # Not the time of the decision: in an outage, another store decides, by another clock.
        last_us, now_us = self._exceeded.get(known), self.limiter.engine.now_us()
        remember(self._exceeded, known, now_us)
        # A refusal without a limit, because the store does not answer for example, has the windows of the rule.
        limits = [state.limit for state in decision.violated] or bound.bucket.limits
        span_us = max([limit.span_us for limit in limits], default=inf)
        if last_us is None or now_us - last_us > span_us:
            await self.calls.ask("on_exceeded", bound.rule.label, function, (key, decision), lambda _: None, None)


def _key_for(limiter: Limiter) -> Callable[[Any], str | None]:
    """Return the converter for results of a key function; it keeps None and an empty text unchanged."""
    return lambda found: found if found is None or found == "" else limiter.key_for(found)


def _whole(units: object) -> int:
    """Return a checked cost; other integral types, such as 7.0 or numpy's integers, are converted to `int`."""
    if isinstance(units, float) and units.is_integer():
        units = int(units)
    if isinstance(units, SupportsIndex) and not isinstance(units, bool):
        units = index(units)
    return check_cost(units)
