"""The routes below a middleware, each with its whole template and the routers above it, and which a request came by.

Routers keep their routes as a tree of mounts, hosts and, in FastAPI since 0.137, included routers. Neither the path of
a request nor ``scope["route"]`` tells the whole template (a mount hides what it matched), so the tree is walked once
and a request is looked up in it by its endpoint. FastAPI is never imported; its objects are known by their attributes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from starlette.routing import Host, Match, Mount
from starlette.types import Scope

from .matching import route_path
from .routers import Routes, layers, own_root, router_of, scope_to_ask

_DEPTH: Final = 16
_FRONTEND: Final = 0
"""Stands for the endpoint of frontends, which have none; no object has this id."""


class Required(NamedTuple):
    """A dependency that an application, a router or its inclusion requires of all routes below.

    Attributes:
        dependency: What FastAPI calls.
        where: The path where the routes begin.
        depth: How far in it stands; the same for all that one of them requires.
    """

    dependency: object
    where: str
    depth: int


class Frontend:
    """Stands for a route where FastAPI serves files because no route matches (`app.frontend`).

    Args:
        path: The path below which the files are, ``"/"`` for all.
    """

    endpoint = None
    methods = ("GET", "HEAD")

    def __init__(self, path: str) -> None:
        self.path = self.path_format = f"{path.rstrip('/')}/{{path}}"
        self.path_regex = re.compile(f"{re.escape(path.rstrip('/'))}(?:/.*)?\\Z", re.DOTALL)


@dataclass(eq=False, slots=True)  # a route of Starlette's cannot be hashed
class ResolvedRoute:
    """A route, and the way to it.

    Attributes:
        mounts: The mounts and hosts on the way, the outermost first.
        route: The route, or the object that FastAPI makes of a route of an included router.
        above: The dependencies that routers and applications on the way require, the outermost first.
        template: The path from the top, its parameters in braces.
        methods: The methods of the route; None for all, and for a websocket.
        label: A name for people to read: ``GET /items/{id}``.
    """

    mounts: tuple[Mount | Host, ...]
    route: Any
    above: tuple[Required, ...]
    template: str
    methods: frozenset[str] | None
    label: str

    @property
    def connection(self) -> str:
        """``"http"`` or ``"websocket"``."""
        return "http" if hasattr(self.route, "methods") else "websocket"

    def leads(self, method: str, path: str) -> bool:
        """Return whether a request comes by this route; `path` is the one that the outermost router sees."""
        if self.methods is not None and method not in self.methods:
            return False
        rest = self.rest(path)
        return rest is not None and self.route.path_regex.match(rest) is not None

    def rest(self, path: str) -> str | None:
        """Return the part of an ordinary path that the mounts on the way leave; None if they do not match it."""
        for mount in self.mounts:
            if isinstance(mount, Mount):
                found = mount.path_regex.match(path)
                if found is None:
                    return None
                path = "/" + found["path"]
        return path

    def takes(self, scope: Scope) -> bool:
        """Return whether a request comes by this route; each mount on the way is asked itself.

        Args:
            scope: The scope that the outermost router sees.
        """
        scope = scope_to_ask(scope)
        for mount in self.mounts:
            match, child = mount.matches(scope)
            if match is not Match.FULL:
                return False
            scope.update(child)
            for layer in layers(mount.app):
                scope["root_path"] = own_root(layer) or scope["root_path"]
        if isinstance(self.route, Frontend):
            return self.route.path_regex.match(route_path(scope)) is not None
        return bool(self.route.matches(scope)[0] is Match.FULL)


def methods_of(route: Any) -> str:
    """Return the methods of a route for people to read: ``GET,POST``, ``*`` for all, ``WS`` for a websocket."""
    methods = getattr(route, "methods", None)
    names = ",".join(sorted(set(methods) - ({"HEAD"} if "GET" in methods else set()))) if methods else "*"
    return names if hasattr(route, "methods") else "WS"


def walk(app: object) -> Iterator[ResolvedRoute]:
    """Yield every route of an application, a router, or a wrapper around one."""
    yield from _below(app, ())


class _Known(NamedTuple):
    """The routes below a router by the id of their endpoints, and how to tell whether there are others by now."""

    router: object
    by_endpoint: dict[int, list[ResolvedRoute]]
    routes: Routes
    version: int


class RouteIndex:
    """Finds the route of a request."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}

    def find(self, scope: Scope) -> ResolvedRoute | None:
        """Return the route that a request came by; None where no router tells it."""
        found = self.candidates(scope)
        if len(found) <= 1:
            return found[0] if found else None
        if _at_frontend(scope):
            found = sorted(found, key=lambda resolved: len(resolved.template), reverse=True)  # as FastAPI chooses
        root = scope.get("app_root_path", scope.get("root_path", ""))
        top = {**scope, "root_path": root}
        taking = next((resolved for resolved in found if resolved.takes(top)), None)
        # One application on two hosts is one route.
        return next((resolved for resolved in found if taking is not None and _same_path(resolved, taking)), None)

    def candidates(self, scope: Scope) -> list[ResolvedRoute]:
        """Return the routes of the endpoint that a request reached: one, unless several routes lead there."""
        router, endpoint = scope.get("router"), scope.get("endpoint")
        at = _FRONTEND if _at_frontend(scope) else id(endpoint)
        if router is None or (endpoint is None and at != _FRONTEND):
            return []
        known = self._known.get(id(router)) or self._learn(router)
        # A function that has a route already may get another one, also in a router that is included.
        if at not in known.by_endpoint or known.routes.current() != known.version:
            known = self._learn(router)
        return known.by_endpoint.get(at, [])

    def below(self, scope: Scope, dependency: object) -> list[ResolvedRoute]:
        """Return the routes below the router or application that requires `dependency`."""
        by_endpoint = self._known[id(scope["router"])].by_endpoint
        all_routes = (resolved for found in by_endpoint.values() for resolved in found)
        return [
            resolved for resolved in all_routes if any(required.dependency is dependency for required in resolved.above)
        ]

    def _learn(self, router: object) -> _Known:
        known = self._known.get(id(router))
        routes = Routes(router) if known is None else known.routes
        by_endpoint: dict[int, list[ResolvedRoute]] = {}
        version = routes.current()
        for resolved in walk(router):
            endpoint = resolved.route.endpoint
            by_endpoint.setdefault(_FRONTEND if endpoint is None else id(endpoint), []).append(resolved)
        learned = self._known[id(router)] = _Known(router, by_endpoint, routes, version)
        return learned


def _below(app: Any, mounts: tuple[Mount | Host, ...]) -> Iterator[ResolvedRoute]:
    """Walk an application, through the layers wrapped around it."""
    app = router_of(app)
    circle = any(mount.app is mounts[-1].app for mount in mounts[:-1])
    if app is not None and not circle and len(mounts) < _DEPTH:
        router = getattr(app, "router", app)
        required = _with((), getattr(router, "dependencies", None), _prefix(mounts))
        yield from _level(app.routes, mounts, required)
        yield from _frontends(router, "", mounts, required)


def _level(
    routes: Iterable[Any], mounts: tuple[Mount | Host, ...], above: tuple[Required, ...]
) -> Iterator[ResolvedRoute]:
    for listed in routes:
        if hasattr(listed, "effective_candidates"):
            included, router = listed.include_context, listed.original_router
            where = f"{_prefix(mounts)}{included.prefix}{router.prefix}"
            required = _with(_with(above, _own(included.dependencies, above), where), router.dependencies, where)
            yield from _level(listed.effective_candidates(), mounts, required)
            yield from _frontends(router, included.prefix, mounts, required)
            continue
        route = getattr(listed, "starlette_route", None) or listed
        if isinstance(route, (Mount, Host)):
            # The dependencies of a router end at a mount: the application there is called as it is.
            yield from _below(route.app, (*mounts, route))
        elif hasattr(route, "endpoint") and hasattr(route, "path_format"):
            yield _resolved(route, mounts, above)


def _frontends(
    router: Any, prefix: str, mounts: tuple[Mount | Host, ...], above: tuple[Required, ...]
) -> Iterator[ResolvedRoute]:
    for group in getattr(router, "_low_priority_routes", ()):
        for served in getattr(group, "routes", ()):
            yield _resolved(Frontend(f"{prefix}{served.path}"), mounts, above)


def _resolved(route: Any, mounts: tuple[Mount | Host, ...], above: tuple[Required, ...]) -> ResolvedRoute:
    template = f"{_prefix(mounts)}{route.path_format}"
    methods = getattr(route, "methods", None)
    label = f"{methods_of(route)} {template}"
    return ResolvedRoute(mounts, route, above, template, frozenset(methods) if methods else None, label)


def _same_path(one: ResolvedRoute, other: ResolvedRoute) -> bool:
    """Return whether two routes differ by their hosts at most."""
    mounts = [[mount for mount in resolved.mounts if isinstance(mount, Mount)] for resolved in (one, other)]
    return one.route is other.route and mounts[0] == mounts[1]


def _at_frontend(scope: Scope) -> bool:
    return "frontend_path" in scope.get("fastapi", ())


def _with(above: tuple[Required, ...], dependencies: Iterable[Any] | None, where: str) -> tuple[Required, ...]:
    depth = len(above)
    return *above, *(Required(getattr(depends, "dependency", None), where, depth) for depends in dependencies or ())


def _own(dependencies: Sequence[Any], above: Iterable[Required]) -> Sequence[Any]:
    """Return what an inclusion requires itself: its dependencies begin with those that stand further out."""
    outer = 0
    for required in above:
        if outer < len(dependencies) and getattr(dependencies[outer], "dependency", None) is required.dependency:
            outer += 1
    return dependencies[outer:]


def _prefix(mounts: Iterable[Mount | Host]) -> str:
    return "".join(
        mount.path_format.removesuffix("/{path}") if isinstance(mount, Mount) else f"//{mount.host}" for mount in mounts
    )
