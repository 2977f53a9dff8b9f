"""The operations of an application, the middlewares around them, and the limits that apply to them.

A middleware decides for one request, this file for all requests of an operation: it asks the rules of the middleware
for examples of its paths. A limit that only some of them meet, or that has a condition, is one that may apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from starlette.routing import Mount
from starlette.types import Scope

from ..web.broken import FailsAtStartup
from ..web.endpoint_limits import rules_of_route
from ..web.examples import filled, filled_for_both
from ..web.middleware import RateLimitMiddleware
from ..web.plan import Plan
from ..web.routes import DEPTH, attribute_of, layers, reach, root_of, routes_of
from ..web.rules import Rule


class Application(NamedTuple):
    """An application with a document.

    Attributes:
        app: The application.
        path: The path where it is mounted.
        around: The applications and middlewares around it, from the outside in and itself included, each with the path
            where it is mounted.
    """

    app: Any
    path: str
    around: tuple[tuple[Any, str], ...]


class Guard(NamedTuple):
    """A middleware around an application, and the path where it is mounted."""

    middleware: RateLimitMiddleware
    path: str


class Operation(NamedTuple):
    """An operation: the requests to a route with one method.

    Attributes:
        route: The route.
        path: Its full path, in Starlette's syntax.
        method: The method.
        described: What the document says of it.
    """

    route: Any
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


def applications(app: object, path: str = "", around: tuple[tuple[Any, str], ...] = ()) -> Iterator[Application]:
    """Yield the applications with a document: this one, and those that are mounted in it."""
    if len(around) > DEPTH or any(app is one for one, _ in around):
        return
    for layer in layers(app):
        around = (*around, (layer, path))
        if callable(attribute_of(layer, "openapi")):
            yield Application(layer, path, around)
    for route in routes_of(app) or ():
        if isinstance(route, Mount):
            yield from applications(route.app, path + route.path, around)


def guards_around(application: Application) -> Iterator[Guard]:
    """Yield the middlewares around an application that are switched on, from the outside in.

    Those that were only added are built; the application, when it builds its stack, has the same ones.
    """
    for layer, path in application.around:
        stack: Any = [layer]
        build = attribute_of(layer, "build_middleware_stack")
        if build is not None:
            stack = layers(layer.middleware_stack or build())
        for middleware in stack:
            if isinstance(middleware, FailsAtStartup) and middleware.error is not None:
                raise middleware.error
            if isinstance(middleware, RateLimitMiddleware) and middleware.is_enabled:
                yield Guard(middleware, path)


def operations(application: Application, document: Mapping[str, Any]) -> Iterator[Operation]:
    """Yield the operations of an application."""
    for route in routes_of(application.app) or ():
        if not attribute_of(route, "include_in_schema"):
            continue
        described = document.get("paths", {}).get(attribute_of(route, "path_format"), {})
        for method in sorted(attribute_of(route, "methods") or ()):
            if method.lower() in described:
                path = application.path + (attribute_of(route, "path") or route.path_format)
                yield Operation(route, path, method, described[method.lower()])


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
    template = operation.path.removeprefix(guard.path)
    app, rules = guard.middleware.app, guard.middleware.policy.rules
    usual = filled(template)
    paths: list[str | None] = [usual, filled(template, "")]
    for rule in rules.given:
        paths += [filled_for_both(template, rule_path.path) for rule_path in rule.matching.rule_paths]
    plans: list[Plan] = []
    for path in dict.fromkeys(paths):
        if path is None:
            continue
        scope: Scope = {"type": "http", "method": operation.method, "path": root_of(app) + path, "headers": []}
        route = reach(app, {**scope, "root_path": ""})
        is_own = route is not None and route.path == template and route.endpoint is operation.route.endpoint
        # Another route may take what a rule's path names.
        if is_own or path == usual:
            plans.append(rules.match(scope))
    return plans
