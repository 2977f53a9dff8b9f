"""Checks of what the routes below a middleware show: honeypots that are served, exemptions, functions, dashboards."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from starlette.types import Scope

from ..core.errors import closest
from .checks import Finding, pattern_and_sample
from .decorators import unawaited
from .matching import PathMatcher
from .route_tree import Application, Frontend, ResolvedRoute, applications, layers, root_of, router_of, walk
from .rule_set import Selection
from .rules import Rule

if TYPE_CHECKING:
    from .middleware import RateLimitMiddleware

_KIND: Final = re.compile(":[a-z]+}")
_ALL_BELOW: Final = re.compile(r"/?\{\w+:path\}\Z")
_ASKED: Final = (("GET", "/"), ("GET", "/api/session"), ("POST", "/api/session"))
_MAX_NAMED: Final = 3


class AdminApp:
    """An application for operators, such as the dashboard. The start says which rules above count it."""


def about_honeypots(middleware: RateLimitMiddleware) -> Iterator[Finding]:
    """Yield the findings about paths that strike, and should not, or never do."""
    for policy in middleware.policies:
        for path, weight in policy.signals.items():
            if not isinstance(path, str) or not path.startswith("/"):
                continue
            exempt = _exempting(middleware.rules, path)
            at_once = weight == "ban" or weight >= policy.after.amount
            if exempt is not None:
                yield Finding(
                    "SG112",
                    f"path {path!r} of policy {policy.name!r} never strikes: {exempt!r} exempts it; exempt narrower "
                    "paths, or choose another honeypot",
                )
            elif at_once and (label := _served(middleware.app, path)):
                yield Finding(
                    "SG112",
                    f"path {path!r} of policy {policy.name!r} bans the application's own visitors: {label}; take it "
                    "out, or give it a weight below the amount of after=",
                )


def _exempting(rules: Sequence[Rule], path: str) -> Rule | None:
    """Return the rule that exempts requests that get a path."""
    for rule in rules:
        about = rule.connection != "websocket" and "GET" in (rule.methods or {"GET"})
        meets = not rule.matchers or any(matcher.exempts(path) for matcher in rule.matchers)
        if rule.final and not rule.conditional and about and meets:
            return rule if rule.exempt else None
    return None


def _served(app: object, path: str) -> str:
    """Return the label of the route whose own path this is; empty if there is none.

    A route that takes any path does not count: it answers scanners with a page that is meant for others.
    """
    own = PathMatcher(path)
    return next((place.label for place in walk(router_of(app)) if own.exempts(place.template)), "")


def about_callers(app: object) -> Iterator[Finding]:
    """Yield the findings about functions that call a limited one and cannot await it."""
    for caller, name in unawaited(app):
        yield Finding(
            "SG121",
            f"{caller!r} calls {name!r}, which @RateLimit made a coroutine function, so neither it nor its limit runs; "
            "write `async def` for both, and await it, or put limiter.limited(...) in the place of RateLimit",
        )


def about_unmet_rules(middleware: RateLimitMiddleware) -> Iterator[Finding]:
    """Yield a finding for each rule whose paths lead to no route of the application.

    It is silent where something may answer that shows no routes, and about rules that meet scanners: those that block
    or track, nor about rules for preflights.
    """
    top, *others = applications(middleware.app)
    routes = list(top.walk())
    if not routes or any(map(_may_answer_more, (top, *others))):
        return
    for rule in middleware.rules:
        if not rule.matchers or rule.action in ("block", "track") or "OPTIONS" in (rule.methods or ()):
            continue
        for path in rule.paths:
            # Only a limit may be written with the root that the application takes away from paths.
            tails = (path,) if rule.exempt else _without_roots(path)
            if not any(is_about(rule, tail, place) for tail in tails for place in routes):
                near = closest(path, [_KIND.sub("}", _typed(place)) for place in routes])
                yield Finding(
                    "SG123",
                    f"path {path!r} of rule {rule.label!r} matches no route{near}; write it with the prefix of its "
                    "router, or drop it",
                )


def _may_answer_more(app: Application) -> bool:
    """Return whether an application, or a layer around it, may answer without a route, or change paths."""
    if app.router is None or not app.sure:
        return True
    return any(id(route) not in app.inner and not hasattr(route, "endpoint") for route, _ in app.routes)


def is_about(rule: Rule, path: str, place: ResolvedRoute) -> bool:
    """Return whether some request by a route is one that a path of a rule is about."""
    if rule.connection is not None and rule.connection != place.connection:
        return False
    if rule.methods is not None and place.methods is not None and not rule.methods & place.methods:
        return False
    own = _typed(place)
    return path == "*" or _meet(path, own) or _meet(own, path)


def _meet(path: str, other: str) -> bool:
    """Return whether two paths have one in common, where those of the other's parameters that differ are narrower."""
    pairs = zip_longest(path.split("/"), other.split("/"), fillvalue="{}")
    mixed = "/".join(theirs if "{" in own else own for own, theirs in pairs)
    (pattern, _), (others, _), (_, sample) = map(pattern_and_sample, (path, other, mixed))
    return pattern.match(sample) is not None and others.match(sample) is not None


def _without_roots(path: str) -> Iterator[str]:
    """Yield a path, and what is left of it where a server puts a root before all paths."""
    yield path
    for found in re.finditer("/", path[1:]):
        if not path.startswith("/{", found.end()):
            yield path[found.end() :]


def _typed(place: ResolvedRoute) -> str:
    """Return the path of a route, the kinds of its parameters told where parts of it tell them: ``/items/{id:int}``."""
    template: str = (
        "".join(mount.path_format.removesuffix("/{path}") for mount in place.paths) + place.route.path_format
    )
    if isinstance(place.route, Frontend):
        return template.replace("{path}", "{path:path}")
    typed = "".join(getattr(part, "path", "") for part in (*place.paths, place.route))
    return typed if _KIND.sub("}", typed) == template else template


def about_admin_apps(app: object, select: Callable[[Scope], Selection]) -> Iterator[Finding]:
    """Yield a finding for each dashboard and admin API among the routes of an application that rules count.

    Args:
        app: The application that a middleware guards.
        select: Returns the rules of the middleware that a request meets.
    """
    root = root_of(app)
    for place in dict.fromkeys(_admin_apps(app)):
        counting = _counting(place, root, select)
        if counting:
            names = ", ".join(map(repr, counting[:_MAX_NAMED])) + (", ..." if len(counting) > _MAX_NAMED else "")
            yield Finding(
                "SG122",
                f"the dashboard or admin API at {place!r} is counted by {names}; a client that has spent its limit "
                f'cannot open it: write Rule("{place}/{{rest:path}}", exempt=True) before other rules',
            )


def _counting(place: str, root: str, select: Callable[[Scope], Selection]) -> list[Rule]:
    """Return the rules that count or block requests to an application at a place."""
    found: dict[int, Rule] = {}
    for method, rest in _ASKED:
        path = root + pattern_and_sample(place)[1] + rest
        selection = select({"type": "http", "method": method, "path": path, "root_path": root, "headers": []})
        rules = [bound.rule for bound in selection.limiting]
        rules += [bound.rule for bound, _ in selection.open if bound.rule.counts and bound.rule.action == "limit"]
        if selection.blocked is not None:
            rules.append(selection.blocked)
        found.update((id(rule), rule) for rule in rules)
    return list(found.values())


def _admin_apps(app: object) -> Iterator[str]:
    """Yield the path of each admin application among the routes of an application."""
    top, *_ = applications(app)
    waiting, seen = [("", top)], {top}
    for above, outer in waiting:
        for mount, _ in outer.routes:
            _, inner = outer.inner.get(id(mount), ("", top))
            if inner not in seen:
                seen.add(inner)
                waiting.append((above + getattr(mount, "path", ""), inner))
    places = [(path, inner.layers) for path, inner in waiting[1:]]
    places += [(_typed(place), list(layers(place.route.endpoint))) for place in top.walk()]
    for path, found in places:
        if any(isinstance(layer, AdminApp) for layer in found):
            yield _ALL_BELOW.sub("", path)
