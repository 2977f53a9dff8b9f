"""The operations of an application, and the limits that apply to them.

A middleware decides for one request, this file for all requests of an operation: it asks the rules of the middleware
for examples of its paths. A limit that only some of them meet, or that has a condition, is one that may apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..web.default_limits import EXEMPT_MARK
from ..web.endpoint_limits import rules_of_route
from ..web.examples import filled, filled_for_both
from ..web.plan import Traits
from ..web.routes import attribute_of, reach_path, routes_of
from ..web.rule_set import is_ended
from ..web.rules import Rule
from .around import Application, Guard


class Operation(NamedTuple):
    """An operation: the requests to a route with one method.

    Attributes:
        route: The route.
        path: Its full path, in Starlette's syntax.
        method: The method.
    """

    route: Any
    path: str
    method: str


class Limit(NamedTuple):
    """A limit of an operation.

    Attributes:
        rule: Its rule.
        guard: The middleware that counts.
        is_certain: Whether it applies to each request.
        is_at_endpoint: Whether it is at the endpoint.
    """

    rule: Rule
    guard: Guard
    is_certain: bool
    is_at_endpoint: bool = False

    def statuses(self) -> Iterator[str]:
        """Yield the statuses of its refusals."""
        yield "429"
        # A limit may deny only where the store can fail.
        if self.guard.on_error is not None and (self.rule.charging.on_error or self.guard.on_error) == "deny":
            yield "503"


def operations(application: Application, document: Mapping[str, Any]) -> Iterator[tuple[Operation, Any]]:
    """Yield the operations of an application, each with what its document says of it."""
    for route in routes_of(application.app) or ():
        described = document.get("paths", {}).get(attribute_of(route, "path_format"), {})
        for method in sorted(attribute_of(route, "methods") or ()):
            if method.lower() in described and attribute_of(route, "include_in_schema"):
                path = application.path + (attribute_of(route, "path") or route.path_format)
                yield Operation(route, path, method), described[method.lower()]


def limits_of(guards: Sequence[Guard], operation: Operation) -> Iterator[Limit]:
    """Yield the limits of an operation, from the outermost middleware to the endpoint."""
    for guard in guards:
        answers = [_limiting(guard, operation, path) for path in _examples(guard, operation)]
        admitted = [rules for rules in answers if rules is not None]
        for rule in (*guard.policy.rules.given, guard.policy.default_rule):
            if rule is not None and any(rule in rules for rules in admitted):
                is_certain = rule.matching.when is None and all(rule in rules for rules in admitted)
                yield Limit(rule, guard, is_certain)
        if not admitted:  # a rule blocks all of its requests
            return
    for rule in rules_of_route(operation.route.endpoint, operation.route.dependant):
        # Without a middleware around it, a limit at an endpoint is an error.
        if guards and not rule.action.is_shadow and rule.matching.allows("http", operation.method):
            yield Limit(rule, guards[-1], rule.matching.when is None, is_at_endpoint=True)


def _limiting(guard: Guard, operation: Operation, path: str) -> list[Rule] | None:
    """Return the rules that limit a request to a path, whatever conditions say; None if a rule blocks it."""
    rule_set, default_rule = guard.policy.rules, guard.policy.default_rule
    met = rule_set.met({"type": "http", "method": operation.method}, (path,))
    plan = rule_set.plan_of(met, (), Traits())
    if not plan.verdict.allowed:
        return None
    limiting = [bound.rule for bound in plan.limiting]
    is_exempt = EXEMPT_MARK in getattr(operation.route.endpoint, "__dict__", ())
    if default_rule is not None and not is_ended(met) and not is_exempt:
        limiting.append(default_rule)
    return limiting


def _examples(guard: Guard, operation: Operation) -> list[str]:
    """Return paths of requests to an operation: one of its own, and one for each rule's path that it may meet."""
    template = operation.path.removeprefix(guard.path)
    if "{" not in template:
        return [template]
    usual = filled(template)
    examples = [usual, filled(template, "")]
    for rule in guard.policy.rules.given:
        for rule_path in rule.matching.rule_paths:
            example = filled_for_both(template, rule_path.path)
            if example is not None:
                examples.append(example)
    # Another route may take some of them first.
    reaching = [path for path in dict.fromkeys(examples) if _reaches(guard, operation, path, template)]
    return reaching or [usual]


def _reaches(guard: Guard, operation: Operation, path: str, template: str) -> bool:
    """Return whether a request to a path reaches an operation, as the routers decide."""
    reached = reach_path(guard.app, path, operation.method)
    return reached is not None and reached.path == template and reached.endpoint is operation.route.endpoint
