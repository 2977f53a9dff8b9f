"""Checks of what the routes below a middleware show: honeypots that are served, exemptions, functions, dashboards."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

from starlette.types import Scope

from ..core.bans.policy import BanPolicy
from ..core.errors import closest
from .checks import Checked, Finding
from .decorators import dependencies, is_lifted, takes_no_defaults, unawaited
from .endpoints import RateLimit
from .matching import compile_pattern, overlap, segments
from .routes import Application, Frontend, ResolvedRoute, applications, layers, root_of, router_of, walk
from .rule_set import Selection
from .rules import Rule

_SHOWS_ROUTERS: Final = (0, 137)
"""The first FastAPI whose routes tell by which router they come."""
_NUMBER: Final = re.compile(r"\d+")
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_KIND: Final = re.compile(":[a-z]+}")
_PARAMETER: Final = re.compile(r"\{[^}]*\}")
_ALL_BELOW: Final = re.compile(r"/?\{\w+:path\}\Z")
_ASKED: Final = (("GET", "/"), ("GET", "/api/session"), ("POST", "/api/session"))
_MAX_NAMED: Final = 3


class AdminApp:
    """An application for operators, such as the dashboard. A gate above it says at the start which rules count it."""


def about_honeypots(gate: Checked, policies: Collection[BanPolicy]) -> Iterator[Finding]:
    """Yield the findings about paths that strike, and should not, or never do."""
    for policy in policies:
        for path, weight in policy.signals.items():
            if not isinstance(path, str) or not path.startswith("/"):
                continue
            exempt = _exempting(gate.rules, path)
            at_once = weight == "ban" or weight >= policy.after.amount
            if exempt is not None:
                yield Finding(
                    "SG112",
                    f"path {path!r} of policy {policy.name!r} never strikes: {exempt!r} exempts it; exempt narrower "
                    "paths, or choose another honeypot",
                )
            elif at_once and (label := _served(gate.app, path)):
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
    pattern, _ = compile_pattern(path)
    return next((place.label for place in walk(router_of(app)) if pattern.match(place.template)), "")


def about_exemptions(gate: Checked, app: object) -> Iterator[Finding]:
    """Yield the finding about an endpoint of an application that is exempt from defaults which it does not have."""
    kept = _kept(app)
    if kept is not None:
        yield Finding(
            "SG118",
            f"{kept.label} takes the place of defaults, but of a limit that other routes require too it cannot: before "
            "FastAPI 0.137 nothing tells the limit of a router from that of a route; take a newer FastAPI, or write "
            "the limit at the application",
        )
    if kept is not None or _has_defaults(gate):
        return
    place = next((place for place in walk(app) if _takes_no_defaults(place) and not _lifts(place)), None)
    if place is not None:
        yield Finding(
            "SG118",
            f"{place.label} takes the place of defaults, and there are none: no gate above has default_limits, and no "
            "router or application above requires a RateLimit; limits=, rules and limits at the endpoint apply to "
            'it; write default_limits="60/minute", or Rule(path, exempt=True) before other rules',
        )


def _takes_no_defaults(place: ResolvedRoute) -> bool:
    endpoint = place.route.endpoint
    return any(takes_no_defaults(place.route, endpoint, method) for method in place.methods or _METHODS)


def _lifts(place: ResolvedRoute) -> bool:
    """Return whether there are defaults for a route between it and the application, which are lifted."""
    if any(map(_has_defaults, (*place.mounts, place.route))):
        return True
    return any(is_lifted(limit, place) for limit in _limits_of(place))


def _kept(app: object) -> ResolvedRoute | None:
    """Return a route whose exemption leaves a limit of a router as it is, because this FastAPI shows no routers."""
    version = _NUMBER.findall(getattr(sys.modules.get("fastapi"), "__version__", ""))[:2]
    if not version or tuple(map(int, version)) >= _SHOWS_ROUTERS:
        return None
    places = list(walk(app))
    counts = Counter(limit for place in places for limit in _limits_of(place) if not limit.override)
    for place in filter(_takes_no_defaults, places):
        if any(counts[limit] > 1 and not is_lifted(limit, place) for limit in _limits_of(place)):
            return place
    return None


def _limits_of(place: ResolvedRoute) -> set[RateLimit]:
    """Return the limits that FastAPI asks before an endpoint."""
    return {call for call in dependencies(place.route) if isinstance(call, RateLimit)}


def _has_defaults(above: Any) -> bool:
    """Return whether a gate with `default_limits` is among the layers around an application, or may be."""
    for layer in layers(above):
        if getattr(layer, "default_limits", ()):
            return True
        for _, _, options in getattr(layer, "user_middleware", ()):
            # An application makes its middlewares at its first request. A file may have `default_limits` too.
            if options.get("default_limits") is not None or "path" in options:
                return True
    return False


def about_callers(app: object) -> Iterator[Finding]:
    """Yield the findings about functions that call a limited one and cannot await it."""
    for caller, name in unawaited(app):
        yield Finding(
            "SG121",
            f"{caller!r} calls {name!r}, which @RateLimit made a coroutine function, so neither it nor its limit runs; "
            "write `async def` for both, and await it, or put limiter.limited(...) in the place of RateLimit",
        )


def about_unmet_rules(gate: Checked) -> Iterator[Finding]:
    """Yield a finding for each rule whose paths lead to no route of the application.

    It is silent where something may answer that shows no routes, and about rules that meet scanners: those that block
    or track, nor about rules for preflights.
    """
    routes = list(walk(gate.app))
    if not routes or any(map(_may_answer_more, applications(gate.app))):
        return
    for rule in gate.rules:
        if not rule.patterns or rule.action in ("block", "track") or "OPTIONS" in (rule.methods or ()):
            continue
        for path in rule.paths:
            if not any(is_about(rule, tail, place) for tail in _without_roots(path) for place in routes):
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
    return path == "*" or overlap(segments(path), segments(_typed(place)))


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
        app: The application that a gate guards.
        select: Returns the rules of the gate that a request meets.
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
        path = root + _PARAMETER.sub("1", place) + rest
        selection = select({"type": "http", "method": method, "path": path, "root_path": root, "headers": []})
        rules = [bound.rule for bound in selection.limiting]
        rules += [rule for rule, bound, _ in selection.open if bound is not None and rule.action == "limit"]
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
