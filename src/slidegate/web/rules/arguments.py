"""The arguments of a rule that can be checked each by itself: paths, methods, a key function, limits for nobody."""

from __future__ import annotations

import re
from collections.abc import Iterable
from inspect import Parameter, isclass, iscoroutinefunction
from typing import Any, Final

from ...core.arguments import check_takes, signature_of
from ...core.errors import ConfigurationError
from ...core.limits import AnyLimit
from ..keys.key import KeyFunction
from ..paths.patterns import compile_pattern

_BY_PLACE: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_NOTHING: Final = r"(?ai:(?:[^:]{0,64}:)?\s*[-+]?0+\s*(?:/|per\b))"


def checked_paths(path: object) -> tuple[str, ...]:
    """Return the paths of a rule."""
    if path == "*":
        return ("*",)
    listed = [path] if isinstance(path, (str, bytes)) or not isinstance(path, Iterable) else list(path)
    if not listed:
        raise ConfigurationError('path: expected paths such as ["/login", "/token"], not an empty list')
    for place, found in enumerate(listed):
        if found == "*":
            raise ConfigurationError(f'path: "*" means every path; write it alone, not beside others: {listed!r}')
        compile_pattern(found)
        if found in listed[:place]:
            raise ConfigurationError(f"path: {found!r} stands twice in {listed!r}; write it once")
    return tuple(map(str, listed))


def checked_methods(methods: object) -> frozenset[str] | None:
    if methods is None:
        return None
    example = 'expected a list such as ["GET", "POST"]'
    if isinstance(methods, str) or not isinstance(methods, Iterable):
        raise ConfigurationError(f"methods: {example}, not {methods!r}")
    found = set()
    for method in methods:
        if not isinstance(method, str) or not (method.isascii() and method.isalpha()):
            raise ConfigurationError(f"methods: {example}, not {method!r} in it")
        found.add(method.upper())
    if not found:
        raise ConfigurationError(f"methods: {example}; leave it out for all methods")
    return frozenset(found | {"HEAD"} if "GET" in found else found)


def checked_function(key: KeyFunction | None) -> KeyFunction | None:
    """Return the user's key function.

    Raises:
        ConfigurationError: It is no function, or it makes a key and was not called.
    """
    if key is not None and not callable(key):
        raise ConfigurationError(f'key: expected client_ip(), header("X-API-Key") or a function, not {key!r}')
    if getattr(key, "__module__", "").startswith("slidegate."):
        raise ConfigurationError(f'key: {key!r} makes a key; call it, for example header("X-API-Key")')
    if key is not None:
        check_takes("key", key, "request")
    return key


def checked_condition(when: object) -> Any:
    """Return the user's condition.

    Raises:
        ConfigurationError: It is no function of the request.
    """
    if when is not None and (not callable(when) or isclass(when)):
        example = 'lambda request: "curl" in request.headers.get("user-agent", "")'
        raise ConfigurationError(f"when: expected a function of the request such as {example}, not {when!r}")
    if when is not None:
        check_takes("when", when, "request")
    return when


def checked_count_if(count_if: object) -> int:
    """Return how many of status, header fields and request the user's function takes.

    Raises:
        ConfigurationError: It is no plain function of 1 to 3 parameters.
    """
    example = "lambda status: status == 401, or lambda status, headers, request: ..."
    if not callable(count_if) or iscoroutinefunction(count_if):
        raise ConfigurationError(f"count_if: expected a plain function such as {example}, not {count_if!r}")
    found = signature_of(count_if)
    if found is None:
        return 1
    parameters = found.parameters.values()
    needed = [parameter for parameter in parameters if parameter.default is Parameter.empty]
    places = [parameter for parameter in needed if parameter.kind in _BY_PLACE]
    if len(places) > 3 or any(parameter.kind is Parameter.KEYWORD_ONLY for parameter in needed) or not parameters:
        raise ConfigurationError(f"count_if: expected 1 to 3 parameters, as in {example}, not {count_if!r}")
    return max(len(places), 1)


def checked_exceeded(on_exceeded: Any) -> Any:
    """Return the function that is told of hot keys.

    Raises:
        ConfigurationError: It is no function of key and decision.
    """
    if on_exceeded is not None and not callable(on_exceeded):
        raise ConfigurationError(f"on_exceeded: expected a function of key and decision, not {on_exceeded!r}")
    if on_exceeded is not None:
        check_takes("on_exceeded", on_exceeded, "key", "decision")
    return on_exceeded


def says_nobody(limits: object) -> bool:
    """Return whether limits let nobody through: they are the word "nobody", or one of them has the amount 0."""
    if isinstance(limits, str):
        return limits.strip().lower() == "nobody" or any(re.match(_NOTHING, one) for one in limits.split(";"))
    return not isinstance(limits, AnyLimit) and isinstance(limits, Iterable) and any(map(says_nobody, limits))
