"""Endpoints with a limit around them, and those whose limit would never run.

A decorated function takes the parameters that it took before, and FastAPI is told of one more, in which it passes the
request. A decorated class is a subclass that checks before it dispatches.
"""

from __future__ import annotations

import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial, wraps
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakSet

from starlette._utils import is_async_callable
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.types import Message, Receive

from ..core.errors import ConfigurationError, quoted
from .route_tree import walk

if TYPE_CHECKING:
    from .endpoints import RateLimit

LIMIT: Final = "__slidegate_limit__"
"""The attribute of a decorated endpoint that holds its `RateLimit`."""
_CONNECTION: Final = "slidegate_connection"
_LIMITED: Final[WeakKeyDictionary[Any, WeakSet[Any]]] = WeakKeyDictionary()
"""Every function and class with a limit around it, and what was made of it."""


def decorate(limit: RateLimit, endpoint: Any) -> Any:
    """Return an endpoint that checks `limit` and then calls `endpoint`.

    Args:
        limit: The limit.
        endpoint: A function, or a class with `dispatch`.

    Raises:
        ConfigurationError: `endpoint` is nothing that can be limited this way.
    """
    if not callable(endpoint):
        raise ConfigurationError(
            'RateLimit: expected a function or class to limit, for example @RateLimit("5/second") above '
            f"async def page(request), not {quoted(endpoint)}"
        )
    limited = (_limited_class if inspect.isclass(endpoint) else _limited_function)(limit, endpoint)
    setattr(limited, LIMIT, limit)
    for layer in unwrapped(endpoint):
        # A decorator further in may have made a route of any of them.
        if _is_function_or_class(layer):
            _LIMITED.setdefault(layer, WeakSet()).add(limited)
    return limited


def unwrapped(endpoint: Any) -> Iterator[Any]:
    """Yield an endpoint and the functions that it is wrapped around, from the outside."""
    while endpoint is not None:
        yield endpoint
        endpoint = endpoint.func if isinstance(endpoint, partial) else getattr(endpoint, "__wrapped__", None)


def limits_of(endpoint: Any) -> Iterator[RateLimit]:
    """Yield the limits that decorate an endpoint, the outermost first."""
    for layer in unwrapped(endpoint):
        if (limit := getattr(layer, "__dict__", {}).get(LIMIT)) is not None:
            yield limit


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


def check_decorator_order(app: object) -> None:
    """Check that no limit stands above a route decorator, which has then registered the function without it.

    Raises:
        ConfigurationError: One does.
    """
    routes = list(walk(app))
    used = {id(function) for resolved in routes for function in unwrapped(resolved.route.endpoint)}
    for resolved in routes:
        endpoint = resolved.route.endpoint
        limited = _LIMITED.get(endpoint) if _is_function_or_class(endpoint) else None
        if limited is not None and not any(id(one) in used for one in limited) and not _is_named(endpoint):
            raise ConfigurationError(
                f"RateLimit: it stands above the decorator that makes the route {resolved.label!r}, so it would never "
                f"run; put @RateLimit(...) below it, next to {endpoint.__name__!r}"
            )


def _is_named(endpoint: Any) -> bool:
    """Tell whether the name of an endpoint in its module still means itself, and not what a decorator made of it."""
    named: Any = sys.modules.get(endpoint.__module__)
    for part in endpoint.__qualname__.split("."):
        named = getattr(named, part, None)
    return named is endpoint


def _is_function_or_class(endpoint: object) -> bool:
    return inspect.isfunction(endpoint) or inspect.isclass(endpoint)


def _limited_function(limit: RateLimit, endpoint: Callable[..., Any]) -> Callable[..., Any]:
    *_, core = unwrapped(endpoint)
    if inspect.isgeneratorfunction(core) or inspect.isasyncgenfunction(core):
        raise ConfigurationError(
            f"RateLimit: {core.__name__!r} is a generator, whose answer has begun before it runs; "
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


def _limited_class(limit: RateLimit, endpoint: type[Any]) -> type[Any]:
    if not inspect.iscoroutinefunction(getattr(endpoint, "dispatch", None)):
        raise ConfigurationError(
            f"RateLimit: expected an endpoint function or a class such as HTTPEndpoint, not {quoted(endpoint)}; "
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
