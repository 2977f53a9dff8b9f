"""Limits at the endpoint: a FastAPI dependency and a decorator in one object.

`RateLimit` decides with the limiter and the client address of the middleware above it, and refuses by raising; see
`refusal`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import timedelta
from inspect import Parameter, Signature
from typing import Any, ClassVar, TypeVar, overload

from starlette.requests import HTTPConnection

from ...core.arguments import names_checked
from ...core.decision import Decision, Reason
from ...core.errors import ConfigurationError
from ..keys.key import Key, KeyFunction
from ..options import check_flag
from ..request import RequestLimits, Reservation, allowlisted, charged
from ..rule_set import BoundRule
from ..rules import (
    DEFAULT_WAIT_MAX,
    CostFunction,
    CountIf,
    Exceeded,
    Limits,
    LimitsFunction,
    Rule,
)
from ..scope_keys import OFF, RECORD
from .decorator import decorate
from .exemption import IN_PLACE, Exemption
from .refusal import refuse

_T = TypeVar("_T", bound=Callable[..., Any])


class RateLimit:
    """Holds an endpoint to limits: ``Depends(RateLimit("5/second"))``, or ``@RateLimit("5/second")`` at a function.

    As a dependency it goes on a FastAPI route, router or application, for HTTP and websockets; as a decorator on a
    Starlette or FastAPI endpoint, a function or a class, which needs no `request` parameter. `RateLimitMiddleware` must
    stand above: its limiter, client address, answers and header fields are used.

    Each route has a bucket of its own, by its template and methods; an object on a router or an application has one for
    all routes below. Objects of one name share a bucket, also with a `Rule` of that name; a request is charged once.

    Args:
        limits: As for `Rule`: ``"5/minute; 50/hour"``, a `Limit`, a `Quota`, several, or a function of the request.
        fallback_limits: The limits that apply when the `limits` function fails.
        concurrency: As for `Rule`: at most so many requests of a key at a time; alone or beside limits.
        key: By which key to count, as for `Rule`; a function gets the request with its body.
        cost: Units for one request, or a function of the request (with its body), sync or async.
        count_if: As for `Rule`: count only requests with such an answer.
        count_denied: Count refused requests as well.
        shadow: As for `Rule`: report the requests that would have been refused, and refuse none.
        on_exceeded: As for `Rule`: only track, and call this function when a key passes the limit.
        wait: As for `Rule`: a request that would be admitted within this time waits at the endpoint.
        wait_max: The largest number of requests of one key that wait at a time.
        override: Take the place of defaults at this route, or at all routes below: of the middleware's
            `default_limits`, and of limits that FastAPI routers and applications further out require.
        name: What the limit is called in headers and logs, and what keeps its counts together.

    Attributes:
        exempt: Exempts a route from defaults: ``@RateLimit.exempt``, or ``Depends(RateLimit.exempt)``.

    Raises:
        ConfigurationError: A value cannot work; or, on a request, no middleware stands above.
    """

    exempt: ClassVar[Exemption] = Exemption()

    @names_checked
    def __init__(
        self,
        limits: Limits | LimitsFunction | None = None,
        *,
        fallback_limits: Limits = "60/minute",
        concurrency: int | str | None = None,
        key: Key | KeyFunction | None = None,
        cost: int | CostFunction = 1,
        count_if: CountIf | None = None,
        count_denied: bool = False,
        shadow: bool = False,
        on_exceeded: Exceeded | None = None,
        wait: str | float | timedelta | None = None,
        wait_max: int = DEFAULT_WAIT_MAX,
        override: bool = False,
        name: str | None = None,
    ) -> None:
        self.rule = Rule(
            "*",
            limits,
            fallback_limits=fallback_limits,
            concurrency=concurrency,
            key=None if isinstance(key, Key) else key,
            cost=cost,
            count_if=count_if,
            count_denied=count_denied,
            shadow=shadow,
            on_exceeded=on_exceeded,
            wait=wait,
            wait_max=wait_max,
            name=name,
        )
        # A rule looks for path parameters in its own path; here the router has found them.
        self.rule.key = key
        self.override = check_flag("override", override)
        vars(self)[IN_PLACE] = self.override
        # FastAPI asks the instance whether calling it is a coroutine and what it wants to be called with. If `__call__`
        # looked like the plain function that it is, FastAPI would drop the coroutine and let everything pass.
        vars(self)["__call__"] = self.check
        vars(self)["__signature__"] = Signature(
            [Parameter("connection", Parameter.POSITIONAL_OR_KEYWORD, annotation=HTTPConnection)]
        )

    def __repr__(self) -> str:
        return f"<RateLimit {'; '.join(map(str, self.rule.all_limits))}>"

    @overload
    def __call__(self, connection: HTTPConnection) -> Coroutine[Any, Any, None]: ...

    @overload
    def __call__(self, connection: _T) -> _T: ...

    def __call__(self, connection: Any) -> Any:
        """Check a request, as FastAPI's dependencies do, or decorate an endpoint."""
        if isinstance(connection, HTTPConnection):
            return self.check(connection)
        return decorate(self, connection)

    async def check(self, connection: HTTPConnection, endpoint: object = None) -> None:
        """Charge a request, once; for use inside an endpoint, before anything is sent.

        Args:
            connection: The request or websocket.
            endpoint: The function that is limited, where that is not the route's own endpoint: it has a bucket of its
                own at each route.

        Raises:
            RateLimitExceeded: There is no room.
            ConfigurationError: No middleware stands above.
        """
        scope = connection.scope
        record: RequestLimits | None = scope.get(RECORD)
        if record is None:
            if OFF in scope:
                return
            raise ConfigurationError(
                "RateLimit: no RateLimitMiddleware stands above this endpoint; write "
                "app.add_middleware(RateLimitMiddleware), with rules or without"
            )
        if allowlisted(record.steps):
            return
        side = record.side
        endpoints = side.endpoints
        bound = endpoints.bound(self, scope, endpoint)
        if bound is not None and self.rule.name is None and (turn := record.turn(self, bound.bucket.rule)):
            bound = endpoints.bound(self, scope, endpoint, turn)
        if bound is None or charged(record.steps, bound.bucket, side.limiter) or self._has_looked(record, bound):
            return
        decision = await endpoints.decide(bound, connection)
        if decision is None:
            return
        if decision.allowed:
            self._note(record, bound, decision)
            return
        raise await refuse(connection, decision)

    def _has_looked(self, record: RequestLimits, bound: BoundRule) -> bool:
        """Tell whether this limit only looks on, and has seen the request before."""
        return self.rule.action != "limit" and record.has_looked(bound.bucket.rule)

    def _note(self, record: RequestLimits, bound: BoundRule, decision: Decision) -> None:
        """Note a decision that lets the request through, and what is left to do when it is answered."""
        record.add(decision)
        record.waited |= decision.reason is Reason.WAITED
        record.unfinished |= self.rule.concurrency is not None
        if self.rule.count_if is not None:
            record.reserve(Reservation(bound.rule, record.side.limiter, decision, record.side.endpoints.calls))
