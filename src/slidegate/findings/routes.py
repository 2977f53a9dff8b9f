"""Findings about rules and routes: rules that never apply, and rules or layers in the wrong order.

`RuleSet.matches_of` tells what a rule does, for examples of its requests. They are of every kind that another rule
could take from it: paths of several lengths for a parameter with slashes, and a method that no rule names for rules of
all methods.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any, Final

from .._path_examples import filled, filled_for_both
from ..core.errors import closest
from ..web.decorators import has_lost_limit
from ..web.finding import Finding
from ..web.policy import Policy
from ..web.routes import (
    MountedRoute,
    attribute_of,
    is_by_path,
    layers,
    mounted_routes,
    reach_path,
    routes_of,
)
from ..web.rule_set import RuleSet, is_ended, method_of
from ..web.rules import Rule

_RESTS: Final = ("", "~", "~/~/~/~/~/~/~/~")
"""Examples of a parameter with slashes."""
_UNLISTED: Final = "QWX"
"""A method that no rule has, for those of all methods."""
_USUAL_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
"""The methods that nothing but a route answers: not OPTIONS and HEAD, nor those of WebDAV and of caches."""


# -- the order of rules ------------------------------------------------------------------------------------------------


def about_order(rule_set: RuleSet) -> Iterator[Finding]:
    """Yield the findings about rules whose requests another one takes, and exemptions of what another one counts."""
    # Without a rule that ends the list all that match apply, in any order.
    if not any(rule.is_final for rule in rule_set.given):
        return
    for rule in rule_set.given:
        first_rules: set[Rule] = set()  # of the requests that reach this one
        ended_by: set[Rule] = set()  # the last rules of the others
        for rules in _rules_of_examples(rule_set, rule):
            if rule in rules:
                first_rules.add(rules[0])
            else:
                ended_by.add(rules[-1])
        if len(first_rules or ended_by) != 1:  # no single rule to name
            continue
        (above,) = first_rules or ended_by
        # A rule that does the same as the one that ends the list is not missed.
        if not first_rules and (rule.counts or (rule.action, rule.status) != (above.action, above.status)):
            yield Finding(
                "SG133",
                f"rule {rule.label!r} never applies: rule {above.label!r} above it takes all its requests and ends "
                "the list; write the narrower rule first",
            )
        is_counting = above.counts and above.when is None and not above.is_shadow
        if first_rules and rule.exempts and is_counting:
            yield Finding(
                "SG134",
                f"rule {rule.label!r} is exempt, but rule {above.label!r} above it counts its requests all the "
                "same; write exemptions first",
            )


def _rules_of_examples(rule_set: RuleSet, rule: Rule) -> Iterator[list[Rule]]:
    """Yield the rules that apply to each example of a rule: this one is among them, or the last one ends the list."""
    templates = [path.path for path in rule.rule_paths] or ["/{rest:path}"]
    paths = {filled(template, rest) for template in templates for rest in _RESTS}
    for connection, method, path in product(("http", "websocket"), rule.methods or [_UNLISTED], paths):
        scope = {"type": connection, "method": method, "path": path}
        if rule.may_match(connection, method_of(scope)):
            matches = rule_set.matches_of(scope, (path,))
            rules = [bound.rule for bound, _ in matches]
            if rule in rules or is_ended(matches):
                yield rules


# -- paths and methods -------------------------------------------------------------------------------------------------


def about_paths(rules: Sequence[Rule], app: object) -> Iterator[Finding]:
    """Yield the findings about paths and methods of rules that no route takes."""
    if routes_of(app) is None:
        return
    routes = _Routes(app)
    for rule in rules:
        if rule.blocks:  # for scanners, whose paths have no routes
            continue
        rule_methods = _USUAL_METHODS & (rule.methods or set())
        route_methods: set[str] = set()
        for rule_path in rule.rule_paths:
            path = rule_path.path
            candidates = routes.meeting(path, rule_methods)
            if not candidates:
                yield Finding("SG123", f"path {path!r} of rule {rule.label!r} matches no route; {routes.remedy(path)}")
            for route in candidates:
                route_methods |= route.methods or rule_methods
            if ":path}" in path:  # that of many routes, whatever they take
                route_methods |= rule_methods
        if rule_methods and route_methods and route_methods.isdisjoint(rule_methods):
            text = f"rule {rule.label!r} is for {', '.join(sorted(rule_methods))}, which no route of its path takes"
            yield Finding("SG136", f"{text}; they take {', '.join(sorted(route_methods - {'HEAD'}))}")


class _Routes:
    """The routes of an application.

    Args:
        app: The application.
    """

    def __init__(self, app: object) -> None:
        self._app = app
        self._routes = mounted_routes(app)
        self._is_by_path = is_by_path(app)  # with a `Host`, a path is not enough

    def meeting(self, path: str, methods: Iterable[str] = ()) -> list[MountedRoute]:
        """Return routes that may take a path: its text decides, or the routers, if they can be asked for this one."""
        if "{" in path or not self._is_by_path:
            return [route for route in self._routes if filled_for_both(path, route.path)]
        reached = [reach_path(self._app, path, method) for method in {"GET", *methods}]
        reached.append(reach_path(self._app, path, "GET", "websocket"))
        return [route for route in reached if route is not None]

    def remedy(self, path: str) -> str:
        """Return what to do about a path that no route meets."""
        tail = path
        while "/" in tail[1:]:
            tail = tail[tail.index("/", 1) :]
            if not tail.startswith("/{") and self.meeting(tail):
                return f"rules have no root_path: write {tail!r}"
        others = [route.path for route in self._routes if route.path != path]  # it may be hidden by a mount above it
        return f"write it with the prefix of its router, or remove it{closest(path, others)}"


# -- decorators and layers ---------------------------------------------------------------------------------------------


def about_decorators(app: object) -> Iterator[Finding]:
    """Yield the findings about limits that were put around a function after its route had taken it."""
    for route in mounted_routes(app):
        if has_lost_limit(route.endpoint):
            yield Finding(
                "SG137",
                f"@RateLimit stands above the decorator of route {route.label!r}, which has taken the function without "
                "the limit, so nothing is counted; write @RateLimit below it, directly above the function",
            )


def about_layers(policy: Policy, app: object, routed_app: object) -> Iterator[Finding]:
    """Yield the findings about CORS within, and about limits of routes that nothing can read."""
    if policy.refusals.on_refused is None and _refuses(policy) and any(map(_is_cors, layers(app))):
        yield Finding(
            "SG138",
            "CORSMiddleware is inside this middleware, so browsers hide its refusals from scripts: they see a network "
            "error in place of 429; add CORSMiddleware outside, which is after this middleware",
        )
    if policy.default_rule is not None and routes_of(routed_app) is None:
        yield Finding(
            "SG126",
            "default_limits are around an unknown application, whose routes cannot be read: all requests of a "
            'client share one bucket; write rules, such as Rule("/login", "5/minute")',
        )


def _refuses(policy: Policy) -> bool:
    """Return whether a middleware refuses requests itself, beside limits at endpoints, which are within."""
    if policy.default_rule is not None or policy.blocklist is not None:
        return True
    for rule in policy.rules.given:
        if not (rule.is_shadow or rule.exempts):
            return True
    return any(not ban_policy.shadow for ban_policy in policy.signals.ban_policies.values())


def _is_cors(layer: object) -> bool:
    """Return whether an application is CORSMiddleware, or one that will put it around its routes."""
    # An application that uses it has imported it.
    cors: Any = attribute_of(sys.modules.get("starlette.middleware.cors"), "CORSMiddleware", ())
    added = attribute_of(layer, "user_middleware", ())
    return isinstance(layer, cors) or any(attribute_of(middleware, "cls") is cors for middleware in added)
