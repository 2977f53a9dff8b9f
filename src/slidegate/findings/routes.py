"""Findings about routes: paths and methods of rules that none takes, decorators and CORS in the wrong order."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.routing import PARAM_REGEX, compile_path

from ..core.errors import closest
from ..core.exceeded import RateLimitExceeded
from ..web.endpoint_limits import rules_of_route
from ..web.policy import Policy
from ..web.routes import (
    MountedRoute,
    added_middlewares,
    attribute_of,
    layers,
    mounted_routes,
    reach_path,
    routes_of,
)
from ..web.rules import Rule
from .decorated import is_bare, wrapped_by
from .report import Finding

_compiled: Final = lru_cache(compile_path)
_USUAL_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
"""The methods that nothing but a route answers: not OPTIONS and HEAD, nor those of WebDAV and of caches."""


def about_unknown_application(policy: Policy, app: object) -> Iterator[Finding]:
    """Yield the finding about limits of each route around an application whose routes are unknown."""
    if policy.default_rule is not None and routes_of(app) is None:
        yield Finding(
            "SG126",
            "default_limits are around an unknown application, whose routes cannot be read: all requests of a "
            'client share one bucket; write rules, such as Rule("/login", "5/minute")',
        )


# -- paths -------------------------------------------------------------------------------------------------------------


def about_unmet_paths(rules: Sequence[Rule], app: object, routes: Sequence[MountedRoute]) -> Iterator[Finding]:
    """Yield the findings about paths of rules that no route meets. Rules that block are meant for scanners."""
    if routes_of(app) is None:
        return
    known = [route.path for route in routes]
    for rule in rules:
        if rule.action.blocks:
            continue
        for rule_path in rule.matching.rule_paths:
            path = rule_path.path
            if not _is_met(app, path, known):
                remedy = _remedy(app, path, known)
                yield Finding("SG123", f"path {path!r} of rule {rule.label!r} matches no route; {remedy}")


def _remedy(app: object, path: str, known: Sequence[str]) -> str:
    """Return what to do about a path that no route meets."""
    starts = [slash.start() for slash in re.finditer("/(?!{)", path)]
    for start in starts[1:]:
        tail = path[start:]
        if _is_met(app, tail, known):
            return f"rules have no root_path: write {tail!r}"
    others = [other for other in known if other != path]  # it may be known, and hidden by a mount above it
    return f"write it with the prefix of its router, or remove it{closest(path, others)}"


def _is_met(app: object, path: str, known: Sequence[str]) -> bool:
    """Return whether a route may take a path: the routers decide, or if it has parameters, the paths of the routes."""
    if "{" in path:
        return any(may_meet(path, other) for other in known)
    if reach_path(app, path, "GET") is not None:
        return True
    return reach_path(app, path, "GET", "websocket") is not None


def may_meet(path: str, other: str) -> bool:
    """Return whether a request may match two paths, compared segment by segment."""
    for own, theirs in zip_longest(path.split("/"), other.split("/"), fillvalue=""):
        if ":path}" in own + theirs:
            return True
        if not _segments_meet(own, theirs):
            return False
    return True


def _segments_meet(one: str, other: str) -> bool:
    """Return whether a segment of a request may match two segments, of which each may be a parameter."""
    if one == other:
        return True
    if "{" in one and "{" in other:
        return True
    if "{" in one:
        return _compiled(f"/{one}")[0].match(f"/{other}") is not None
    if "{" in other:
        return _compiled(f"/{other}")[0].match(f"/{one}") is not None
    return False


# -- methods -----------------------------------------------------------------------------------------------------------


def about_methods(rules: Iterable[Rule], routes: Sequence[MountedRoute]) -> Iterator[Finding]:
    """Yield the findings about methods of rules that no route of exactly their paths takes."""
    shapes = {_shape(route.path) for route in routes if ":path}" not in route.path}
    for rule in rules:
        methods = rule.matching.methods
        if methods is None or rule.action.blocks:  # rules that block are meant for scanners
            continue
        paths = [path.path for path in rule.matching.rule_paths]
        if not paths or not shapes.issuperset(map(_shape, paths)):
            continue
        taken = _methods_taken(paths, routes)
        untaken = methods - taken
        missing = [method for method in _USUAL_METHODS if method in untaken]
        if missing:
            yield Finding(
                "SG136",
                f"rule {rule.label!r} is for {', '.join(missing)}, which no route of its path takes; they take "
                f"{', '.join(sorted(taken - {'HEAD'}))}",
            )


def _methods_taken(paths: Sequence[str], routes: Sequence[MountedRoute]) -> frozenset[str]:
    """Return the methods of the routes that requests to some paths may reach."""
    taken: set[str] = set()
    for route in routes:
        if not any(may_meet(path, route.path) for path in paths):
            continue
        if route.methods is None:  # an endpoint of all methods, or an application whose routes cannot be read
            return frozenset(_USUAL_METHODS)
        taken |= route.methods
    return frozenset(taken)


def _shape(path: str) -> str:
    """Return a path without the names of its parameters, but with their types: ``/items/{:int}``."""
    return PARAM_REGEX.sub(lambda found: "{" + (found[2] or "") + "}", path)


# -- decorators and layers ---------------------------------------------------------------------------------------------


def about_decorators(routes: Sequence[MountedRoute]) -> Iterator[Finding]:
    """Yield the findings about limits that were put around a function after its route had taken it."""
    within = {id(inner) for route in routes for inner in wrapped_by(route.endpoint)}
    for route in routes:
        if is_bare(route.endpoint) and id(route.endpoint) not in within:
            yield Finding(
                "SG137",
                f"@RateLimit stands above the decorator of route {route.label!r}, which has taken the function without "
                "the limit, so nothing is counted; write @RateLimit below it, directly above the function",
            )


def about_cors_within(policy: Policy, app: object) -> Iterator[Finding]:
    """Yield the finding about CORS within: answers of this middleware lack its header fields."""
    if policy.refusals.on_refused is not None or not _refuses(policy):
        return
    if any(map(_is_cors, layers(app))):
        yield Finding(
            "SG138",
            "CORSMiddleware is inside this middleware, so browsers hide its refusals from scripts: they see a network "
            "error in place of 429; add CORSMiddleware outside, which is after this middleware",
        )


def about_handlers(app: object) -> Iterator[Finding]:
    """Yield the finding about an exception handler that a refusal at an endpoint does not reach.

    FastAPI has an `HTTPException` of its own, and another handler for Starlette's, which a refusal is.
    """
    handlers: Mapping[Any, Any] = attribute_of(app, "exception_handlers", {})
    own = [kind for kind in handlers if isinstance(kind, type) and issubclass(kind, HTTPException)]
    if not any(kind.__module__ == "fastapi.exceptions" for kind in own):
        return
    # These answer refusals, so that nothing is missed.
    if RateLimitExceeded in handlers or 429 in handlers:
        return
    # So does one of Starlette's, unless it is that which FastAPI sets itself.
    if attribute_of(handlers.get(HTTPException), "__module__") != "fastapi.exception_handlers":
        return
    within = mounted_routes(app, _is_without_handlers)
    if any(rules_of_route(route.endpoint, route.dependant) for route in within):
        yield Finding(
            "SG141",
            "the handler of fastapi.HTTPException answers no refusal of a limit at an endpoint, which is Starlette's "
            "HTTPException, as are the router's 404 and 405; write @app.exception_handler(RateLimitExceeded), or that "
            "of starlette.exceptions.HTTPException in its place",
        )


def _is_without_handlers(route: object) -> bool:
    """Return whether no application with exception handlers of its own is mounted at a route."""
    return all(attribute_of(layer, "exception_handlers") is None for layer in layers(attribute_of(route, "app")))


def _refuses(policy: Policy) -> bool:
    """Return whether a middleware refuses requests itself, beside limits at endpoints, which are within."""
    if policy.default_rule is not None or policy.lists["blocklist"] is not None:
        return True
    if any(not one.shadow for one in policy.signals.ban_policies.values()):
        return True
    for rule in policy.rules.given:
        if rule.action.blocks:
            return True
        if rule.counts and not rule.action.is_shadow:
            return True
    return False


def _is_cors(layer: object) -> bool:
    """Return whether an application is CORSMiddleware, or one that will put it around its routes."""
    cors: Any = attribute_of(sys.modules.get("starlette.middleware.cors"), "CORSMiddleware")
    if cors is None:  # who has not imported it does not use it
        return False
    kinds = [type(layer), *(added.cls for added in added_middlewares(layer))]
    return any(issubclass(kind, cors) for kind in kinds)
