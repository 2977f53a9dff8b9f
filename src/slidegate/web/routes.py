"""The routes below a middleware. They serve two purposes: finding the route of a request, and start-up findings.

Routers are not reimplemented: each route's own `matches` is called with a copy of the scope. Anything that raises, or
is not a Starlette route, counts as an unknown application. FastAPI is never imported; its objects are recognised by
their attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from starlette.routing import PARAM_REGEX, BaseRoute, Host, Match, Mount
from starlette.types import Scope

from ..core.memo import remember

UNROUTED: Final = "(no route)"
"""The label of requests that match no route."""
DEPTH: Final = 64
"""The maximum depth of nested applications; one may be mounted in itself."""
_MAX_ROUTERS: Final = 64


def attribute_of(thing: object, name: str, default: Any = None) -> Any:
    """Return an attribute of an unknown object; `default` if it is missing or reading it raises."""
    try:
        return getattr(thing, name, default)
    except Exception:
        return default


def layers(app: object) -> Iterator[object]:
    """Yield an application and each one that it wraps, from the outside in."""
    seen: set[int] = set()
    while app is not None and id(app) not in seen and len(seen) < DEPTH:
        seen.add(id(app))
        yield app
        app = attribute_of(app, "app")


def root_of(app: object) -> str:
    """Return the `root_path` that an application, or one it wraps, sets itself as FastAPI does; empty if none does."""
    roots = [
        attribute_of(layer, "root_path", "") for layer in layers(app) if attribute_of(layer, "openapi") is not None
    ]
    return next((root for root in roots if isinstance(root, str) and root), "")


def router_of(app: object) -> Any:
    """Return the router of an application; None if its routes are unknown."""
    shown = next((layer for layer in layers(app) if attribute_of(layer, "routes") is not None), None)
    return attribute_of(shown, "router", shown)


def routes_of(app: object) -> list[Any] | None:
    """Return the routes of an application, with included routers expanded in place; None if they are unknown."""
    router = router_of(app)
    listed = attribute_of(router, "routes")
    if not isinstance(listed, Sequence) or not all(isinstance(route, BaseRoute) for route in listed):
        return None
    return [*_listed(listed)]


def visible_app(app: object, scope: Scope) -> object:
    """Return an application; if a wrapper hides its routes, the application in the scope instead."""
    return app if "router" in scope or router_of(app) is not None else scope.get("app", app)


def _listed(routes: Iterable[Any]) -> Iterator[Any]:
    """Yield each route, with included routers expanded in place."""
    for route in routes:
        if hasattr(route, "effective_candidates"):
            yield from _listed(route.effective_candidates())
        else:
            yield getattr(route, "starlette_route", None) or route


def is_by_path(app: object, above: tuple[object, ...] = ()) -> bool:
    """Return whether type, method, path and root of a request determine its route, in an application and its mounts."""
    try:
        routes = routes_of(app) or ()
        mounts = [route.app for route in routes if isinstance(route, Mount) and route.app not in above]
        return all(map(_matches_by_path, routes)) and (
            len(above) > DEPTH or all(is_by_path(mounted, (*above, mounted)) for mounted in mounts)
        )
    except Exception:
        return False


def _matches_by_path(route: Any) -> bool:
    """Return whether a route matches only by path: `Host` and custom route classes may use other parts of a request."""
    return type(route).__module__.partition(".")[0] in ("starlette", "fastapi") and not isinstance(route, Host)


@dataclass(eq=False)  # Starlette's routes are not hashable
class MountedRoute:
    """A route at one of the paths where it is mounted.

    Attributes:
        original: The route; None for an application without routes, such as a directory of files.
        endpoint: Its endpoint, or that application.
        path: The full path, in Starlette's syntax.
        connection: ``"http"`` or ``"websocket"``.
        methods: The methods of the route; None for all, and for a websocket.
    """

    original: Any
    endpoint: Any
    path: str
    connection: str = "http"
    methods: frozenset[str] | None = None

    @property
    def template(self) -> str:
        """The path with its parameters in braces, without their convertors."""
        return PARAM_REGEX.sub(r"{\1}", self.path)

    @cached_property
    def label(self) -> str:
        """The display name: ``GET /items/{id}``; ``*`` for all methods, ``WS`` for a websocket."""
        names = ",".join(sorted(self.methods - ({"HEAD"} if "GET" in self.methods else set()))) if self.methods else "*"
        return f"{names if self.connection == 'http' else 'WS'} {self.template}"


def _mounted(route: Any, above: str) -> MountedRoute:
    methods = getattr(route, "methods", None)
    connection = "http" if hasattr(route, "methods") else "websocket"
    path = above + (getattr(route, "path", None) or route.path_format)
    return MountedRoute(route, route.endpoint, path, connection, frozenset(methods) if methods else None)


def _below(mount: Mount | Host, siblings: Iterable[Any]) -> str:
    """Return the prefix that a mount adds to templates. Several hosts of one app add none: clients choose the Host."""
    if isinstance(mount, Mount):
        return mount.path
    alike = [other for other in siblings if isinstance(other, Host) and other.app is mount.app]
    return f"//{mount.host}" if len(alike) == 1 else ""


def mounted_routes(app: object) -> list[MountedRoute]:
    """Return every route of an application, a router, or a wrapper around one, once for each path where it is mounted.

    The walk ends at the first object that cannot be read.
    """
    routes: list[MountedRoute] = []
    try:
        routes.extend(_walk(app, "", ()))
    except Exception:
        return routes
    return routes


def _walk(app: object, above: str, inside: tuple[object, ...]) -> Iterator[MountedRoute]:
    routes = routes_of(app) or ()
    for route in routes:
        if isinstance(route, (Mount, Host)):
            if route.app not in inside and len(inside) < DEPTH:
                yield from _walk(route.app, above + _below(route, routes), (*inside, route.app))
        elif hasattr(route, "endpoint") and hasattr(route, "path_format"):
            yield _mounted(route, above)


class Reached(NamedTuple):
    """The route that a request reaches.

    Attributes:
        route: The route; None if none matches, or if it cannot be determined.
        answers: Whether the route accepts the method; if not, the router answers 405.
    """

    route: MountedRoute | None = None
    answers: bool = True


def reach(app: object, scope: Scope) -> Reached:
    """Return the route that a request reaches, as the routers of an application decide. Never raises."""
    try:
        copy = {key: dict(value) if type(value) is dict else value for key, value in scope.items()}
        return _reach(app, copy, "")
    except Exception:
        return Reached()  # the application will fail in the same way and report it


def _reach(app: object, scope: Scope, above: str, depth: int = 0) -> Reached:
    if depth > DEPTH:
        return Reached()
    root = root_of(app)
    if root:
        scope["root_path"] = root
    router = router_of(app)
    if router is None:
        *_, end = layers(app)
        return Reached(MountedRoute(None, end, f"{above}/{{path:path}}") if above else None)
    route, child, answers = _first(router.routes, scope)
    if isinstance(route, (Mount, Host)):
        scope.update(child)
        return _reach(route.app, scope, above + _below(route, router.routes), depth + 1)
    return Reached(None if route is None else _mounted(route, above), answers)


def _first(routes: Iterable[Any], scope: Scope) -> tuple[Any, Scope, bool]:
    """Return the first route that matches a request, its additions to the scope, and whether the method matches too."""
    found: tuple[Any, Scope, bool] = (None, {}, False)
    for route in routes:
        match, child = route.matches(scope)
        if match is Match.NONE or (match is Match.PARTIAL and found[0] is not None):
            continue
        inner = (route, child, match is Match.FULL)
        if "endpoint" not in child:  # a router included by FastAPI
            inner = _first(route.effective_candidates(), scope)
            inner = (getattr(inner[0], "starlette_route", None) or inner[0], *inner[1:])
        if match is Match.FULL:
            return inner
        found = inner
    return found


class RouteIndex:
    """Finds the routes of requests, for limits at endpoints and for outcomes."""

    def __init__(self) -> None:
        self._routers: dict[int, tuple[Any, int, dict[int, list[MountedRoute]]]] = {}
        self._strangers: dict[int, object] = {}
        self._labels: dict[tuple[int, int], tuple[Any, object, int, str]] = {}

    def find(self, scope: Scope) -> MountedRoute | None:
        """Return the route of a request; None if no router reveals it."""
        candidates = self._candidates(scope)
        if len(candidates) > 1 and (route := scope.get("route")) is not None:  # set by routers since Starlette 1
            candidates = [one for one in candidates if one.original is route] or candidates
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        root = scope.get("app_root_path", scope.get("root_path", ""))
        reached = reach(scope["router"], {**scope, "root_path": root}).route
        return next(
            (one for one in candidates if reached and one.original is reached.original and one.label == reached.label),
            None,
        )

    def label(self, scope: Scope) -> str:
        """Return the display name of a request's route; `UNROUTED` if it is unknown."""
        router: Any = scope.get("router")
        endpoint = scope.get("endpoint")
        known = self._labels.get((id(router), id(endpoint)))
        if known is not None and known[0] is router and known[1] is endpoint and known[2] == len(router.routes):
            return known[3]
        candidates = self._candidates(scope)
        if len(candidates) == 1:
            label = candidates[0].label
            known = router, endpoint, len(router.routes), label
            return remember(self._labels, (id(router), id(endpoint)), known)[3]
        route = self.find(scope)
        return UNROUTED if route is None else route.label

    def _candidates(self, scope: Scope) -> Sequence[MountedRoute]:
        """Return the routes of the endpoint that a request reached; usually one."""
        router, endpoint = scope.get("router"), scope.get("endpoint")
        found = self._routes_below(router).get(id(endpoint))
        if found is None and id(endpoint) not in self._strangers:
            self._routers.pop(id(router), None)  # an included or mounted router may have a new route
            found = self._routes_below(router).get(id(endpoint))
            if found is None:
                remember(self._strangers, id(endpoint), endpoint)
        return found or ()

    def _routes_below(self, router: Any) -> dict[int, list[MountedRoute]]:
        """Return the routes below a router by the ids of their endpoints, which they keep alive."""
        known = self._routers.get(id(router))
        if known is not None and known[0] is router and known[1] == len(router.routes):
            return known[2]
        routes: dict[int, list[MountedRoute]] = {}
        if isinstance(attribute_of(router, "routes"), Sequence):
            for route in mounted_routes(router):
                routes.setdefault(id(route.endpoint), []).append(route)
            remember(self._routers, id(router), (router, len(router.routes), routes), _MAX_ROUTERS)
        return routes
