"""The applications with a document, the middlewares around them, and the limits that apply to an operation.

A middleware decides for one request, this file for all requests of an operation: it asks the rules of the middleware
for examples of its paths. A limit that only some of them meet, or that has a condition, is one that may apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from starlette.applications import Starlette
from starlette.routing import Mount

from .._path_examples import filled, filled_for_both
from ..web.endpoints import rules_of_route
from ..web.middleware import RateLimitMiddleware
from ..web.plan import Plan
from ..web.routes import MountedRoute, attribute_of, layers, reach, root_of, routes_of
from ..web.rules import Rule
from ..web.start import FailsAtStartup


class Layer(NamedTuple):
    """An application or a middleware, and the path where it is mounted."""

    app: Any
    path: str


Around: TypeAlias = tuple[Layer, ...]
"""The layers around an application, from the outside in and itself included."""


class Guard(NamedTuple):
    """A middleware around an application, and the path where it is mounted."""

    middleware: RateLimitMiddleware
    path: str


class Limit(NamedTuple):
    """A limit of an operation.

    Attributes:
        is_partial: Whether it applies to some paths alone.
        is_at_endpoint: Whether it is at the endpoint.
    """

    rule: Rule
    guard: Guard
    is_partial: bool = False
    is_at_endpoint: bool = False


def applications(app: object, path: str = "", around: Around = ()) -> Iterator[Around]:
    """Yield each application with a document, this one and those mounted in it, as the last of the layers around it."""
    for layer in layers(app):
        around = (*around, Layer(layer, path))
        if callable(attribute_of(layer, "openapi")):
            yield around
    for route in routes_of(app) or ():
        if isinstance(route, Mount):
            yield from applications(route.app, path + route.path, around)


def guards_in(around: Around) -> Iterator[Guard]:
    """Yield the middlewares in the layers around an application that are switched on, from the outside in.

    Where the application has not built its stack yet, one is built for the document.
    """
    for layer, path in around:
        stack: Any = [layer]
        if isinstance(layer, Starlette):
            stack = layers(layer.middleware_stack or layer.build_middleware_stack())
        for middleware in stack:
            if isinstance(middleware, FailsAtStartup) and middleware.error is not None:
                raise middleware.error
            if isinstance(middleware, RateLimitMiddleware) and middleware.is_enabled:
                yield Guard(middleware, path)


def limits_of(guards: Sequence[Guard], route: MountedRoute, method: str) -> Iterator[Limit]:
    """Yield the limits of an operation, from the outermost middleware to the endpoint."""
    if not guards:  # without a middleware around it, a limit at an endpoint is an error
        return
    for guard in guards:
        plans = [plan for plan in _plans(guard, route, method) if plan.verdict.allowed]
        if not plans:  # a rule blocks all of its requests
            return
        for bound in guard.middleware.policy.rules.bound():
            limited = [bound in plan.limiting for plan in plans]
            if any(limited):
                yield Limit(bound.rule, guard, is_partial=not all(limited))
    for rule in rules_of_route(route):
        if not rule.is_shadow and rule.may_match("http", method):
            yield Limit(rule, guards[-1], is_at_endpoint=True)


def _plans(guard: Guard, route: MountedRoute, method: str) -> Iterator[Plan]:
    """Yield the plans of requests to a route: an example of its own, and one of each rule's path that it may meet."""
    app = guard.middleware.app
    rules = guard.middleware.policy.rules
    template = route.path.removeprefix(guard.path)
    paths = [template, filled(template, "")]
    for rule in rules.given:
        for rule_path in rule.rule_paths:
            bare = rule_path.path.removesuffix("/")
            paths += [bare, f"{bare}/"]
    for path in paths:
        example = filled_for_both(template, path)
        if example is None:
            continue
        # Without header fields, so that an OPTIONS is no preflight.
        scope = {"type": "http", "method": method, "path": root_of(app) + example, "headers": []}
        reached = reach(app, scope)
        # Another route may take what a rule's path names.
        if path is template or (reached and reached.endpoint is route.endpoint and reached.path == template):
            yield rules.match(scope)
