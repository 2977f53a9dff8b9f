"""Decorators of endpoints: ``@RateLimit("5/second")`` and ``@RateLimit.exempt``.

A decorated function keeps its parameters; its signature for FastAPI has an additional one for the request. A decorated
class becomes a subclass that checks the limit before it dispatches.
"""

from __future__ import annotations

import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial, wraps
from inspect import Parameter, Signature
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from starlette._utils import is_async_callable
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.types import Message, Receive

from ..core.errors import ConfigurationError, quoted

if TYPE_CHECKING:
    from .endpoints import RateLimit

_T = TypeVar("_T", bound=Callable[..., Any])
LIMIT: Final = "__slidegate_limit__"
"""The attribute of a decorated endpoint that stores the rule of its `RateLimit`."""
EXEMPT: Final = "__slidegate_exempt__"
"""The attribute that marks an endpoint as exempt from default limits."""
LIMITED: Final[WeakKeyDictionary[Any, WeakSet[Any]]] = WeakKeyDictionary()
"""Maps every limited function and class to its decorated versions."""
_CONNECTION: Final = "slidegate_connection"


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
    setattr(limited, LIMIT, limit.rule)
    for layer in unwrapped(endpoint):
        # An inner decorator may have registered any of them as a route.
        if is_function_or_class(layer):
            LIMITED.setdefault(layer, WeakSet()).add(limited)
    return limited


def check_parentheses(limits: object) -> None:
    """Check that the limits of a `RateLimit` are not the endpoint, as they are in ``@RateLimit`` without parentheses.

    Raises:
        ConfigurationError: They are.
    """
    if inspect.isclass(limits) or (callable(limits) and _is_being_defined(limits)):
        raise ConfigurationError(
            f'RateLimit: write @RateLimit("5/minute") above {_innermost(limits).__name__!r}: without parentheses the '
            "endpoint is taken for a function that returns limits, and never answers a request"
        )


def _innermost(function: Any) -> Any:
    """Return the function that decorators wrap; the function itself if there are none."""
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


def is_function_or_class(endpoint: object) -> bool:
    return inspect.isfunction(endpoint) or inspect.isclass(endpoint)


def _limited_function(limit: RateLimit, endpoint: Callable[..., Any]) -> Callable[..., Any]:
    core = _innermost(endpoint)
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


def exempt(endpoint: _T) -> _T:
    """Exempt an endpoint from the `default_limits` of a middleware: ``@RateLimit.exempt``.

    Marks a function, a class, or a method of a class-based endpoint, and returns it unchanged. It can be placed above
    or below the route decorator. Lists, bans, rules and limits at the endpoint still apply.

    Raises:
        ConfigurationError: The endpoint cannot be marked, or is an application with routes of its own.
    """
    marked = getattr(endpoint, "__func__", endpoint)  # each access to a method creates a new bound method
    if not callable(endpoint) or not hasattr(marked, "__dict__"):
        raise ConfigurationError(
            f"RateLimit.exempt: expected the function or class of an endpoint, for example @RateLimit.exempt above "
            f"async def health(request), not {quoted(endpoint)}"
        )
    if hasattr(endpoint, "routes"):
        raise ConfigurationError(
            f"RateLimit.exempt: expected an endpoint, not {quoted(endpoint)} with routes of its own; write "
            'Rule("/path/{rest:path}", exempt=True) for everything below a path'
        )
    setattr(marked, EXEMPT, True)
    return endpoint


def unwrapped(endpoint: Any) -> Iterator[Any]:
    """Yield an endpoint and the functions that it wraps, from the outside in."""
    while endpoint is not None:
        yield endpoint
        endpoint = endpoint.func if isinstance(endpoint, partial) else getattr(endpoint, "__wrapped__", None)
