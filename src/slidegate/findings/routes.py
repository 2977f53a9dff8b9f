"""Findings about rules and routes: rules that never apply, and rules or layers in the wrong order.

`RuleSet.matches_of` tells what a rule does, for examples of its requests. They are of every kind that another rule
could take from it: paths of several lengths for a parameter with slashes, and a method that no rule names for rules of
all methods.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Final

from .._path_examples import filled, filled_for_both
from ..core.errors import closest
from ..web.endpoint_rule import has_lost_limit
from ..web.paths import RulePath
from ..web.policy import Finding, Policy
from ..web.published import published_rules
from ..web.routes import (
    MountedRoute,
    attribute_of,
    layers,
    routes_of,
)
from ..web.rule_set import RuleSet, is_ended
from ..web.rules import Rule, method_of

_RESTS: Final = ("", "~", "~/~/~/~/~/~/~/~")
"""Examples of a parameter with slashes."""
_UNLISTED: Final = "QWX"
"""A method that no rule has, for those of all methods."""
_USUAL_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
"""The methods that a rule may well name beside others, and for many routes."""
_OFTEN_WITHOUT_ROUTE: Final = (
    "ACL BAN BASELINE-CONTROL BIND CHECKIN CHECKOUT CONNECT COPY HEAD LABEL LINK LOCK MERGE MKACTIVITY MKCALENDAR "
    "MKCOL MKREDIRECTREF MKWORKSPACE MOVE OPTIONS ORDERPATCH PRI PROPFIND PROPPATCH PURGE QUERY REBIND REPORT SEARCH "
    "TRACE UNBIND UNCHECKOUT UNLINK UNLOCK UPDATE UPDATEREDIRECTREF VERSION-CONTROL"
)
"""The methods that others than routes answer: middlewares, those of WebDAV, and caches."""


# -- the order of rules ------------------------------------------------------------------------------------------------


def about_order(rule_set: RuleSet, routes: Sequence[MountedRoute]) -> Iterator[Finding]:
    """Yield the findings about rules whose requests another one takes, and exemptions of what another one counts.

    Args:
        rule_set: The rules.
        routes: The routes of the application; none if they are unknown.
    """
    # Without a rule that ends the list all that match apply, in any order.
    if not any(rule.is_final for rule in rule_set.given):
        return
    for place, rule in enumerate(rule_set.given):
        # The rules above it that count each request which reaches it.
        counting = [above for above in rule_set.given[:place] if above.action == "limit" and above.when is None]
        is_reached = False
        ended_by: set[Rule] = set()  # the last rules of the requests that do not reach it
        for rules in _rules_of_examples(rule_set, rule, routes):
            if rule in rules:
                is_reached = True
                counting = [above for above in counting if above in rules]
            else:
                ended_by.add(rules[-1])
        if is_reached:
            if rule.exempts and counting:
                yield Finding(
                    "SG134",
                    f"rule {rule.label!r} is exempt, but rule {counting[0].label!r} above it counts its requests all "
                    "the same; write exemptions first",
                )
        elif len(ended_by) == 1:  # else no single rule takes them
            (above,) = ended_by
            # A rule that does the same as the one that ends the list is not missed.
            if rule.counts or (rule.action, rule.status) != (above.action, above.status):
                yield Finding(
                    "SG133",
                    f"rule {rule.label!r} never applies: rule {above.label!r} above it takes all its requests and ends "
                    "the list; write the narrower rule first",
                )


def _rules_of_examples(rule_set: RuleSet, rule: Rule, routes: Sequence[MountedRoute]) -> Iterator[list[Rule]]:
    """Yield the rules that apply to each example of a rule: this one is among them, or the last one ends the list."""
    templates = [path.path for path in rule.rule_paths] or ["/{rest:path}"]
    paths = {filled(template, rest) for template in templates for rest in _RESTS}
    for rule_path, route in product(rule.rule_paths, routes):
        paths.update(_examples_of_both(rule, rule_path, route))
    for connection, method, path in product(("http", "websocket"), rule.methods or [_UNLISTED], paths):
        scope = {"type": connection, "method": method, "path": path}
        if rule.may_match(connection, method_of(scope)):
            matches = rule_set.matches_of(scope, (path,))
            rules = [bound.rule for bound, _ in matches]
            if rule in rules or is_ended(matches):
                yield rules


# -- paths and methods -------------------------------------------------------------------------------------------------


def about_paths(rules: Sequence[Rule], app: object, routes: Sequence[MountedRoute]) -> Iterator[Finding]:
    """Yield the findings about paths and methods of rules that no route takes."""
    if routes_of(app) is None:
        return
    for rule in rules:
        if rule.blocks:  # for scanners, whose paths have no routes
            continue
        taken = [] if rule.rule_paths else [*routes]
        for path in rule.rule_paths:
            taken_by_path = _taken_by(rule, path, routes)
            if not taken_by_path:
                remedy = _remedy(rule, path.path, routes)
                yield Finding("SG123", f"path {path.path!r} of rule {rule.label!r} matches no route; {remedy}")
            taken += taken_by_path
        yield from _about_methods(rule, taken)


def _about_methods(rule: Rule, routes: Sequence[MountedRoute]) -> Iterator[Finding]:
    """Yield the finding about methods of a rule that none of the routes takes to which it applies."""
    methods = rule.methods or frozenset()
    taken: set[str] = set()
    for route in routes:
        taken |= route.methods or methods
    lost = methods - {*_OFTEN_WITHOUT_ROUTE.split()} - taken
    is_for_many = any(path == "*" or ":path}" in path for path in rule.paths)
    if is_for_many or taken & methods:
        lost -= _USUAL_METHODS
    if taken and lost:
        listed, others = ", ".join(sorted(lost)), ", ".join(sorted(taken - {"HEAD"}))
        text = f"rule {rule.label!r} is for {listed}, which no route of its path takes; they take {others}"
        yield Finding("SG136", text)


def _taken_by(rule: Rule, path: RulePath, routes: Sequence[MountedRoute]) -> list[MountedRoute]:
    """Return routes with requests to which a rule may apply because of a path."""
    return [route for route in routes if _examples_of_both(rule, path, route)]


def _examples_of_both(rule: Rule, path: RulePath, route: MountedRoute) -> list[str]:
    """Return examples of requests of a route to which a rule may apply because of a path."""
    bare = path.path.removesuffix("/")
    examples = [filled_for_both(text, route.path) for text in (bare, f"{bare}/")]  # limits and blocks apply to both
    return [text for text in examples if text and ("{" in route.path or rule.takes(path, text))]


def _remedy(rule: Rule, path: str, routes: Sequence[MountedRoute]) -> str:
    """Return what to do about a path that no route meets. What it says to write meets a route of the rule's methods."""
    for segment in re.finditer("(?<=.)/[^{]", path):
        tail = path[segment.start() :]
        taken = _taken_by(rule, RulePath(tail), routes)
        if taken and not any(_about_methods(rule, taken)):
            return f"rules have no root_path: write {tail!r}"
    others = [route.path for route in routes if not any(_about_methods(rule, [route]))]
    return f"write it with the prefix of its router, or remove it{closest(path, others)}"


# -- decorators and layers ---------------------------------------------------------------------------------------------


def about_decorators(routes: Sequence[MountedRoute]) -> Iterator[Finding]:
    """Yield the findings about limits that were put around a function after its route had taken it."""
    for route in routes:
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
    if policy.default_rule is not None:  # its limits are published from the first request of a route on
        return True
    rows = [row for row in published_rules(policy) if not (row.shadow or row.at_endpoint)]
    return any(row.action in ("limit", "block", "ban", "blocklist") for row in rows)


def _is_cors(layer: object) -> bool:
    """Return whether an application is CORSMiddleware, or one that will put it around its routes."""
    # An application that uses it has imported it.
    cors: Any = attribute_of(sys.modules.get("starlette.middleware.cors"), "CORSMiddleware", ())
    added = attribute_of(layer, "user_middleware", ())
    return isinstance(layer, cors) or any(attribute_of(middleware, "cls") is cors for middleware in added)
