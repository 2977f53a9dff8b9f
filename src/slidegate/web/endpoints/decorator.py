"""Endpoints with a limit around them, and those whose limit would never run.

A decorated function takes the parameters that it took before, and FastAPI is told of one more, in which it passes the
request. A decorated class is a subclass that checks before it dispatches.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial, wraps
from inspect import Parameter, Signature
from types import CodeType, FrameType
from typing import Any, Final, Protocol
from weakref import WeakSet

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.types import Message, Receive, Scope

from ...core.errors import ConfigurationError
from ..routes import walk
from ..rules import Rule

LIMIT: Final = "__slidegate_limit__"
"""The attribute of a decorated endpoint that holds its `RateLimit`."""
_REPLACED_BY: Final = "__slidegate_replaced_by__"
_CONNECTION: Final = "slidegate_connection"
_PLAIN: Final[WeakSet[Any]] = WeakSet()
"""Every decorated function that was not async before."""
MARKS: Final[list[bool]] = []
"""Holds something as soon as a limit stands on an endpoint, which then may be on the wrong side."""


class EndpointLimit(Protocol):
    """A limit at an endpoint: a `RateLimit`."""

    rule: Rule

    async def check(self, connection: HTTPConnection, endpoint: object = None) -> None:
        """Charge a request, once."""


def decorate(limit: EndpointLimit, endpoint: Any, caller: FrameType) -> Any:
    """Return an endpoint that checks `limit` and then calls `endpoint`.

    Args:
        limit: The limit.
        endpoint: A function, or a class with `dispatch`.
        caller: Where the limit was put on the endpoint.

    Raises:
        ConfigurationError: `endpoint` is nothing that can be limited this way.
    """
    limited: Any
    if inspect.isclass(endpoint):
        limited = _limited_class(limit, endpoint)
    elif callable(endpoint):
        limited = _limited_function(limit, endpoint)
    else:
        raise ConfigurationError(f'RateLimit: expected limits such as RateLimit("5/second"), not on {endpoint!r}')
    setattr(limited, LIMIT, limit)
    if _with_at_sign(endpoint, caller):
        for layer in layers(endpoint):
            # A decorator further in may have made a route of any of them.
            if inspect.isfunction(layer) or inspect.isclass(layer):
                setattr(layer, _REPLACED_BY, (layer, limited))
                MARKS[:] = [True]
    return limited


def _with_at_sign(endpoint: Any, caller: FrameType) -> bool:
    """Tell whether a function is being decorated where it is defined, so that only decorators below can have seen it.

    ``RateLimit(...)(page)`` elsewhere leaves `page` a function that may well be a route of its own.
    """
    core = list(layers(endpoint))[-1]
    code = getattr(core, "__code__", None)
    if inspect.isclass(core):
        bodies = (const for const in caller.f_code.co_consts if isinstance(const, CodeType))
        code = next((body for body in bodies if body.co_qualname == core.__qualname__), None)
    if code is None or code.co_filename != caller.f_code.co_filename:
        return False
    last = max(line for _, _, line in code.co_lines() if line is not None)
    return bool(code.co_firstlineno <= caller.f_lineno <= last)


def limits_of(endpoint: Any) -> Iterator[EndpointLimit]:
    """Yield the limits that decorate an endpoint, the outermost first."""
    for function in layers(endpoint):
        limit = vars(function).get(LIMIT) if hasattr(function, "__dict__") else None
        if limit is not None:
            yield limit


def check_places(app: object) -> None:
    """Check that no limit stands above a route decorator, which has then registered the function without it.

    Raises:
        ConfigurationError: One does.
    """
    places = list(walk(app))
    used = {id(function) for place in places for function in layers(place.route.endpoint)}
    for place in places:
        endpoint = place.route.endpoint
        limited = _replaced_by(endpoint)
        if limited is not None and id(limited) not in used:
            raise ConfigurationError(
                f"RateLimit: it stands above the decorator that makes the route {place.label!r}, so it would never "
                f"run; put @RateLimit(...) below it, next to {endpoint.__name__!r}"
            )


def unawaited(app: object) -> list[tuple[str, str]]:
    """Return (caller, name) of each decorated function that an endpoint or a dependency names that cannot await it.

    A decorated function is a coroutine function, also where it was none. A caller that is not async gets a coroutine,
    and neither the function nor its limit runs.
    """
    found = set()
    for place in walk(app):
        for call in (place.route.endpoint, *dependencies(place.route)):
            core = next(reversed([*layers(call)]), None)  # a frontend has no endpoint
            if not inspect.isfunction(core) or inspect.iscoroutinefunction(core):
                continue
            with suppress(ValueError):  # a variable of an enclosing function that has no value yet
                variables = inspect.getclosurevars(core)
                named = (*variables.nonlocals.values(), *variables.globals.values())
                found |= {(core.__qualname__, f.__qualname__) for f in named if inspect.isfunction(f) and f in _PLAIN}
    return sorted(found)


def dependencies(route: object) -> Iterator[Any]:
    """Yield everything that FastAPI calls before the endpoint of a route; nothing for a route of another kind."""
    return needed_by(getattr(route, "dependant", None))


def needed_by(dependant: object) -> Iterator[Any]:
    """Yield everything that FastAPI calls before what one of its descriptions is about."""
    waiting = [dependant]
    while waiting:
        for needed in getattr(waiting.pop(), "dependencies", ()):
            yield getattr(needed, "call", None)
            waiting.append(needed)


def check_endpoint(scope: Scope) -> None:
    """Check the same of the endpoint that has just answered a request: its route may have been added after the start.

    Raises:
        ConfigurationError: Its limit stands above its route decorator.
    """
    endpoint = scope.get("endpoint")
    if _replaced_by(endpoint) is not None:
        check_places(scope.get("router"))
        setattr(endpoint, _REPLACED_BY, (None, None))  # another route has the limit; there is nothing to check again


def _replaced_by(endpoint: object) -> object:
    """Return the limited endpoint that took the place of an endpoint; None if there is none."""
    original, limited = getattr(endpoint, _REPLACED_BY, (None, None))
    # A wrapper of the endpoint has a copy of its attributes (`functools.wraps`), so the original is compared.
    return limited if original is not None and original is endpoint else None


def layers(endpoint: Any) -> Iterator[Any]:
    """Yield an endpoint and the functions that it is wrapped around, from the outside."""
    while endpoint is not None:
        yield endpoint
        endpoint = endpoint.func if isinstance(endpoint, partial) else getattr(endpoint, "__wrapped__", None)


def _limited_function(limit: EndpointLimit, endpoint: Callable[..., Any]) -> Callable[..., Any]:
    core = list(layers(endpoint))[-1]
    if inspect.isgeneratorfunction(core) or inspect.isasyncgenfunction(core):
        raise ConfigurationError(
            f"RateLimit: {core.__name__!r} is a generator, whose answer has begun before it runs; "
            "write dependencies=[Depends(RateLimit(...))] at its route"
        )
    signature, own = _signature(endpoint)
    is_async = any(map(inspect.iscoroutinefunction, _called(endpoint)))

    @wraps(endpoint)
    async def limited(*args: Any, **options: Any) -> Any:
        connection = options.pop(_CONNECTION, None) if own is None else options.get(own)
        if connection is None:
            given = (*args, *options.values())
            connection = next((value for value in given if isinstance(value, HTTPConnection)), None)
        if connection is None:
            raise ConfigurationError(f"RateLimit: {core.__name__!r} was called without a request")
        await limit.check(connection, endpoint)
        if is_async:
            return await endpoint(*args, **options)
        answer = await run_in_threadpool(endpoint, *args, **options)
        return await answer if inspect.isawaitable(answer) else answer

    vars(limited)["__signature__"] = signature
    if not is_async:
        _PLAIN.add(limited)
    return limited


def _called(endpoint: Any) -> tuple[object, object]:
    while isinstance(endpoint, partial):
        endpoint = endpoint.func
    return endpoint, type(endpoint).__call__


def _signature(endpoint: Callable[..., Any]) -> tuple[Signature, str | None]:
    """Return the signature for FastAPI, and the parameter in which the endpoint itself asks for the connection."""
    try:
        signature = inspect.signature(endpoint, eval_str=True)
    except NameError:
        # A name that only type checkers see; FastAPI copes with it too.
        signature = inspect.signature(endpoint)
    parameters = list(signature.parameters.values())
    own = next((parameter.name for parameter in parameters if parameter.annotation is HTTPConnection), None)
    if own is None:
        place = sum(parameter.kind is not Parameter.VAR_KEYWORD for parameter in parameters)
        parameters.insert(place, Parameter(_CONNECTION, Parameter.KEYWORD_ONLY, annotation=HTTPConnection))
    return signature.replace(parameters=parameters), own


def _limited_class(limit: EndpointLimit, endpoint: type[Any]) -> type[Any]:
    if not inspect.iscoroutinefunction(getattr(endpoint, "dispatch", None)):
        raise ConfigurationError(
            f"RateLimit: expected an endpoint function or a class such as HTTPEndpoint, not {endpoint!r}; "
            "for an ASGI application write middleware=[Middleware(RateLimitMiddleware, ...)] at its route"
        )

    async def dispatch(self: Any) -> None:
        if self.scope["type"] == "http":
            body = _Body(self.receive)
            await limit.check(Request(self.scope, body.read), endpoint)
            self.receive = body.read_again
        else:
            await limit.check(HTTPConnection(self.scope), endpoint)
        await endpoint.dispatch(self)

    names = {name: getattr(endpoint, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(endpoint.__name__, (endpoint,), {**names, "__wrapped__": endpoint, "dispatch": dispatch})


class _Body:
    """A request's messages, which a key function may read before the endpoint does."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._read: deque[Message] = deque()

    async def read(self) -> Message:
        message = await self._receive()
        self._read.append(message)
        return message

    async def read_again(self) -> Message:
        return self._read.popleft() if self._read else await self._receive()
