"""Limits at endpoints: `RateLimit`, which is both a FastAPI dependency and a decorator, its buckets, and later charges.

`RateLimit` uses the limiter and the client address of the middleware around it, and refuses by raising; see
`endpoint_refusals`. The route of the request determines the bucket to charge.

A decorated function keeps its parameters; its signature for FastAPI has an additional one for the request. A decorated
class becomes a subclass that checks the limit before it dispatches. A limit above the route decorator would never run,
so start-up checks for that.
"""

from __future__ import annotations

import inspect
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from copy import copy
from datetime import timedelta
from functools import wraps
from inspect import Parameter, Signature
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload
from weakref import WeakKeyDictionary, WeakSet

from starlette._utils import is_async_callable
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.types import Message, Receive, Scope

from ..core.arguments import names_checked
from ..core.decision import Decision, Reason, unique_name
from ..core.errors import ConfigurationError, closest, quoted
from ..core.store import EventListener
from ..limiter import Limiter, check_cost
from ..limiter.aio import to_the_end
from ..limiter.failover import OnError
from ..limiter.overrides import Override
from .callbacks import UserCallbacks
from .default_limits import LIMIT, exempt, limits_at, unwrapped
from .endpoint_refusals import refuse
from .exchange import DISABLED_KEY, SCOPE_KEY, Exchange, decided_about, hand_back_uncounted, no_middleware
from .keys import Key, KeyFunction, everyone, files_asked
from .routes import MountedRoute, RouteIndex, layers, look, walk
from .rule_set import BoundRule, buckets_of, limits_kind, name_of
from .rules import (
    DEFAULT_WAIT_MAX,
    Condition,
    CostFunction,
    CountIf,
    Exceeded,
    Limits,
    LimitsFunction,
    Rule,
    identity_of,
    label_of,
)

if TYPE_CHECKING:
    from .decide import Decider

_T = TypeVar("_T", bound=Callable[..., Any])

_ALLOWLISTED: Final = Reason.ALLOWLISTED
_UNCOUNTED: Final = Decision(True, Reason.EXEMPT)
_MEMO: Final = 4_096
_METHODS: Final = frozenset({"get", "head", "post", "put", "patch", "delete", "options"})
"""The names of the methods that answer requests in a class such as `HTTPEndpoint`."""
_CONNECTION: Final = "slidegate_connection"
_LIMITED: Final[WeakKeyDictionary[Any, WeakSet[Any]]] = WeakKeyDictionary()
"""Maps every limited function and class to its decorated versions."""


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
    ) -> None:
        if inspect.isclass(limits) or (callable(limits) and _is_being_defined(limits)):
            raise ConfigurationError(
                f'RateLimit: write @RateLimit("5/minute") above {_last(limits).__name__!r}: without parentheses the '
                "endpoint is taken for a function that returns limits, and never answers a request"
            )
        self.rule = Rule(
            "*",
            limits,
            fallback_limits=fallback_limits,
            when=when,
            methods=methods,
            concurrency=concurrency,
            key=None if isinstance(key, Key) else key,
            cost=cost,
            cost_max=cost_max,
            unit=unit,
            count_if=count_if,
            count_denied=count_denied,
            shadow=shadow,
            on_exceeded=on_exceeded,
            wait=wait,
            wait_max=wait_max,
            fair=everyone if isinstance(fair, Key) else fair,
            on_error=on_error,
            name=name,
        )
        # `Rule` validates path parameters of keys against its own path, but here the router provides them.
        self.rule.key, self.rule.fair = key, fair
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
        if rule.name is None and (turn := exchange.turn(self, bound.bucket.rule)):
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

    Attributes:
        routes: Determines the routes of requests.
        decider: Decides a limit for a request.
        calls: Calls the `count_if` functions.
    """

    def __init__(
        self, own_id: str, routes: RouteIndex, decider: Decider, calls: UserCallbacks, emit: EventListener
    ) -> None:
        self._own_id = own_id
        self._emit = emit
        self.decider = decider
        self.calls = calls
        self.routes = routes
        self._bound: dict[tuple[RateLimit, MountedRoute | str, int, int], tuple[BoundRule, object]] = {}
        self._names: dict[MountedRoute | str, dict[str, str]] = {}
        self._overrides: Mapping[str, Override] = {}

    def met(self) -> list[BoundRule]:
        """Return the limits of requests so far, with their buckets; limits with shared windows are listed once."""
        return list({bound.bucket.rule: bound for bound, _ in list(self._bound.values())}.values())

    def names(self) -> set[str]:
        """Return the names that users gave to the limits of requests so far."""
        return {limit.rule.name for limit, *_ in list(self._bound) if limit.rule.name is not None}

    def override(self, overrides: Mapping[str, Override]) -> None:
        """Apply other amounts from now on, see `BoundRule.override`."""
        self._overrides = overrides
        for bound, _ in list(self._bound.values()):
            bound.override(overrides)

    def find(self, limit: RateLimit, scope: Scope, function: object = None, turn: int = 0) -> BoundRule:
        """Return a limit with its buckets at the route of a request.

        Args:
            limit: The limit.
            scope: The scope of the request.
            function: The limited function, if it is not the endpoint of a route.
            turn: How many equal limits have charged this request before.
        """
        place = self.routes.find(scope) or _name_of(function or scope.get("endpoint") or limit)
        entry = self._bound.get((limit, place, turn, id(function)))
        if entry is None:
            if len(self._bound) >= _MEMO:
                # Some limits are created during requests. Clearing loses no counts, which are in the store.
                self._bound.clear()
                self._names.clear()
            bound = self._bind(limit, place, scope, function, turn)
            entry = self._bound[limit, place, turn, id(function)] = bound, function
            bound.catch_up(lambda: self._overrides)
        return entry[0]

    def _bind(
        self, limit: RateLimit, place: MountedRoute | str, scope: Scope, function: object, turn: int
    ) -> BoundRule:
        labels = self._labels(limit, place, scope, function)
        rule = copy(limit.rule)
        rule.paths = (labels[0].encode("ascii", "backslashreplace").decode(),)
        rule.label = rule.name or label_of(rule.paths)
        identity = rule.identity
        if rule.name is None:
            identity = identity_of(rule.label, self._own_id, limit.rule.identity, labels)
            identity += f"#{turn + 1}" if turn else ""
        # Names must be unique only within a response, whose limits are checked in the same order in every process.
        taken = self._names.setdefault(place, {})
        others = [name for name, owner in taken.items() if owner != identity]
        names = [unique_name(name, others) for name in rule.wire_names()]
        taken.update(dict.fromkeys(names, identity))
        bound = BoundRule(rule, *buckets_of(rule, identity, names))
        bound.override(self._overrides)
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
        if inspect.isclass(endpoint) and route.connection == "http" and name in _METHODS:
            return [f"{name.upper()} {route.template}", _name_of(function)]
        return [f"{route.label} {name}", _name_of(function)]


def _name_of(function: Any) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def decorate(limit: RateLimit, endpoint: Any) -> Any:
    """Return an endpoint that checks `limit` and then calls `endpoint`.

    Args:
        limit: The limit.
        endpoint: A function, or a class with `dispatch`.

    Raises:
        ConfigurationError: `endpoint` cannot be decorated.
    """
    if not callable(endpoint):
        raise ConfigurationError(
            'RateLimit: expected a function or class to limit, for example @RateLimit("5/second") above '
            f"async def page(request), not {quoted(endpoint)}"
        )
    limited = (_limited_class if inspect.isclass(endpoint) else _limited_function)(limit, endpoint)
    setattr(limited, LIMIT, limit)
    for layer in unwrapped(endpoint):
        # An inner decorator may have registered any of them as a route.
        if _is_function_or_class(layer):
            _LIMITED.setdefault(layer, WeakSet()).add(limited)
    return limited


def _last(function: Any) -> Any:
    *_, core = unwrapped(function)
    return core


def _is_being_defined(function: object) -> bool:
    """Return whether a function is being decorated: the caller currently executes the lines of its definition.

    A function that is already defined is passed in later lines, or by other code.
    """
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("slidegate."):
        frame = frame.f_back
    for layer in unwrapped(function):
        code = getattr(layer, "__code__", None)
        if isinstance(code, CodeType) and code in frame.f_code.co_consts and code.co_name != "<lambda>":
            lines = [line for _, _, line in code.co_lines() if line is not None]
            return code.co_firstlineno <= frame.f_lineno <= max(lines)
    return False


def _is_function_or_class(endpoint: object) -> bool:
    return inspect.isfunction(endpoint) or inspect.isclass(endpoint)


def _limited_function(limit: RateLimit, endpoint: Callable[..., Any]) -> Callable[..., Any]:
    core = _last(endpoint)
    if inspect.isgeneratorfunction(core) or inspect.isasyncgenfunction(core):
        raise ConfigurationError(
            f"RateLimit: {core.__name__!r} is a generator, whose response starts before it runs; "
            "write dependencies=[Depends(RateLimit(...))] at its route"
        )
    signature, own = _signature(endpoint)
    is_async = is_async_callable(endpoint)

    @wraps(endpoint)
    async def limited(*args: Any, **options: Any) -> Any:
        connection = options.pop(_CONNECTION, None) if own is None else options.get(own)
        if connection is None:
            for connection in (*args, *options.values()):
                if isinstance(connection, HTTPConnection):
                    break
            else:
                raise ConfigurationError(f"RateLimit: {core.__name__!r} was called without a request")
        await limit.check(connection, endpoint)
        if is_async:
            return await endpoint(*args, **options)
        answer = await run_in_threadpool(endpoint, *args, **options)
        return await answer if inspect.isawaitable(answer) else answer

    vars(limited)["__signature__"] = signature
    return limited


def _signature(endpoint: Callable[..., Any]) -> tuple[Signature, str | None]:
    """Return the signature for FastAPI, and the endpoint's own `HTTPConnection` parameter, if it has one."""
    try:
        signature = inspect.signature(endpoint, eval_str=True)
    except NameError:
        # An annotation that exists only for type checkers. FastAPI handles it, too.
        signature = inspect.signature(endpoint)
    parameters = list(signature.parameters.values())
    own = next((parameter.name for parameter in parameters if parameter.annotation is HTTPConnection), None)
    if own is None:
        place = sum(parameter.kind is not Parameter.VAR_KEYWORD for parameter in parameters)
        parameters.insert(place, Parameter(_CONNECTION, Parameter.KEYWORD_ONLY, annotation=HTTPConnection))
    return signature.replace(parameters=parameters), own


def _limited_class(limit: RateLimit, endpoint: type[Any]) -> type[Any]:
    if not inspect.iscoroutinefunction(getattr(endpoint, "dispatch", None)):
        raise ConfigurationError(
            f"RateLimit: expected an endpoint function or a class such as HTTPEndpoint, not {quoted(endpoint)}; "
            "for an ASGI application write middleware=[Middleware(RateLimitMiddleware, ...)] at its route"
        )

    async def dispatch(self: Any) -> None:
        if self.scope["type"] == "http":
            read, self.receive = _read_twice(self.receive)
            await limit.check(Request(self.scope, read), endpoint)
        else:
            await limit.check(HTTPConnection(self.scope), endpoint)
        await endpoint.dispatch(self)

    names = {name: getattr(endpoint, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(endpoint.__name__, (endpoint,), {**names, "__wrapped__": endpoint, "dispatch": dispatch})


def _read_twice(receive: Receive) -> tuple[Receive, Receive]:
    """Return two channels for the messages of one: the second repeats what was read from the first."""
    known: deque[Message] = deque()

    async def read() -> Message:
        known.append(await receive())
        return known[-1]

    async def read_again() -> Message:
        return known.popleft() if known else await receive()

    return read, read_again


def check_decorator_order(app: object) -> None:
    """Check that no limit is above a route decorator, which would have registered the function without the limit.

    Also check that no limit is itself the endpoint of a route.

    Raises:
        ConfigurationError: A limit is misplaced.
    """
    routes = walk(app)
    used = {id(function) for resolved in routes for function in unwrapped(resolved.endpoint)}
    for resolved in routes:
        endpoint = resolved.endpoint
        if isinstance(endpoint, RateLimit):
            raise ConfigurationError(
                f"RateLimit: the endpoint of {resolved.label!r} is a limit, which sends no response; "
                'write @RateLimit("5/minute") above a function, and use that function as the endpoint'
            )
        limited = _LIMITED.get(endpoint) if _is_function_or_class(endpoint) else None
        if limited is not None and not any(id(one) in used for one in limited) and not _is_named(endpoint):
            raise ConfigurationError(
                f"RateLimit: it is above the decorator that adds the route {resolved.label!r}, so it would never run; "
                f"put @RateLimit(...) below it, next to {endpoint.__name__!r}"
            )


def limits_below(app: object, limiter: Limiter) -> Iterator[tuple[Rule, str]]:
    """Yield the limits at endpoints of an application that use a limiter, each with a phrase for its location."""
    if _asks_another(app, limiter):
        return
    for place in walk(app):
        if not any(_asks_another(app, limiter) for app in (*place.inside, getattr(place.route, "app", None))):
            yield from ((limit.rule, f"at {place.label!r}") for limit in limits_at(place))


def _asks_another(app: object, limiter: Limiter) -> bool:
    """Return whether a middleware around an application may use another limiter."""
    for layer in layers(app):
        asked = look(layer, "limiter")
        if isinstance(asked, Limiter) and asked is not limiter:
            return True
        added = look(layer, "user_middleware")  # of an application that has not built its stack yet
        for made in added if isinstance(added, list) else ():
            ours = str(look(look(made, "cls"), "__module__", "")).startswith("slidegate.")
            if ours and made.kwargs.get("limiter") is not limiter:
                return True
    return False


def _is_named(endpoint: Any) -> bool:
    """Return whether the name of an endpoint in its module still refers to itself, not to a decorated version."""
    named: Any = sys.modules.get(endpoint.__module__)
    for part in endpoint.__qualname__.split("."):
        named = getattr(named, part, None)
    return named is endpoint


async def charge(request: HTTPConnection, units: int, *, rule: str | None = None) -> Decision:
    """Charge more units for an admitted request, during or after its response.

    The units are recorded even if they exceed the limit. Later requests are then refused until enough units have left
    the window; a debt lasts at most one window.

    Args:
        request: The request, or the websocket.
        units: How many, 0 or more.
        rule: The name of the rule to charge; required if several apply.

    Returns:
        The decision for the key after the charge. If the rule does not count this request (its client is on the
        allowlist, its plan is unlimited, the middleware is switched off), nothing is charged and the reason is EXEMPT.

    Raises:
        ConfigurationError: There is no rule of that name, several were counted and none is named, or `units` is not a
            whole number.
    """
    check_cost(units, "units")
    counted = _find(request, rule, "charge")
    if counted is None:
        return _UNCOUNTED
    limiter, decision, index = counted
    bucket, key, _ = decision.checks[index]
    return await limiter.charge_all(((bucket, key, units),))


async def settle(request: HTTPConnection, used: int, *, rule: str | None = None) -> bool:
    """Replace the units that a request was charged on admission by the units it used, once.

    The rule charges an estimate first, so that concurrent requests cannot exceed the limit together. The difference is
    charged, even if that exceeds the limit, or handed back. Cancelling the call does not interrupt it.

    Args:
        request: The request, or the websocket.
        used: The units that it used, 0 or more.
        rule: The name of the rule; required if several apply.

    Returns:
        Whether this call has settled the request: False for a second call, and if the rule does not count this request.
        An estimate that has left its window meanwhile cannot be handed back and need not be.
        True if the store did not answer in time: it may have processed the call, and a second one could count twice.

    Raises:
        ConfigurationError: There is no rule of that name, several were counted and none is named, or `used` is not a
            whole number.
    """
    check_cost(used, "used")
    counted = _find(request, rule, "settle")
    if counted is None:
        return False
    limiter, decision, index = counted
    bucket, key, estimate = decision.checks[index]
    own = [reservation for reservation in decision.reservations if reservation.index == index]
    if not own or own[0].ended:
        return False
    unused = decision.take_back(index, max(estimate - used, 0))
    for reservation in own:
        reservation.ended = True
    if used > estimate:
        await to_the_end(limiter.charge_all(((bucket, key, used - estimate),)))
    elif unused:
        await to_the_end(limiter.engine.refund(unused))
    return True


def _find(request: HTTPConnection, rule: str | None, what: str) -> tuple[Limiter, Decision, int] | None:
    """Return the limiter, the decision and the index of the check that counted a request for a rule; None if none did.

    Raises:
        ConfigurationError: There is no middleware around the endpoint, no such rule, or several that must be named.
    """
    decided = decided_about(request.scope, what)
    if decided is None:
        return None
    counted = {
        name_of(bucket.rule): (parts.limiter, decision, index)
        for parts, decision in decided.entries
        for index, (bucket, _, _) in enumerate(decision.checks)
        if not bucket.held
    }
    if rule is None and len(counted) == 1:
        (rule,) = counted
    if rule in counted:
        return counted[rule]
    # Exempt, allowlisted or on an unlimited plan: an uncounted request is not charged later either.
    names_above = decided.names()
    if rule in names_above or (rule is None and not counted):
        return None
    names = ", ".join(map(repr, counted)) or "none"
    problem = "name one of them" if rule is None else f"{rule!r} is no rule here{closest(rule, names_above)}"
    raise ConfigurationError(f"{what}: the rules counted on this request are: {names}; {problem}")
