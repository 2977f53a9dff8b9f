"""The limits at the endpoints of an application, as far as its routes show them: dependencies and decorators."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from .broken import FailsAtStartup
from .decorators import LIMITS_MARK
from .default_limits import EXEMPT_MARK
from .endpoints import RateLimit
from .routes import added_middlewares, attribute_of, layers, mounted_routes
from .rules import Rule


def limits_of_routes(app: object) -> Iterator[tuple[Rule, str]]:
    """Yield the limits at endpoints that no other middleware is around, each with the label of its route."""
    for route in mounted_routes(app, _is_unguarded):
        function = getattr(route.endpoint, "__func__", route.endpoint)  # of a bound method
        rules = rules_of_route(function, route.dependant)
        for method in _methods_of(route.endpoint):
            rules += getattr(method, LIMITS_MARK, ())
        for rule in rules:
            yield rule, route.label


def exempt_methods(app: object) -> Iterator[object]:
    """Yield the methods of classes that are endpoints which `RateLimit.exempt` marks in vain."""
    for route in mounted_routes(app):
        for method in _methods_of(route.endpoint):
            if EXEMPT_MARK in vars(method) and EXEMPT_MARK not in vars(route.endpoint):
                yield method


def rules_of_route(endpoint: Any, dependant: Any) -> list[Rule]:
    """Return the limits of a route: those of FastAPI's dependencies, and those around its endpoint."""
    rules: list[Rule] = []
    dependencies: list[Any] = []
    if dependant is not None:
        dependencies.append(dependant)
    for dependency in dependencies:  # in breadth, as the list grows by those of each
        dependencies += dependency.dependencies
        if isinstance(dependency.call, RateLimit):
            rules.append(dependency.call.rule)
    rules += getattr(endpoint, LIMITS_MARK, ())
    return [*{id(rule): rule for rule in rules}.values()]  # each object once: two equal rules are two limits


def _methods_of(endpoint: Any) -> list[Any]:
    """Return the methods of an endpoint that is a class."""
    if not inspect.isclass(endpoint):
        return []
    return [method for _, method in inspect.getmembers_static(endpoint, inspect.isfunction)]


def _is_unguarded(route: object) -> bool:
    """Return whether no middleware of this library is around what is at a route, nor will be."""
    for layer in layers(attribute_of(route, "app")):
        if isinstance(layer, FailsAtStartup):
            return False
        if any(issubclass(added.cls, FailsAtStartup) for added in added_middlewares(layer)):
            return False
    return True
