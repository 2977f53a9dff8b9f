"""Calls functions of the user's; one that fails neither opens the gate nor breaks the answer.

A key function that fails counts the request under the client's address, a limits function that fails leaves the default
limits, a cost function that fails costs 1, and a `count_if` that fails counts. A `when` that fails applies limits and
blocks, and no exemption. An `on_refused` that fails leaves the default answer. Each failure is logged with the rule's
name, once a minute.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from inspect import isawaitable
from operator import index
from typing import Final, NoReturn, SupportsIndex, TypeAlias

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request
from starlette.types import Scope

from ...core.decision import Bucket, Check, Decision
from ...core.errors import ConfigurationError
from ...core.logs import logger
from ...limiter import Limiter, check_cost
from .rule import Rule
from .rule_set import BoundRule

Fields: TypeAlias = Iterable[tuple[bytes, bytes]]

LOG_PAUSE_S: Final = 60.0


async def _no_body() -> NoReturn:
    raise RuntimeError(
        "the request has no body here: it is judged before it is read; decide on headers, path or query, "
        "or limit at the endpoint with RateLimit(key=...)"
    )


def request_of(scope: Scope) -> HTTPConnection:
    """Return the request that functions of the user's get; its body cannot be read."""
    return Request(scope, _no_body) if scope["type"] == "http" else HTTPConnection(scope)


def _whole(units: object) -> object:
    """Return a whole number of another type as an `int`: 7.0, or an integer of numpy's."""
    if isinstance(units, float) and units.is_integer():
        return int(units)
    return index(units) if isinstance(units, SupportsIndex) and not isinstance(units, bool) else units


class Calls:
    """Calls functions of the user's, and remembers when each failure was logged."""

    def __init__(self) -> None:
        self._quiet: dict[tuple[str, str], tuple[float, int]] = {}

    async def checks(
        self, bound: BoundRule, scope: Scope, limiter: Limiter, client_key: str, request: HTTPConnection | None = None
    ) -> Sequence[Check]:
        """Return the checks of a request, asking the rule's functions; none if the rule does not count the request."""
        request = request_of(scope) if request is None else request
        bucket: Bucket | None
        bucket, key, cost = bound.check(scope, limiter, client_key)
        if bound.rule.limits_function is not None:
            try:
                limits = bound.rule.limits_function(request)
                bucket = bound.plan(await limits if isawaitable(limits) else limits)
                if bucket is None and bound.places is None:
                    return ()
            except Exception as error:
                self.report("limits", bound.rule.label, error, "its default limits apply")
        if bound.key_function is not None:
            try:
                answer = bound.key_function(request)
                found = await answer if isawaitable(answer) else answer
                if found is None:
                    return ()
                if found != "":
                    key = limiter.key_for(found)
            except Exception as error:
                self.report("key", bound.rule.label, error, "the request is counted under the client's address")
        if bound.cost_function is not None:
            try:
                units = bound.cost_function(request)
                cost = check_cost(_whole(await units if isawaitable(units) else units))
            except Exception as error:
                self.report("cost", bound.rule.label, error, "the request costs 1")
        counted = () if bucket is None else ((bucket, key, cost),)
        return counted if bound.places is None else (*counted, (bound.places, key, 1))

    async def holds(self, rule: Rule, request: HTTPConnection) -> bool | None:
        """Return whether the condition of a rule holds; None if it fails."""
        if rule.when is None:
            return True
        try:
            answer = rule.when(request)
            return bool(await answer if isawaitable(answer) else answer)
        except Exception as error:
            self.report("when", rule.label, error, "the rule limits or blocks all the same, and exempts nobody")
            return None

    async def exceeded(self, bound: BoundRule, key: str, decision: Decision) -> None:
        """Call `on_exceeded` for a key that has passed the limit of a tracking rule."""
        if bound.rule.on_exceeded is None:
            return
        try:
            waiting = bound.rule.on_exceeded(key, decision)
            if isawaitable(waiting):
                await waiting
        except Exception as error:
            self.report("on_exceeded", bound.rule.label, error, "nobody was told of this key")

    def counts(self, rule: Rule, status: int, fields: Fields, scope: Scope) -> bool:
        """Return whether the `count_if` of a rule counts an answer; if it raises, the request is counted."""
        if rule.count_if is None:
            return True
        try:
            if rule.count_if_takes == 1:
                return bool(rule.count_if(status))
            given = (status, Headers(raw=list(fields)), request_of(scope))
            return bool(rule.count_if(*given[: rule.count_if_takes]))
        except Exception as error:
            self.report("count_if", rule.label, error, "the request is counted")
            return True

    def report(self, what: str, where: str, error: Exception, consequence: str) -> None:
        """Log a failure of the user's function, at most once a minute for each function and rule."""
        now_s = time.monotonic()
        next_s, suppressed = self._quiet.get((what, where), (0.0, 0))
        if now_s < next_s:
            self._quiet[what, where] = next_s, suppressed + 1
            return
        self._quiet[what, where] = now_s + LOG_PAUSE_S, 0
        logger.error(
            "%s function of rule %r failed, so %s (suppressed=%d): %r",
            what, where, consequence, suppressed, error,
            exc_info=None if isinstance(error, ConfigurationError) else error,
        )  # fmt: skip
