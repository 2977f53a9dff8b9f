"""Findings about rules and routes: what another rule or no route leaves to do, and what stands in the wrong order.

What a rule does is asked of the rules themselves, for examples of its requests. They are of every kind that another
rule could take from it: paths of several lengths for a parameter with slashes, and a method that no rule names for
rules of all methods.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Final

from ..core.errors import closest
from ..web.decorators import has_lost_limit
from ..web.examples import filled, filled_for_both
from ..web.finding import Finding
from ..web.policy import Policy
from ..web.published import published_rules
from ..web.routes import added_middlewares, attribute_of, is_by_path, layers, mounted_routes, reach_path, routes_of
from ..web.rule_set import RuleSet, is_ended, method_of
from ..web.rules import Rule

_RESTS: Final = ("", "~", "~/~/~/~/~/~/~/~")
"""Examples of a parameter with slashes."""
_UNLISTED: Final = "QWX"
"""A method that no rule has, for those of all methods."""
_USUAL_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
"""The methods that nothing but a route answers: not OPTIONS and HEAD, nor those of WebDAV and of caches."""

_REFUSING: Final = frozenset({"limit", "block", "blocklist", "ban"})
"""What published rules do that refuse requests."""


# -- the order of rules ------------------------------------------------------------------------------------------------


def about_order(rule_set: RuleSet) -> Iterator[Finding]:
    """Yield the findings about rules whose requests another one takes, and exemptions of what another one counts."""
    # Without a rule that ends the list all that match apply, in any order.
    if not any(rule.action.is_final for rule in rule_set.given):
        return
    for rule in rule_set.given:
        met = _met_by_examples(rule_set, rule)
        reaching = [rules[: rules.index(rule)] for rules in met if rule in rules]
        ending = {rules[-1] for rules in met}
        if not reaching and len(ending) == 1:
            above = ending.pop()
            if rule.counts or rule.action != above.action:  # else it would do the same
                yield Finding(
                    "SG133",
                    f"rule {rule.label!r} never applies: rule {above.label!r} above it takes all its requests and ends "
                    "the list; write the narrower rule first",
                )
        if not reaching or not rule.action.exempts:
            continue
        certain = [above for above in reaching[0] if above.matching.when is None and not above.action.is_shadow]
        counting = [above for above in certain if all(above in rules for rules in reaching)]
        if counting:
            yield Finding(
                "SG134",
                f"rule {rule.label!r} is exempt, but rule {counting[0].label!r} above it counts its requests all the "
                "same; write exemptions first",
            )


def _met_by_examples(rule_set: RuleSet, rule: Rule) -> list[list[Rule]]:
    """Return the rules that each example of a rule meets: this one is among them, or the last one ends the list."""
    matching = rule.matching
    written = [path.path for path in matching.rule_paths] or ["/{rest:path}"]
    paths = {filled(path, rest) for path in written for rest in _RESTS}
    found: list[list[Rule]] = []
    for connection, method, path in product(("http", "websocket"), matching.methods or [_UNLISTED], paths):
        scope = {"type": connection, "method": method, "path": path}
        met = rule_set.met(scope, (path,))
        rules = [bound.rule for bound, _ in met]
        if rule in rules or (is_ended(met) and matching.allows(connection, method_of(scope))):
            found.append(rules)
    return found


# -- paths and methods -------------------------------------------------------------------------------------------------


def about_paths(rules: Sequence[Rule], app: object) -> Iterator[Finding]:
    """Yield the findings about paths and methods of rules that no route takes. Rules that block are for scanners."""
    routes = mounted_routes(app)
    known = [route.path for route in routes]
    is_asked = is_by_path(app)  # with a `Host`, a path is not enough
    for rule in rules:
        if routes_of(app) is None or rule.action.blocks:
            continue
        paths = [path.path for path in rule.matching.rule_paths]
        for path in paths:
            if not _is_met(app, path, known, is_asked=is_asked):
                remedy = _remedy(app, path, known, is_asked=is_asked)
                yield Finding("SG123", f"path {path!r} of rule {rule.label!r} matches no route; {remedy}")
        wanted = _USUAL_METHODS & (rule.matching.methods or set())
        if not wanted or ":path}" in str(paths):
            continue
        met = [route for route in routes if any(filled_for_both(path, route.path) for path in paths)]
        taken = {method for route in met for method in route.methods or wanted}
        if taken and taken.isdisjoint(wanted):
            found = f"rule {rule.label!r} is for {', '.join(sorted(wanted))}, which no route of its path takes"
            yield Finding("SG136", f"{found}; they take {', '.join(sorted(taken - {'HEAD'}))}")


def _is_met(app: object, path: str, known: Sequence[str], *, is_asked: bool) -> bool:
    """Return whether a route may take a path: its paths decide, or the routers, if they can be asked for this one."""
    if "{" in path or not is_asked:
        return any(filled_for_both(path, other) for other in known)
    return any(reach_path(app, path, "GET", connection) for connection in ("http", "websocket"))


def _remedy(app: object, path: str, known: Sequence[str], *, is_asked: bool) -> str:
    """Return what to do about a path that no route meets."""
    tail = path
    while "/" in tail[1:]:
        tail = tail[tail.index("/", 1) :]
        if not tail.startswith("/{") and _is_met(app, tail, known, is_asked=is_asked):
            return f"rules have no root_path: write {tail!r}"
    others = [other for other in known if other != path]  # it may be known, and hidden by a mount above it
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
    rows = [row for row in published_rules(policy) if not row.shadow and not row.at_endpoint]
    return policy.default_rule is not None or not _REFUSING.isdisjoint(row.action for row in rows)


def _is_cors(layer: object) -> bool:
    """Return whether an application is CORSMiddleware, or one that will put it around its routes."""
    # Who has not imported it does not use it.
    cors: Any = attribute_of(sys.modules.get("starlette.middleware.cors"), "CORSMiddleware", ())
    return any(issubclass(kind, cors) for kind in (type(layer), *(added.cls for added in added_middlewares(layer))))
