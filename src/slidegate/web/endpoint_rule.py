"""What a limit at an endpoint is made of: its rule, names for those that have none, and the function that it makes.

The names are those of their counts, which stay over restarts, and those for display. `@RateLimit` above a function is
an endpoint that checks a request first, as frameworks inspect and call it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from copy import copy
from datetime import timedelta
from functools import wraps
from inspect import Parameter, Signature
from typing import Any, Final, TypeAlias, TypedDict
from weakref import WeakKeyDictionary, ref

from starlette._utils import is_async_callable
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from ..core.errors import ConfigurationError, quoted
from ..core.logs import logger
from ..limiter.engine import Engine
from ..limiter.failover import OnError
from .client_ip import ClientAddress
from .keys import Key, KeyFunction, parts_of
from .routes import layers, text_of_methods
from .rules import MAX_LABEL, Condition, CostFunction, CountIf, Limits, Rule, printable

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


class EndpointOptions(TypedDict, total=False):
    """The options that a limit at an endpoint shares with `Rule`, for type checkers."""

    fallback_limits: Limits
    when: Condition | None
    methods: Iterable[str] | None
    concurrency: int | str | None
    key: Key | KeyFunction | None
    cost: int | CostFunction
    cost_max: int | None
    unit: str | None
    count_if: CountIf | Iterable[int] | None
    count_denied: bool
    shadow: bool
    wait: str | timedelta | None
    wait_max: int
    fair: Key | KeyFunction | None
    on_error: OnError | None
    name: str | None


class EndpointRule(Rule):
    """A rule of an endpoint. It has no paths: the router provides the path parameters by which it counts.

    Attributes:
        at: What stands for its endpoint in the name of its counts, if it has no name; see `rule_at`.
    """

    at = ""

    def _check_key(self, key: object, option: str = "key") -> None:
        """Check that no part of a key reads proxies: the middleware has done that at its entrance."""
        for part in parts_of(key):
            if isinstance(part, ClientAddress) and part.trusted:
                raise ConfigurationError(
                    "a limit at an endpoint counts the address that its middleware has determined, because others may "
                    "have changed the request since; write RateLimitMiddleware(client=client_ip(trusted=...)), and "
                    "client_ip() here",
                    option,
                )

    @property
    def identity(self) -> str:
        """The owner of its counts: its name, else its endpoint and all that decides what it counts."""
        if self.name is not None:
            return super().identity
        return f"{self.at} {full_text_of(self)}"


_IN_TEXT: Final = ("limits", "limits_function", "concurrency", "is_shadow", "label", "where", "at")
"""The attributes of a limit that its name has anyway, or that decide nothing."""
_PLAIN: Final = EndpointRule("*", "1/second")


# -- names ------------------------------------------------------------------------------------------------------------


def rule_at(limit: EndpointRule, function: Any, endpoint: Any, route: str) -> EndpointRule:
    """Return a limit as it is at an endpoint, with the names that it has there.

    Args:
        function: The function that it is put around; for a dependency the endpoint.
        endpoint: The endpoint of the route.
        route: The display name of the route, the first of several; empty if it is unknown.
    """
    rule = copy(limit)
    if rule.name is not None:
        return rule
    # Its name for display is that of its route, as clients read it and need no module. Equal names would be changed
    # together by an operator: a method of a class, which shares its route with others, adds its name, and of a path
    # that is too long the end stays.
    words = ["endpoint"]
    if route:
        words.append(route)
    core = inspect.unwrap(function)
    if not route or core is not inspect.unwrap(endpoint):
        words.append(_named(core).__qualname__.rpartition("<locals>.")[2])
    rule.label = printable(" ".join(words))[-MAX_LABEL:]
    rule.at = dotted_name(function)
    if not is_found_by_name(function):  # others may have this module and name, too: the route tells them apart
        rule.at += f" {route}"
    return rule


def text_of(rule: Rule) -> str:
    """Return the limits of a rule as text; those of a function by its name, with the place if that is not unique."""
    if rule.limits_function is None:
        return "; ".join(map(str, rule.all_limits))
    return f"by {_place_of(rule.limits_function)}"


def full_text_of(rule: Rule) -> str:
    """Return as text all that decides which requests a limit counts, and how; its functions by their names."""
    words = [text_of(rule)]
    for option, value in vars(rule).items():
        if option in _IN_TEXT or value == vars(_PLAIN)[option]:
            continue
        if isinstance(value, frozenset):  # methods, or statuses
            value = text_of_methods(map(str, value))
        elif callable(value):
            value = _place_of(value)
        words.append(f"{option}={value}")
    return rule.identity_of(" ".join(words))


def _place_of(function: Any) -> str:
    """Return the name of a function as text, with its line if the name does not lead to it."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or is_found_by_name(function):
        return dotted_name(function)
    return f"{dotted_name(function)} in line {code.co_firstlineno}"


def dotted_name(function: Any) -> str:
    """Return the module and the name of a function, or of what stands in its place."""
    definition = _named(inspect.unwrap(function))
    return f"{definition.__module__}.{definition.__qualname__}"


def is_found_by_name(function: Any) -> bool:
    """Return whether its module and its name lead to a function.

    They do not for a function that another one makes, for a partial or an instance, nor where a later definition has
    replaced the function.
    """
    core = inspect.unwrap(function)
    definition = definition_of(_named(core))
    return definition is not None and inspect.unwrap(definition) is core


def definition_of(function: Any) -> Any:
    """Return what the module and the name of a function or a class lead to by now; None if they lead nowhere."""
    definition: Any = sys.modules.get(getattr(function, "__module__", ""))
    for part in getattr(function, "__qualname__", "").split("."):
        definition = getattr(definition, part, None)
    return definition


def _named(function: Any) -> Any:
    """Return what has the name of a function: itself, or the class of a partial or an instance."""
    if hasattr(function, "__qualname__"):
        return function
    return type(function)


# -- decorators ------------------------------------------------------------------------------------------------------


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
    is_passed_on = _CONNECTION in inspect.signature(endpoint, **_AS_WRITTEN).parameters  # to another limit within
    is_warned = False

    @wraps(endpoint)
    async def limited(*args: Any, **options: Any) -> Any:
        nonlocal is_warned
        connection = options.get(_CONNECTION)
        if connection is None:  # to ask each argument for its class takes as long as the limit
            connection = next(
                (value for value in (*args, *options.values()) if isinstance(value, HTTPConnection)), None
            )
        if not is_passed_on:
            options.pop(_CONNECTION, None)
        if connection is not None:
            await check(connection, endpoint)
        elif Engine.counting and not is_warned:
            is_warned = True
            logger.warning(_CALLED_DIRECTLY, quoted(inspect.unwrap(endpoint)))
        if is_async:
            return await endpoint(*args, **options)
        answer = await run_in_threadpool(endpoint, *args, **options)
        if inspect.isawaitable(answer):
            return await answer
        return answer

    vars(limited)["__signature__"] = _with_connection(endpoint)
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


def _with_connection(endpoint: Callable[..., Any]) -> Signature:
    """Return the signature of an endpoint for FastAPI, with a parameter for the connection."""
    try:
        signature = inspect.signature(endpoint, eval_str=True)
    except Exception:  # an annotation for type checkers, which frameworks take as it is
        signature = inspect.signature(endpoint, **_AS_WRITTEN)
    parameters = list(signature.parameters.values())
    if all(parameter.annotation is not HTTPConnection for parameter in parameters):
        # In front of `**options`, behind which no parameter may stand.
        place = sum(parameter.kind is not Parameter.VAR_KEYWORD for parameter in parameters)
        parameters.insert(place, Parameter(_CONNECTION, Parameter.KEYWORD_ONLY, annotation=HTTPConnection))
    return signature.replace(parameters=parameters)
