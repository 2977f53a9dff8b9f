"""The operations of an application, the middlewares around them, and the limits that apply to them.

A middleware decides for one request, this file for all requests of an operation: it asks the rules of the middleware
for examples of its paths. A limit that only some of them meet, or that has a condition, is one that may apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from starlette.routing import PARAM_REGEX, Mount

from ..web.broken import FailsAtStartup
from ..web.endpoint_limits import rules_of_route
from ..web.examples import filled, filled_for_both
from ..web.middleware import RateLimitMiddleware
from ..web.plan import Plan
from ..web.routes import MountedRoute, attribute_of, layers, mounted_routes, reach, root_of, routes_of
from ..web.rules import Rule


class Layer(NamedTuple):
    """An application or a middleware, and the path where it is mounted."""

    app: Any
    path: str


class Guard(NamedTuple):
    """A middleware around an application, and the path where it is mounted."""

    middleware: RateLimitMiddleware
    path: str


class Operation(NamedTuple):
    """An operation: the requests to a route with one method.

    Attributes:
        route: The route, below the application.
        path: Its full path, in Starlette's syntax.
        method: The method.
        described: What the document says of it.
    """

    route: MountedRoute
    path: str
    method: str
    described: dict[str, Any]


class Limit(NamedTuple):
    """A limit of an operation.

    Attributes:
        rule: Its rule.
        middleware: The middleware that counts.
        is_certain: Whether it applies to each request.
        is_at_endpoint: Whether it is at the endpoint.
    """

    rule: Rule
    middleware: RateLimitMiddleware
    is_certain: bool
    is_at_endpoint: bool = False


def applications(app: object, path: str = "", around: tuple[Layer, ...] = ()) -> Iterator[tuple[Layer, ...]]:
    """Yield each application with a document, this one and those mounted in it, as the last of the layers around it."""
    if any(app is layer.app for layer in around):
        return
    for layer in layers(app):
        around = (*around, Layer(layer, path))
        if callable(attribute_of(layer, "openapi")):
            yield around
    for route in routes_of(app) or ():
        if isinstance(route, Mount):
            yield from applications(route.app, path + route.path, around)


def guards_in(around: Sequence[Layer]) -> Iterator[Guard]:
    """Yield the middlewares in the layers around an application that are switched on, from the outside in.

    Those that were only added are built; the application, when it builds its stack, has the same ones.
    """
    for layer, path in around:
        stack: Any = [layer]
        build = attribute_of(layer, "build_middleware_stack")
        if build is not None:
            stack = layers(layer.middleware_stack or build())
        for middleware in stack:
            if isinstance(middleware, FailsAtStartup) and middleware.error is not None:
                raise middleware.error
            if isinstance(middleware, RateLimitMiddleware) and middleware.is_enabled:
                yield Guard(middleware, path)


def operations(application: Layer, document: Mapping[str, Any]) -> Iterator[Operation]:
    """Yield the operations of an application."""
    for route in mounted_routes(application.app):
        described = document["paths"].get(PARAM_REGEX.sub(r"{\1}", route.path), {})
        for method in route.methods or ():
            if method.lower() in described:
                yield Operation(route, application.path + route.path, method, described[method.lower()])


def limits_of(guards: Sequence[Guard], operation: Operation) -> Iterator[Limit]:
    """Yield the limits of an operation, from the outermost middleware to the endpoint."""
    for guard in guards:
        plans = [plan for plan in _plans(guard, operation) if plan.verdict.allowed]
        if not plans:  # a rule blocks all of its requests
            return
        for bound in guard.middleware.policy.rules.bound():
            limited = [bound in plan.limiting for plan in plans]
            if any(limited):
                is_certain = all(limited) and bound.rule.matching.when is None
                yield Limit(bound.rule, guard.middleware, is_certain)
    if not guards:  # without a middleware around it, a limit at an endpoint is an error
        return
    for rule in rules_of_route(operation.route.endpoint, operation.route.dependant):
        if not rule.action.is_shadow and rule.matching.allows("http", operation.method):
            is_certain = rule.matching.when is None
            yield Limit(rule, guards[-1].middleware, is_certain, is_at_endpoint=True)


def _plans(guard: Guard, operation: Operation) -> list[Plan]:
    """Return the plans of requests to an operation: an example of its own, and one of each rule's path it may meet."""
    template, endpoint = operation.path.removeprefix(guard.path), operation.route.endpoint
    app, rules = guard.middleware.app, guard.middleware.policy.rules
    plans: list[Plan] = []
    paths = [template, filled(template, ""), *(path.path for rule in rules.given for path in rule.matching.rule_paths)]
    for path in paths:
        example = filled_for_both(template, path)
        if example is None:
            continue
        scope = {"type": "http", "method": operation.method, "path": root_of(app) + example, "root_path": ""}
        reached = reach(app, scope)
        # Another route may take what a rule's path names.
        if path is template or (reached is not None and reached.endpoint is endpoint and reached.path == template):
            plans.append(rules.match(scope))
    return plans
