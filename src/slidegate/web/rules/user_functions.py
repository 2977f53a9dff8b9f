"""Calls functions of the user's; one that fails neither opens the gate nor breaks the answer.

A key function that fails counts the request under the client's address, a limits function that fails leaves the default
limits, a cost function that fails costs 1, a `count_if` that fails counts, and an `on_refused` that fails leaves the
default answer. Each failure is logged with the rule's name, once a minute.
"""

from __future__ import annotations

import time
from inspect import isawaitable
from operator import index
from typing import Final, NoReturn, SupportsIndex

from starlette.requests import HTTPConnection, Request
from starlette.types import Scope

from ...core.decision import Check, Decision
from ...core.errors import ConfigurationError
from ...core.logs import logger
from ...limiter import Limiter, check_cost
from .rule import StatusFunction
from .rule_set import BoundRule

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

    async def check(
        self, bound: BoundRule, scope: Scope, limiter: Limiter, client_key: str, request: HTTPConnection | None = None
    ) -> Check | None:
        """Return the check of a request, asking the rule's functions; None if the rule does not count the request."""
        request = request_of(scope) if request is None else request
        bucket, key, cost = bound.check(scope, limiter, client_key)
        if bound.rule.limits_function is not None:
            try:
                limits = bound.rule.limits_function(request)
                plan = bound.plan(await limits if isawaitable(limits) else limits)
                if plan is None:
                    return None
                bucket = plan
            except Exception as error:
                self.report("limits", bound.rule.label, error, "its default limits apply")
        if bound.key_function is not None:
            try:
                answer = bound.key_function(request)
                found = await answer if isawaitable(answer) else answer
                if found is None:
                    return None
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
        return bucket, key, cost

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

    def counts(self, count_if: StatusFunction, where: str, status: int) -> bool:
        """Return whether `count_if` counts this status; if it raises, the request is counted."""
        try:
            return bool(count_if(status))
        except Exception as error:
            self.report("count_if", where, error, "the request is counted")
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
