"""The names of limits at endpoints that have none: of their counts, which stay over restarts, and for display."""

from __future__ import annotations

import inspect
from copy import copy
from typing import Any, Final, NamedTuple

from .routes import found_at_name
from .rules import MAX_LABEL, Rule, printable

_LABEL_START: Final = 24
"""How much of the start of a label stays that is too long."""


class Place(NamedTuple):
    """Where a limit at an endpoint is.

    Attributes:
        function: The function that it is put around; for a dependency the endpoint.
        endpoint: The endpoint of the route.
        label: The display name of the route, the first of several; empty if it is unknown.
        path: Its path, where there is no label.
    """

    function: Any
    endpoint: Any
    label: str
    path: str = ""


def rule_at(given: Rule, place: Place) -> tuple[Rule, str]:
    """Return a limit as it is at an endpoint, and the name of its buckets, which one with a name has everywhere."""
    rule = copy(given)
    if rule.name is not None:
        return rule, rule.identity
    rule.label = _label_at(place)
    where, is_named = place_of(place.function)
    if not is_named:  # others may have this module and name, too: the route tells them apart
        where = f"{where} {place.label or place.path}"
    return rule, rule.identity_of(f"{where} {spelled(rule)}")


def _label_at(place: Place) -> str:
    """Return what a limit without a name is called: by its route, as clients read the name and need no module.

    Equal names would be changed together by an operator: a method of a class, which shares its route with others, adds
    its name, and of a path that is too long the end stays.
    """
    words = ["endpoint"]
    if place.label:
        words.append(place.label)
    function = inspect.unwrap(place.function)
    if not place.label or function is not inspect.unwrap(place.endpoint):
        *_, name = _named(function).__qualname__.rpartition("<locals>.")
        words.append(name)
    return _shortened(printable(" ".join(words)))


def _shortened(label: str) -> str:
    """Return a label, without its middle if it is too long."""
    if len(label) <= MAX_LABEL:
        return label
    end = MAX_LABEL - _LABEL_START - len("...")
    return f"{label[:_LABEL_START]}...{label[-end:]}"


def spelled(rule: Rule) -> str:
    """Return the limits of a rule as text; those of a function by its name, with the place if that is not unique."""
    function = rule.charging.limits_function
    if function is None:
        return "; ".join(map(str, rule.charging.all_limits))
    where, is_named = place_of(function)
    code = getattr(inspect.unwrap(function), "__code__", None)
    if is_named or code is None:
        return f"by {where}"
    return f"by {where} in line {code.co_firstlineno}"


def place_of(endpoint: Any) -> tuple[str, bool]:
    """Return the module and the name of an endpoint, and whether that name leads to it.

    It does not for a function that another one makes, for a partial or an instance, nor where a later definition has
    replaced the function.
    """
    function = inspect.unwrap(endpoint)
    kind = _named(function)
    there = found_at_name(kind)
    return f"{kind.__module__}.{kind.__qualname__}", there is not None and inspect.unwrap(there) is function


def _named(function: Any) -> Any:
    """Return what has the name of an endpoint: its function, or the class of a partial or an instance."""
    if hasattr(function, "__qualname__"):
        return function
    return type(function)
