"""`@RateLimit` above a function: the endpoint that checks a request first, as frameworks inspect and call it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import wraps
from inspect import Parameter, Signature
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary, ref

from starlette._utils import is_async_callable
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from ..core.errors import ConfigurationError, quoted
from ..core.logs import logger
from ..limiter.engine import Engine
from .routes import definition_of, layers
from .rules import Rule

if sys.version_info >= (3, 14):
    from annotationlib import Format

RequestCheck: TypeAlias = Callable[[HTTPConnection, object], Awaitable[None]]

LIMITS_MARK: Final = "__slidegate_limits__"
"""The attribute with the rules of the limits around an endpoint, from the outside in; `functools.wraps` copies it."""
_CALLED_DIRECTLY: Final = (
    "RateLimit: %s was called without a request, so the call is not counted; a framework has to give it the Request"
)
_AS_WRITTEN: dict[str, Any] = {}
"""How to read a signature whose annotations cannot be evaluated."""
if sys.version_info >= (3, 14):  # a Python that evaluates them when they are read
    _AS_WRITTEN["annotation_format"] = Format.FORWARDREF
_CONNECTION: Final = "slidegate_connection"
"""The parameter by which FastAPI gives the request to a decorated function."""
_WRAPPED: Final = "__wrapped__"
_limited: Final[WeakKeyDictionary[Any, ref[Any]]] = WeakKeyDictionary()
"""The functions that a limit was put around, and those within them, each with what has the limit."""


def decorated(check: RequestCheck, endpoint: Any, rule: Rule) -> Any:
    """Return an endpoint that checks its request and then calls the function `endpoint`.

    Args:
        check: Charges a request; raises if that is refused.
        endpoint: A function that is or will be the endpoint of a route.
        rule: What the check charges.

    Raises:
        ConfigurationError: `endpoint` is a generator, whose response starts before it runs.
    """
    core = inspect.unwrap(endpoint)
    if inspect.isgeneratorfunction(core) or inspect.isasyncgenfunction(core):  # FastAPI would call it around the limit
        raise ConfigurationError(
            f"RateLimit: {quoted(core)} is a generator, whose response starts before it runs; "
            "write dependencies=[Depends(RateLimit(...))] at its route"
        )
    is_async = is_async_callable(endpoint)
    signature, is_added = _signature(endpoint)
    is_warned = False

    @wraps(endpoint)
    async def limited(*args: Any, **options: Any) -> Any:
        nonlocal is_warned
        connections = [value for value in (*options.values(), *args) if isinstance(value, HTTPConnection)]
        if is_added:  # else it is a parameter of `endpoint`, which a decorator within has added
            options.pop(_CONNECTION, None)
        if connections:
            await check(connections[0], endpoint)
        elif Engine.counting and not is_warned:
            is_warned = True
            logger.warning(_CALLED_DIRECTLY, quoted(inspect.unwrap(endpoint)))
        if is_async:
            return await endpoint(*args, **options)
        answer = await run_in_threadpool(endpoint, *args, **options)
        if inspect.isawaitable(answer):
            return await answer
        return answer

    vars(limited)["__signature__"] = signature
    vars(limited)[LIMITS_MARK] = (rule, *getattr(endpoint, LIMITS_MARK, ()))
    for inner in layers(endpoint, _WRAPPED):
        with suppress(TypeError):  # what has no hash, or cannot be referenced weakly
            _limited[inner] = ref(limited)
    return limited


def has_lost_limit(endpoint: Any) -> bool:
    """Return whether an endpoint is a function whose limit was put around it after its route had taken it.

    What is limited then is where its name leads to. Where it leads nowhere, as within functions, nothing is limited if
    nothing has kept the function with the limit. A function may well be limited at one route alone.
    """
    limited = None
    with suppress(TypeError):
        limited = _limited.get(endpoint)
    if limited is None:
        return False
    definition = definition_of(endpoint)
    if definition is None:
        return limited() is None
    return definition is not endpoint and any(inner is endpoint for inner in layers(definition, _WRAPPED))


def _signature(endpoint: Callable[..., Any]) -> tuple[Signature, bool]:
    """Return the signature for FastAPI, with one for the connection, and whether the endpoint has none itself."""
    try:
        signature = inspect.signature(endpoint, eval_str=True)
    except Exception:  # an annotation for type checkers, which frameworks take as it is
        signature = inspect.signature(endpoint, **_AS_WRITTEN)
    parameters = list(signature.parameters.values())
    is_added = all(parameter.annotation is not HTTPConnection for parameter in parameters)
    if is_added:
        # In front of `**options`, behind which no parameter may stand.
        place = sum(parameter.kind is not Parameter.VAR_KEYWORD for parameter in parameters)
        parameters.insert(place, Parameter(_CONNECTION, Parameter.KEYWORD_ONLY, annotation=HTTPConnection))
    return signature.replace(parameters=parameters), is_added
