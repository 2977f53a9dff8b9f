"""Limits at endpoints: `RateLimit`, which is both a FastAPI dependency and a decorator, and its buckets.

`RateLimit` uses the limiter and the client address of the middleware around it, and refuses by raising; see
`endpoint_refusals`. The route of the request determines the bucket to charge.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterable
from copy import copy
from datetime import timedelta
from inspect import Parameter, Signature, isclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from starlette.requests import HTTPConnection
from starlette.types import Scope

from ..core.arguments import names_checked
from ..core.decision import Decision, Reason, unique_name
from ..core.errors import ConfigurationError, quoted
from ..core.store import EventListener
from ..limiter.failover import OnError
from ..limiter.named_limits import NamedLimit
from .buckets import buckets_of
from .callbacks import UserCallbacks
from .decorators import check_parentheses, decorate, exempt, unwrapped
from .endpoint_refusals import refuse
from .exchange import DISABLED_KEY, SCOPE_KEY, Exchange, hand_back_uncounted, no_middleware
from .keys import Key, KeyFunction, files_asked
from .routes import MountedRoute, RouteIndex
from .rule_set import BoundRule, limits_kind
from .rules import (
    DEFAULT_WAIT_MAX,
    Condition,
    CostFunction,
    CountIf,
    Exceeded,
    Limits,
    LimitsFunction,
    Rule,
    checked_function,
    identity_of,
    label_of,
)

if TYPE_CHECKING:
    from .decide import Decider

_T = TypeVar("_T", bound=Callable[..., Any])

_ALLOWLISTED: Final = Reason.ALLOWLISTED
_MEMO: Final = 4_096
_SIZE: Final = re.compile("([0-9]{1,12}) ?(B|KB|MB|GB|)", re.IGNORECASE)
_UNITS: Final = {"": 1, "B": 1, "KB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000}
_MOST_BODY: Final = 10**12
_METHODS: Final = frozenset({"get", "head", "post", "put", "patch", "delete", "options"})
"""The names of the methods that answer requests in a class such as `HTTPEndpoint`."""


class _EndpointRule(Rule):
    """A rule of an endpoint. It has no paths: the router provides the path parameters by which it counts."""

    def _checked_key(self, key: Key | KeyFunction | None, option: str = "key") -> Key | KeyFunction | None:
        return key if isinstance(key, Key) else checked_function(key, option)


class RateLimit:
    """Limits an endpoint: ``Depends(RateLimit("5/second"))``, or ``@RateLimit("5/second")`` above a function.

    As a dependency it applies to a FastAPI route, router or application, for HTTP and websockets. As a decorator it
    applies to a Starlette or FastAPI endpoint, a function or a class, which needs no `request` parameter. It requires a
    `RateLimitMiddleware` around the endpoint and uses its limiter, client address, answers and header fields.

    Each route has its own bucket, by template and methods; an object at a router or an application has one bucket for
    all its routes. Objects of one name share a bucket, also with a `Rule` of that name. They must have the same limits,
    and a request is charged once for each key.

    Args:
        limits: As for `Rule`: ``"5/minute; 50/hour"``, a `Limit`, a `Quota`, several, or a function of the request.
        fallback_limits: The limits that apply when the `limits` function fails.
        when: As for `Rule`: a sync or async function of the request (with its body); only requests for which it
            returns a true value are counted.
        methods: As for `Rule`: the HTTP methods of the requests that are counted, by default all.
        concurrency: As for `Rule`: the most simultaneous requests of a key, alone or in addition to limits.
        key: The key to count by, as for `Rule`; a function gets the request with its body.
        cost: Units per request, or a sync or async function of the request (with its body).
        cost_max: As for `Rule`: the most units that the cost function may return.
        unit: As for `Rule`: what the limits count, for example ``"tokens"``.
        count_if: As for `Rule`: count only requests with certain responses.
        count_denied: Count refused requests as well.
        shadow: As for `Rule`: report the requests that would have been refused, and refuse none.
        on_exceeded: As for `Rule`: called when a key exceeds the limit.
        wait: As for `Rule`: a request that would be admitted within this time waits at the endpoint.
        wait_max: The most requests of one key that wait at a time.
        fair: As for `Rule`: shares permits fairly among waiting tenants.
        on_error: As for `Rule`: how this limit decides when the store fails.
        name: The name of the limit in headers and logs. Objects of one name share their counts.
        max_body: How many bytes of the body its functions may read, at least 1: ``"1MB"``, ``"64KB"`` or a number. The
            endpoint reads the body again in any way. Reading more fails the function, and the endpoint gets all.

    Attributes:
        exempt: Exempts an endpoint from the middleware's `default_limits`: ``@RateLimit.exempt``.

    Raises:
        ConfigurationError: An option is invalid; or, on a request, there is no middleware around the endpoint.
    """

    exempt = staticmethod(exempt)

    @names_checked
    def __init__(
        self,
        limits: Limits | LimitsFunction | None = None,
        *,
        fallback_limits: Limits = "60/minute",
        when: Condition | None = None,
        methods: Iterable[str] | None = None,
        concurrency: int | str | None = None,
        key: Key | KeyFunction | None = None,
        cost: int | CostFunction = 1,
        cost_max: int | None = None,
        unit: str | None = None,
        count_if: CountIf | None = None,
        count_denied: bool = False,
        shadow: bool = False,
        on_exceeded: Exceeded | None = None,
        wait: str | float | timedelta | None = None,
        wait_max: int = DEFAULT_WAIT_MAX,
        fair: Key | KeyFunction | None = None,
        on_error: OnError | None = None,
        name: str | None = None,
        max_body: int | str = "1MB",
    ) -> None:
        check_parentheses(limits)
        self.rule = _EndpointRule(
            "*",
            limits,
            fallback_limits=fallback_limits,
            when=when,
            methods=methods,
            concurrency=concurrency,
            key=key,
            cost=cost,
            cost_max=cost_max,
            unit=unit,
            count_if=count_if,
            count_denied=count_denied,
            shadow=shadow,
            on_exceeded=on_exceeded,
            wait=wait,
            wait_max=wait_max,
            fair=fair,
            on_error=on_error,
            name=name,
        )
        self.rule.max_body = _bytes_of(max_body)
        # FastAPI inspects the instance's `__call__` and signature. If `__call__` were not a coroutine function there,
        # FastAPI would not await its result, and no request would ever be limited.
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
        """Check a request, as a FastAPI dependency, or decorate an endpoint."""
        if callable(connection) or not hasattr(connection, "scope"):  # faster than `isinstance` of `HTTPConnection`
            return decorate(self, connection)
        return self.check(connection)

    async def check(self, connection: HTTPConnection, endpoint: object = None) -> None:
        """Charge a request; an endpoint may call this before it sends anything.

        Args:
            connection: The request or websocket.
            endpoint: The limited function if it is not the route's own endpoint: it has a separate bucket at each
                route.

        Raises:
            RateLimitExceeded: The limit is exceeded.
            ConfigurationError: There is no middleware around the endpoint.
        """
        scope = connection.scope
        exchange: Exchange | None = scope.get(SCOPE_KEY)
        if exchange is None:
            if DISABLED_KEY in scope:
                return
            raise no_middleware("RateLimit")
        parts, rule = exchange.parts, self.rule
        if rule.methods is not None and not limits_kind(rule, scope["type"], scope.get("method", "GET")):
            return
        bound = parts.endpoints.find(self, scope, endpoint)
        if rule.name is None and (turn := exchange.turn(self, bound.bucket.name)):
            bound = parts.endpoints.find(self, scope, endpoint, turn)
        for _, before in exchange.entries:
            if before.reason is _ALLOWLISTED:
                return
        answer = parts.endpoints.decider.decide_at(bound, connection, exchange.entries)
        decision = answer if answer is None or isinstance(answer, Decision) else await answer
        if decision is None:
            return
        if not decision.allowed:
            raise await refuse(connection, decision)
        exchange.record(decision)
        exchange.holds |= rule.concurrency is not None
        if rule.count_if is not None:
            settle = hand_back_uncounted(parts.endpoints.calls, bound.rule, parts.limiter, decision)
            exchange.on_start = [*exchange.on_start, settle]


class EndpointBuckets:
    """The limits at the endpoints below one middleware, each with its buckets.

    Args:
        own_id: An identity that is unique among the middlewares of the limiter.
        routes: Determines the routes of requests.
        decider: Decides a limit for a request.
        calls: Calls the `count_if` functions.
        emit: Takes the events of files that limits ask.
        made: Takes the limits of each bucket that is made for an endpoint.

    Attributes:
        routes: Determines the routes of requests.
        decider: Decides a limit for a request.
        calls: Calls the `count_if` functions.
    """

    def __init__(
        self,
        own_id: str,
        routes: RouteIndex,
        decider: Decider,
        calls: UserCallbacks,
        emit: EventListener,
        made: Callable[[Iterable[NamedLimit]], object],
    ) -> None:
        self._made = made
        self._own_id = own_id
        self._emit = emit
        self.decider = decider
        self.calls = calls
        self.routes = routes
        self._bound: dict[tuple[RateLimit, MountedRoute | str, int, int], tuple[BoundRule, object]] = {}
        self._names: dict[MountedRoute | str, dict[str, str]] = {}

    def bound(self) -> list[BoundRule]:
        """Return the limits of requests so far, with their buckets; limits with shared windows are listed once."""
        return list({bound.bucket.name: bound for bound, _ in list(self._bound.values())}.values())

    def names(self) -> set[str]:
        """Return the names that users gave to the limits of requests so far."""
        return {limit.rule.name for limit, *_ in list(self._bound) if limit.rule.name is not None}

    def find(self, limit: RateLimit, scope: Scope, function: object = None, turn: int = 0) -> BoundRule:
        """Return a limit with its buckets at the route of a request.

        Args:
            limit: The limit.
            scope: The scope of the request.
            function: The limited function, if it is not the endpoint of a route.
            turn: How many equal limits have charged this request before.
        """
        route = self.routes.find(scope) or _name_of(function or scope.get("endpoint") or limit)
        entry = self._bound.get((limit, route, turn, id(function)))
        if entry is None:
            if len(self._bound) >= _MEMO:
                # Some limits are created during requests. Clearing loses no counts, which are in the store.
                self._bound.clear()
                self._names.clear()
            bound = self._bind(limit, route, scope, function, turn)
            entry = self._bound[limit, route, turn, id(function)] = bound, function
            self._made(bound.named)
        return entry[0]

    def _bind(
        self, limit: RateLimit, route: MountedRoute | str, scope: Scope, function: object, turn: int
    ) -> BoundRule:
        labels = self._labels(limit, route, scope, function)
        rule = copy(limit.rule)
        rule.paths = (labels[0].encode("ascii", "backslashreplace").decode(),)
        rule.label = rule.name or label_of(rule.paths)
        identity = rule.identity
        if rule.name is None:
            identity = identity_of(rule.label, self._own_id, limit.rule.identity, labels)
            identity += f"#{turn + 1}" if turn else ""
        # Names must be unique only within a response, whose limits are checked in the same order in every process.
        taken = self._names.setdefault(route, {})
        others = [name for name, owner in taken.items() if owner != identity]
        names = [unique_name(name, others) for name in rule.wire_names()]
        taken.update(dict.fromkeys(names, identity))
        bound = BoundRule(rule, *buckets_of(rule, identity, names))
        for file in files_asked(*rule.asked):
            file.observe(self._emit)
        return bound

    def _labels(self, limit: RateLimit, route: MountedRoute | str, scope: Scope, function: object) -> list[str]:
        """Return labels of what is limited, a readable one first: a router, a route, or a function that it calls."""
        below = self.routes.labels_below(scope, limit)
        if below is not None:
            return [f"{below[0]}/*", *below[1]]
        if isinstance(route, str):
            return [route]
        endpoint = route.endpoint
        if function is None or any(layer is function for layer in unwrapped(endpoint)):
            return [route.label]
        name = getattr(function, "__name__", type(function).__name__)
        if isclass(endpoint) and route.connection == "http" and name in _METHODS:
            return [f"{name.upper()} {route.template}", _name_of(function)]
        return [f"{route.label} {name}", _name_of(function)]


def _bytes_of(max_body: int | str) -> int:
    """Return a number of bytes given as a number or as a text with a unit."""
    found = _SIZE.fullmatch(max_body) if isinstance(max_body, str) else None
    size: object = max_body if found is None else int(found[1]) * _UNITS[found[2].upper()]
    if type(size) is not int or not 1 <= size <= _MOST_BODY:
        raise ConfigurationError(
            f'expected a size such as "1MB", "64KB" or 1000000, not {quoted(max_body)}', "max_body"
        )
    return size


def _name_of(function: Any) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"
