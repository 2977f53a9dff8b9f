"""Findings about an application as it starts: its rules and routes, the order of rules and layers.

`RuleSet.matches_of` tells what a rule does, for examples of its requests. They are of every kind that another rule
could take from it: paths of several lengths for a parameter with slashes, and a method that no rule names for rules of
all methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final, TypeAlias

from .._path_examples import filled, filled_for_both
from ..core.errors import closest
from ..web.endpoint_rule import dotted_name, has_lost_limit
from ..web.paths import RulePath
from ..web.policy import Finding, Policy
from ..web.published import published_rules
from ..web.routes import MountedRoute, attribute_of, layers, routes_of
from ..web.rule_set import RuleSet, is_ended
from ..web.rules import Rule, method_of

Routes: TypeAlias = Sequence[MountedRoute]

_OFTEN_WITHOUT_ROUTE: Final = (
    "ACL BAN BASELINE-CONTROL BIND CHECKIN CHECKOUT CONNECT COPY HEAD LABEL LINK LOCK MERGE MKACTIVITY MKCALENDAR "
    "MKCOL MKREDIRECTREF MKWORKSPACE MOVE OPTIONS ORDERPATCH PRI PROPFIND PROPPATCH PURGE QUERY REBIND REPORT SEARCH "
    "TRACE UNBIND UNCHECKOUT UNLINK UNLOCK UPDATE UPDATEREDIRECTREF VERSION-CONTROL"
)
"""The methods that others than routes answer: middlewares, those of WebDAV, and caches."""


# -- the order of rules ------------------------------------------------------------------------------------------------


def about_order(rule_set: RuleSet, routes: Routes) -> Iterator[Finding]:
    """Yield the findings about rules whose requests another one takes, and exemptions of what another one counts.

    Args:
        rule_set: The rules.
        routes: The routes of the application; none if they are unknown.
    """
    for place, rule in enumerate(rule_set.given):
        examples = [*_rules_of_examples(rule_set, rule, routes)]
        reaching = [rules for rules in examples if rule in rules]
        ended_by = {rules[-1] for rules in examples}
        if reaching and rule.exempts:
            for above in rule_set.given[:place]:
                if above.action == "limit" and above.when is None and all(above in rules for rules in reaching):
                    yield Finding(
                        "SG134",
                        f"rule {rule.label!r} is exempt, but rule {above.label!r} above it counts its requests all the "
                        "same; write exemptions first",
                    )
                    break
        if reaching or len(ended_by) != 1:  # no single rule takes its requests
            continue
        (above,) = ended_by
        # A rule that does the same as the one that ends the list is not missed.
        if rule.counts or rule.action != above.action or rule.status != above.status:
            yield Finding(
                "SG133",
                f"rule {rule.label!r} never applies: rule {above.label!r} above it takes all its requests and ends "
                "the list; write the narrower rule first",
            )


def _rules_of_examples(rule_set: RuleSet, rule: Rule, routes: Routes) -> Iterator[list[Rule]]:
    """Yield the rules that apply to each example of a rule: this one is among them, or the last one ends the list."""
    templates = [path.path for path in rule.rule_paths] or ["/{rest:path}"]
    rests = "", "~", "~/~/~/~/~/~/~/~"  # examples of a parameter with slashes
    paths = {filled(template, rest) for template, rest in product(templates, rests)}
    for rule_path, route in product(rule.rule_paths, routes):
        paths.update(_examples_of_both(rule, rule_path, route))
    methods = rule.methods or ["QWX"]  # which no rule has, for those of all methods
    for connection, method, path in product(("http", "websocket"), methods, paths):
        scope = {"type": connection, "method": method}
        if rule.may_match(connection, method_of(scope)):
            matches = rule_set.matches_of(scope, (path,))
            rules = [bound.rule for bound, _ in matches]
            if rule in rules or is_ended(matches):
                yield rules


# -- paths and methods -------------------------------------------------------------------------------------------------


def about_paths(rules: RuleSet, app: object, routes: Routes) -> Iterator[Finding]:
    """Yield the findings about paths and methods of rules that no route takes, or about routes that are unknown."""
    if routes_of(app) is None:
        if rules.default_rule is not None:
            yield Finding(
                "SG126",
                "default_limits are around an unknown application, whose routes cannot be read: all requests of a "
                'client share one bucket; write rules, such as Rule("/login", "5/minute")',
            )
        return
    for rule in rules.given:
        taken = [] if rule.rule_paths else [*routes]
        for path in rule.rule_paths:
            taken_by_path = [route for route in routes if _examples_of_both(rule, path, route)]
            taken += taken_by_path
            problem = _problem(rules, rule, path.path, taken_by_path, routes)
            if problem:
                yield Finding("SG123", f"path {path.path!r} of rule {rule.label!r} matches no route{problem}")
        if not rule.blocks:
            yield from _about_methods(rule, taken)


def _problem(rules: RuleSet, rule: Rule, path: str, taken: Routes, routes: Routes) -> str:
    """Return what is wrong with a path of a rule, and what to do about it; empty if the rule applies there.

    What it says to write meets a route of the rule's methods.
    """
    begin = f"{path.removesuffix('/')}/"
    # A page is no more than itself; the index of a mount is a part of it.
    if any(not (route.above and f"{route.above}/".startswith(begin)) for route in taken):
        return ""
    paths = [route.path for route in routes if not any(_about_methods(rule, [route]))]
    # Who has written such a rule for what is below, or limits everything, knows.
    alike = [path for other in rules.given if other.action == rule.action for path in other.paths]
    has_others = not rule.blocks and ("*" in alike or rules.default_rule is not None)
    if begin != "/" and _has_below(begin, paths) and not (rule.exempts or has_others or _has_below(begin, alike)):
        return f" below it; write '{begin}{{rest:path}}'"
    # Other blocks are for scanners, whose paths have no routes.
    if taken or rule.blocks:
        return ""
    for other in paths:
        if path.endswith(other) and other[1:2].isalnum():
            return f"; rules have no root_path: write {other!r}"
    return f"; write it with the prefix of its router, or remove it{closest(path, paths)}"


def _has_below(begin: str, paths: Sequence[str]) -> bool:
    """Return whether a path begins so, and goes on."""
    return any(path.startswith(begin) and path != begin for path in paths)


def _about_methods(rule: Rule, routes: Routes) -> Iterator[Finding]:
    """Yield the finding about methods of a rule, or websockets, that none of the routes takes to which it applies."""
    methods = rule.methods or frozenset()
    if rule.connection == "websocket":
        methods = frozenset({"WS"})
    taken = set[str]()
    for route in routes:
        taken |= route.methods or methods
    lost = methods.difference(_OFTEN_WITHOUT_ROUTE.split(), taken)
    is_for_many = "*" in rule.paths or ":path}" in " ".join(rule.paths)
    if is_for_many or taken & methods:  # it may well name the usual ones, too
        lost -= {"GET", "POST", "PUT", "PATCH", "DELETE", "WS"}
    if taken and lost:
        listed = ", ".join(sorted(lost))
        others = ", ".join(sorted(taken - {"HEAD"}))
        yield Finding(
            "SG136", f"rule {rule.label!r} is for {listed}, which no route of its path takes; they take {others}"
        )


def _examples_of_both(rule: Rule, path: RulePath, route: MountedRoute) -> list[str]:
    """Return examples of requests of a route to which a rule may apply because of a path."""
    bare = path.path.removesuffix("/")
    examples = [filled_for_both(text, route.path) for text in (bare, f"{bare}/")]  # limits and blocks apply to both
    # One of parameters of both stands for other values, too, which the rule may take.
    is_enough = path.convertors and "{" in route.path
    return [text for text in examples if text and (is_enough or rule.takes(path, text))]


# -- decorators and layers ---------------------------------------------------------------------------------------------


def about_functions(routes: Routes) -> Iterator[Finding]:
    """Yield the findings about limits that do not reach the functions of routes, and so count nothing."""
    for route in routes:
        if has_lost_limit(route.endpoint):
            yield Finding(
                "SG137",
                f"@RateLimit stands above the decorator of route {route.label!r}, which has taken the function without "
                "the limit, so nothing is counted; write @RateLimit below it, directly above the function",
            )
        for dependency in attribute_of(route.dependant, "dependencies", ()):
            code = attribute_of(dependency.call, "__code__")
            # Without a request it cannot ask the limit, and nothing gets the result of one without a name.
            if code and not code.co_argcount and "RateLimit" in code.co_names and dependency.name is None:
                yield Finding(
                    "SG145",
                    f"the dependency {dotted_name(dependency.call)} makes a RateLimit, which nothing asks, so nothing "
                    'is counted; write Depends(RateLimit("5/minute"))',
                )


def about_layers(policy: Policy, app: object) -> Iterator[Finding]:
    """Yield the finding about CORS within."""
    # Limits at endpoints are within, and those of a route are published from its first request on.
    own = [row.action for row in published_rules(policy) if not (row.shadow or row.at_endpoint)]
    refuses = policy.rules.default_rule is not None or not {"limit", "block", "ban", "blocklist"}.isdisjoint(own)
    if refuses and policy.refusals.on_refused is None and any(map(_is_cors, layers(app))):
        yield Finding(
            "SG138",
            "CORSMiddleware is inside this middleware, so browsers hide its refusals from scripts: they see a network "
            "error in place of 429; add CORSMiddleware outside, which is after this middleware",
        )


def _is_cors(layer: object) -> bool:
    """Return whether an application is CORSMiddleware, or one that will put it around its routes."""
    from starlette.middleware.cors import CORSMiddleware  # here, as few applications need it

    added = attribute_of(layer, "user_middleware", ())
    return isinstance(layer, CORSMiddleware) or CORSMiddleware in [middleware.cls for middleware in added]
