"""The rule of a limit at an endpoint: its options, and the names of limits that have none.

The names are those of their counts, which stay over restarts, and those for display.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator
from copy import copy
from typing import TYPE_CHECKING, Any, Final, TypedDict

from ..core.errors import ConfigurationError
from ..core.options import misplaced_option
from .client_ip import ClientAddress
from .keys import parts_of
from .routes import definition_of, text_of_methods
from .rules import MAX_LABEL, Condition, CostFunction, CountIf, Limits, Rule, printable

if TYPE_CHECKING:
    from datetime import timedelta

    from ..limiter.failover import OnError
    from .keys import Key, KeyFunction


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
    """A rule of an endpoint. It has no paths: the router provides the path parameters by which it counts."""

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


_IN_TEXT: Final = ("limits", "limits_function", "concurrency", "is_shadow", "label", "where")
"""The attributes of a limit that its name has anyway, or that decide nothing."""
_PLAIN: Final = EndpointRule("*", "1/second")


def check_options(options: Collection[str]) -> None:
    """Check the names of the options of a `RateLimit`: those of a `Rule` that it lacks would have no effect.

    Raises:
        ConfigurationError: It does not have one of them.
    """
    accepted = [*EndpointOptions.__annotations__, "limits"]
    for option in options:
        if option not in accepted:
            raise ConfigurationError(f"RateLimit: {misplaced_option(option, accepted)}")


# -- names ------------------------------------------------------------------------------------------------------------


def rule_at(limit: Rule, function: Any, endpoint: Any, route: str) -> tuple[Rule, str]:
    """Return a limit as it is at an endpoint, and the name of its buckets, which one with a name has everywhere.

    Args:
        function: The function that it is put around; for a dependency the endpoint.
        endpoint: The endpoint of the route.
        route: The display name of the route, the first of several; empty if it is unknown.
    """
    rule = copy(limit)
    if rule.name is not None:
        return rule, rule.identity
    rule.label = _label_at(function, endpoint, route)
    where = dotted_name(function)
    if not is_found_by_name(function):  # others may have this module and name, too: the route tells them apart
        where = f"{where} {route}"
    return rule, f"{where} {full_text_of(rule)}"


def _label_at(function: Any, endpoint: Any, route: str) -> str:
    """Return what a limit without a name is called: by its route, as clients read the name and need no module.

    Equal names would be changed together by an operator: a method of a class, which shares its route with others, adds
    its name, and of a path that is too long the end stays.
    """
    words = ["endpoint"]
    if route:
        words.append(route)
    core = inspect.unwrap(function)
    if not route or core is not inspect.unwrap(endpoint):
        words.append(_named(core).__qualname__.rpartition("<locals>.")[2])
    return printable(" ".join(words))[-MAX_LABEL:]


def text_of(rule: Rule) -> str:
    """Return the limits of a rule as text; those of a function by its name, with the place if that is not unique."""
    if rule.limits_function is None:
        return "; ".join(map(str, rule.all_limits))
    return f"by {_place_of(rule.limits_function)}"


def full_text_of(rule: Rule) -> str:
    """Return as text all that decides which requests a limit counts, and how; its functions by their names."""
    return rule.identity_of(" ".join([text_of(rule), *_options_of(rule)]))


def _options_of(rule: Rule) -> Iterator[str]:
    """Yield the options that decide which requests a limit counts, and how; none for one of limits alone."""
    for option, value in vars(rule).items():
        if option in _IN_TEXT or value == vars(_PLAIN)[option]:
            continue
        if isinstance(value, frozenset):  # methods, or statuses
            value = text_of_methods(map(str, value))
        elif callable(value):
            value = _place_of(value)
        yield f"{option}={value}"


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


def _named(function: Any) -> Any:
    """Return what has the name of a function: itself, or the class of a partial or an instance."""
    if hasattr(function, "__qualname__"):
        return function
    return type(function)
