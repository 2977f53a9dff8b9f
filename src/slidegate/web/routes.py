"""The routes below a middleware: those of requests, for `default_limits` and outcomes, and all of them, for a finding.

Routers are not reimplemented: each route's own `matches` is called with a copy of the scope. Anything that raises, or
is not a Starlette route, counts as an unknown application. FastAPI is never imported; its objects are recognised by
their attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from operator import length_hint
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

from starlette._utils import get_route_path
from starlette.routing import PARAM_REGEX, BaseRoute, Host, Match, Mount, compile_path
from starlette.types import Scope

from ..core.memo import remember

UNROUTED: Final = "(no route)"
"""The label of requests that match no route."""
UNKNOWN: Final = "*"
"""The label of a route that is unknown: all requests that reach one are limited together."""
MANY_ROUTES: Final = 50
DEPTH: Final = 64
"""The maximum depth of nested applications; one may be mounted in itself."""
_compiled: Final = lru_cache(1_024)(compile_path)


def attribute_of(thing: object, name: str, default: Any = None) -> Any:
    """Return an attribute of an unknown object; `default` if it is missing or reading it raises."""
    try:
        return getattr(thing, name, default)
    except Exception:
        return default


def layers(app: object, inner: str = "app") -> Iterator[object]:
    """Yield an application and each one that it wraps, from the outside in.

    Args:
        inner: The attribute with the wrapped one; functions have ``__wrapped__``.
    """
    for _ in range(DEPTH):
        if app is None:
            return
        yield app
        app = attribute_of(app, inner)


def root_of(app: object) -> str:
    """Return the `root_path` that an application, or one it wraps, sets itself as FastAPI does; empty if none does."""
    for layer in layers(app):
        if attribute_of(layer, "openapi") is None:  # not FastAPI's, nor like it
            continue
        root = attribute_of(layer, "root_path")
        if isinstance(root, str) and root:
            return root
    return ""


def router_of(app: object) -> Any:
    """Return the router of an application; None if its routes are unknown."""
    for layer in layers(app):
        if attribute_of(layer, "routes") is not None:
            return attribute_of(layer, "router", layer)
    return None


def routes_of(app: object) -> list[Any] | None:
    """Return the routes of an application, with included routers expanded in place; None if they are unknown.

    Behind them stands what takes the requests that no route takes: those of FastAPI's `app.frontend`, and a `default`
    of the router's that is not Starlette's.
    """
    router = router_of(app)
    listed = attribute_of(router, "routes")
    if not isinstance(listed, Sequence) or not all(isinstance(route, BaseRoute) for route in listed):
        return None
    routes = [*_expanded(listed), *attribute_of(router, "_iter_low_priority_routes", tuple)()]
    if attribute_of(router, "default") != attribute_of(router, "not_found"):
        routes.append(Mount("", router.default))
    return routes


def visible_app(app: object, scope: Scope) -> object:
    """Return an application; if a wrapper hides its routes, the application in the scope instead."""
    if "router" in scope or router_of(app) is not None:
        return app
    return scope.get("app", app)


def _expanded(routes: Iterable[Any]) -> Iterator[Any]:
    """Yield each route, with routers that FastAPI includes expanded in place."""
    for route in routes:
        if hasattr(route, "effective_candidates"):
            yield from _expanded(route.effective_candidates())
        else:
            yield getattr(route, "starlette_route", None) or route


class MountedRoute:
    """A route at one of the paths where it is mounted. What needs its path is made when it is asked for.

    Args:
        route: The route, or what stands for an application without visible routes, such as a directory of files.
        above: The path where its router is mounted.

    Attributes:
        above: The path where its router is mounted.
        endpoint: Its endpoint, or this application.
        dependant: What FastAPI knows of its dependencies; None for other routes.
    """

    def __init__(self, route: Any, above: str) -> None:
        self._route = route
        self.above = above
        self.endpoint = attribute_of(route, "endpoint")
        self.dependant = attribute_of(route, "dependant")

    @cached_property
    def path(self) -> str:
        """The full path, in Starlette's syntax."""
        return f"{self.above}{self._route.path}"

    @cached_property
    def methods(self) -> frozenset[str] | None:
        """The methods that it takes; None for all. A handshake is a GET, and a WS."""
        return frozenset(getattr(self._route, "methods", {"GET", "WS"}) or ()) or None

    @cached_property
    def label(self) -> str:
        """The display name: ``GET /items/{id}``; ``*`` for all methods, ``WS`` for a websocket; else `UNKNOWN`."""
        with suppress(Exception):  # no route of Starlette's, or none that can be read
            kind = "WS"
            if hasattr(self._route, "methods"):
                kind = text_of_methods(self.methods or "*")
            return PARAM_REGEX.sub(r"{\1}", f"{kind} {self.path}")
        return UNKNOWN

    def is_at(self, path: str) -> bool:
        """Return whether requests with a path reach it, unless another route takes them."""
        with suppress(ValueError):  # a mount and a route have parameters of one name
            return path.startswith(self.path.partition("{")[0]) and _compiled(self.path)[0].match(path) is not None
        return False


def text_of_methods(methods: Iterable[str]) -> str:
    """Return methods for display, without HEAD beside GET, which includes it."""
    names = {*methods}
    if "GET" in names:
        names.discard("HEAD")
    return ",".join(sorted(names))


def _unknown(app: object, above: str) -> MountedRoute:
    return MountedRoute(SimpleNamespace(endpoint=app, path="/{path:path}", methods=None), above)


def walk(
    app: object, above: str = "", inside: tuple[object, ...] = ()
) -> Iterator[tuple[Any, str, tuple[object, ...]]]:
    """Yield every route of an application and its mounts, each with the path of its router; a mount with its own path.

    Args:
        above: The path where the application is mounted.
        inside: The applications around it, which may be mounted in themselves; they are yielded, too.
    """
    for route in routes_of(app) or ():
        if isinstance(route, (Mount, Host)):
            below = above + getattr(route, "path", "")  # a host, which clients choose, has no part in it
            yield route, below, inside
            if route.app not in inside:
                yield from walk(route.app, below, (*inside, route.app))
        else:
            yield route, above, inside


def mounted_routes(app: object, above: str = "") -> list[MountedRoute]:
    """Return every route below an application, once for each path where it is mounted; none if one cannot be read.

    Args:
        above: The path where the application is mounted.
    """
    routes: list[MountedRoute] = []
    try:
        for route, path, _ in walk(app, above):
            if isinstance(route, (Mount, Host)):
                if routes_of(route.app) is None:
                    routes.append(_unknown(route.app, path))
            elif attribute_of(route, "endpoint") is not None and hasattr(route, "path_format"):
                routes.append(MountedRoute(route, path))
            else:  # a frontend, or of a class of the user's
                routes.append(_unknown(route, path))
    except Exception:
        return []
    return routes


def has_many_routes(app: object) -> bool:
    """Return whether an application has so many routes that a look at all of them takes milliseconds.

    Included routers are counted as they are written: FastAPI takes long to expand them for the first time.
    """
    found: list[Any] = [app]
    with suppress(Exception):
        for thing in found:  # the list grows by what is mounted and included
            found += attribute_of(router_of(attribute_of(thing, "original_router", thing)), "routes", ())
            if len(found) > MANY_ROUTES:
                return True
    return False


def is_by_path(app: object) -> bool:
    """Return whether type, method, path and root of a request determine its route, in an application and its mounts.

    `Host` and classes of routes that are not the frameworks' own may read other parts of a request.
    """
    with suppress(Exception):
        kinds = {type(route) for route, _, _ in walk(app)}
        return Host not in kinds and all(kind.__module__.startswith(("starlette.", "fastapi.")) for kind in kinds)
    return False


def reach(app: object, scope: Scope) -> MountedRoute | None:
    """Return the route that a request reaches, as the routers of an application decide. Never raises.

    Returns:
        The route; None if none matches, or if it cannot be determined.
    """
    above = ""
    with suppress(Exception):  # the application will fail in the same way and report it
        scope = dict(scope)
        for key, value in scope.items():
            if type(value) is dict:  # `matches` may write into it
                scope[key] = dict(value)
        for _ in range(DEPTH):
            root = root_of(app)
            if root:
                scope["root_path"] = root
            router = router_of(app)
            if router is None and above:
                return _unknown(app, above)
            route, additions = _first(attribute_of(router, "routes", ()), scope)
            if route is None:
                return None
            if not isinstance(route, (Mount, Host)):
                return MountedRoute(route, above)
            scope.update(additions)
            app = route.app
            above += getattr(route, "path", "")
    return None


def _first(routes: Iterable[Any], scope: Scope) -> tuple[Any, Scope]:
    """Return the first route that matches a request, else one for other methods, and its additions to the scope."""
    best: tuple[Any, Scope] = (None, {})
    for route in routes:
        match, additions = route.matches(scope)
        if match is Match.NONE or (match is Match.PARTIAL and best[0] is not None):
            continue
        best = (route, additions)
        if hasattr(route, "effective_candidates"):  # a router included by FastAPI
            best = _first(_expanded([route]), scope)
        if match is Match.FULL:
            break
    return best


_RoutesByEndpoint: TypeAlias = dict[int, list[MountedRoute]]
"""The routes of a router, by the identity of their endpoints, which may have no hash. They keep the endpoints alive."""


class RouteLabels:
    """Names the routes that have answered requests, for outcomes and events: a table has those of each router."""

    def __init__(self) -> None:
        # By the identity of a router and the number of its routes, as some may be added later.
        self._tables: dict[tuple[int, int], tuple[object, _RoutesByEndpoint]] = {}
        # Of endpoints at one route, by the identities of router and endpoint.
        self._labels: dict[tuple[int, int], str] = {}

    def read(self, app: object) -> _RoutesByEndpoint:
        """Read the routes of an application or a router, and return them; thousands take a few milliseconds."""
        router = router_of(app)
        # Before the routes are read: one that is added meanwhile asks for another look.
        memo_key = _table_key(router)
        table: _RoutesByEndpoint = {}
        for route in mounted_routes(app):
            table.setdefault(id(route.endpoint), []).append(route)
        remember(self._tables, memo_key, (router, table))
        self._labels.clear()
        return table

    def routes_for(self, scope: Scope) -> Sequence[MountedRoute]:
        """Return the routes of a request's endpoint; none if it is unknown, also after another look."""
        return self._known(scope) or self.read(scope.get("router")).get(id(scope.get("endpoint")), ())

    def _known(self, scope: Scope) -> Sequence[MountedRoute]:
        """Return the routes of a request's endpoint, reading the router again only if its number of routes has changed.

        Some applications make an endpoint for each request.
        """
        router = scope.get("router")
        _, table = self._tables.get(_table_key(router)) or (router, self.read(router))
        return table.get(id(scope.get("endpoint")), ())

    def label(self, scope: Scope) -> str:
        """Return the display name of the route that has answered a request; `UNROUTED` if it is unknown."""
        try:
            memo_key = id(scope["router"]), id(scope["endpoint"])
            return self._labels[memo_key]
        except KeyError:  # the first time; or no router or endpoint, and so no routes
            routes = self._known(scope)
        if not routes:
            return UNROUTED
        if len(routes) > 1:
            return _answering(routes, scope).label
        return remember(self._labels, memo_key, routes[0].label)


def _table_key(router: object) -> tuple[int, int]:
    """Return what the routes of a router are remembered by, until their number changes."""
    return id(router), length_hint(attribute_of(router, "routes"))  # 0 for what is no list of routes


def _answering(routes: Sequence[MountedRoute], scope: Scope) -> MountedRoute:
    """Return the route that has answered a request, of several with its endpoint."""
    path = get_route_path({**scope, "root_path": scope.get("app_root_path", scope.get("root_path"))})
    at_path = [route for route in routes if route.is_at(path)]
    for route in at_path:
        if route.methods is None or scope.get("method", "GET") in route.methods:
            return route
    return (at_path or routes)[0]  # for another method, or rewritten by an application
