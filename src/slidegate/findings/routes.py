"""Findings about rules and routes: rules without effect, paths without routes, and what is in the wrong order.

The effect of a rule is determined by matching examples of its requests. They are of every kind that another rule could
take from it: paths of several lengths for a parameter with slashes, and a method that no rule names for
rules of all methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Final

from ..core.errors import closest
from ..web.decorators import has_lost_limit
from ..web.examples import filled, filled_for_both
from ..web.finding import Finding
from ..web.policy import Policy
from ..web.routes import (
    MountedRoute,
    added_middlewares,
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
    if not any(rule.action.is_final for rule in rule_set.given):
        return
    for rule in rule_set.given:
        examples = [*_matches_of_examples(rule_set, rule)]
        reaching = [rules for rules in examples if rule in rules]
        others = {rules[0] for rules in reaching} or {rules[-1] for rules in examples}
        if len(others) != 1:
            continue
        above = others.pop()
        # If a rule does the same as the one that ends the list, nothing is lost.
        if not reaching and (rule.counts or rule.action != above.action):
            yield Finding(
                "SG133",
                f"rule {rule.label!r} never applies: rule {above.label!r} above it takes all its requests and ends "
                "the list; write the narrower rule first",
            )
        is_counting = above.counts and above.matching.when is None and not above.action.is_shadow
        if reaching and rule.action.exempts and is_counting:
            yield Finding(
                "SG134",
                f"rule {rule.label!r} is exempt, but rule {above.label!r} above it counts its requests all the "
                "same; write exemptions first",
            )


def _matches_of_examples(rule_set: RuleSet, rule: Rule) -> Iterator[list[Rule]]:
    """Yield the rules that match each example of a rule: this one is among them, or the last one ends the list."""
    matching = rule.matching
    path_texts = [path.path for path in matching.rule_paths] or ["/{rest:path}"]
    paths = {filled(path, rest) for path in path_texts for rest in _RESTS}
    for connection, method, path in product(("http", "websocket"), matching.methods or [_UNLISTED], paths):
        scope = {"type": connection, "method": method, "path": path}
        if matching.allows(connection, method_of(scope)):
            matches = rule_set.met(scope, (path,))
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
        if rule.action.blocks:  # for scanners, whose paths have no routes
            continue
        rule_methods = _USUAL_METHODS & (rule.matching.methods or set())
        route_methods: set[str] = set()
        for path in [rule_path.path for rule_path in rule.matching.rule_paths]:
            matching_routes = routes.matching(path, rule_methods)
            if not matching_routes:
                yield Finding("SG123", f"path {path!r} of rule {rule.label!r} matches no route; {routes.remedy(path)}")
            for route in matching_routes:
                route_methods |= route.methods or rule_methods
            if ":path}" in path:  # it matches many routes, with any methods
                route_methods |= rule_methods
        if rule_methods and route_methods and route_methods.isdisjoint(rule_methods):
            text = f"rule {rule.label!r} is for {', '.join(sorted(rule_methods))}, which no route of its path takes"
            yield Finding("SG136", f"{text}; they take {', '.join(sorted(route_methods - {'HEAD'}))}")


class _Routes:
    """The routes of an application."""

    def __init__(self, app: object) -> None:
        self._app = app
        self._routes = mounted_routes(app)
        self._is_by_path = is_by_path(app)  # with a `Host`, a path is not enough

    def matching(self, path: str, methods: Iterable[str] = ()) -> list[MountedRoute]:
        """Return routes that may take a path: its text decides, or the routers, if they can be asked for this one."""
        if "{" in path or not self._is_by_path:
            return [route for route in self._routes if filled_for_both(path, route.path)]
        reached = [reach_path(self._app, path, method) for method in {"GET", *methods}]
        reached.append(reach_path(self._app, path, "GET", "websocket"))
        return [route for route in reached if route is not None]

    def remedy(self, path: str) -> str:
        """Return what to do about a path that no route matches."""
        tail = path
        while "/" in tail[1:]:
            tail = tail[tail.index("/", 1) :]
            if not tail.startswith("/{") and self.matching(tail):
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
    parts = [rule.action.is_shadow or rule.action.exempts for rule in policy.rules.given]
    parts += [ban_policy.shadow for ban_policy in policy.signals.ban_policies.values()]
    return not all(parts)


def _is_cors(layer: object) -> bool:
    """Return whether an application is CORSMiddleware, or one that will put it around its routes."""
    from starlette.middleware.cors import CORSMiddleware  # here, so that importing this package does not import it

    kinds = (type(layer), *(added.cls for added in added_middlewares(layer)))
    return any(issubclass(kind, CORSMiddleware) for kind in kinds)
