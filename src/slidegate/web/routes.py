"""The routes below a middleware. They serve two purposes: finding the route of a request, and start-up findings.

Routers are not reimplemented: each route's own `matches` is called with a copy of the scope. Anything that raises, or
is not a Starlette route, counts as an unknown application. FastAPI is never imported; its objects are recognised by
their attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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
    return [route for route, _ in _listed(listed, ())]


def visible_app(app: object, scope: Scope) -> object:
    """Return an application; if a wrapper hides its routes, the application in the scope instead."""
    return app if "router" in scope or router_of(app) is not None else scope.get("app", app)


class Required(NamedTuple):
    """A dependency of all routes below an application, a router or an inclusion, and the path prefix of the routes."""

    dependency: object
    where: str


def _listed(routes: Iterable[Any], above: tuple[Required, ...]) -> Iterator[tuple[Any, tuple[Required, ...]]]:
    """Yield each route, with included routers expanded in place, and the dependencies of the routers around it."""
    for route in routes:
        if not hasattr(route, "effective_candidates"):
            yield getattr(route, "starlette_route", None) or route, above
            continue
        context, inner = route.include_context, route.original_router
        # The dependencies of an inclusion start with those of outer routers.
        known = {id(required.dependency) for required in above}
        given = [depends.dependency for depends in (*context.dependencies, *inner.dependencies)]
        where = context.prefix + inner.prefix
        added = tuple(Required(dependency, where) for dependency in given if id(dependency) not in known)
        yield from _listed(route.effective_candidates(), above + added)


@dataclass
class Application:
    """The facts about an application that matter for matching paths; collected once.

    Attributes:
        root: The `root_path` that it sets itself.
        opaque: Whether it serves files or is unknown, so that a final slash may make no difference.
        by_path: Whether type, method, path and root of a request determine its route, there and in all mounts.
        mounts: The applications that are mounted in it.
        path: The path at which it is mounted itself.
        rest: Returns the rest of a path after its mount; None if the path does not lead there.
    """

    root: str = ""
    opaque: bool = True
    by_path: bool = False
    mounts: list[Application] = field(default_factory=list)
    path: str = ""
    rest: Callable[[str], str | None] = str

    @classmethod
    def of(cls, app: object, above: tuple[object, ...] = ()) -> Application:
        """Collect an application and everything mounted in it; an application that cannot be read is unknown."""
        try:
            routes = routes_of(app)
            known = cls(root_of(app), routes is None or _serves_files(router_of(app)))
            known.by_path = all(map(_matches_by_path, routes or ()))
            for mount in routes or ():
                if isinstance(mount, (Mount, Host)) and mount.app not in above and len(above) < DEPTH:
                    below = cls.of(mount.app, (*above, mount.app))
                    below.path, below.rest = mount.path if isinstance(mount, Mount) else "", _rest_of(mount)
                    known.mounts.append(below)
                    known.by_path = known.by_path and below.by_path
        except Exception:
            return cls()
        return known


def _matches_by_path(route: Any) -> bool:
    """Return whether a route matches only by path: `Host` and custom route classes may use other parts of a request."""
    return type(route).__module__.partition(".")[0] in ("starlette", "fastapi") and not isinstance(route, Host)


def _rest_of(mount: Mount | Host) -> Callable[[str], str | None]:
    if isinstance(mount, Host):
        return lambda path: path
    matched = mount.path_regex.match

    def rest(path: str) -> str | None:
        match = matched(path)
        return None if match is None else "/" + match["path"]

    return rest


def _serves_files(router: Any) -> bool:
    """Return whether FastAPI serves files if no route of a router matches (`app.frontend`)."""
    return bool(getattr(router, "_low_priority_routes", ())) or any(
        _serves_files(route.original_router) for route in router.routes if hasattr(route, "original_router")
    )


@dataclass(eq=False)  # Starlette's routes are not hashable
class MountedRoute:
    """A route at one of the paths where it is mounted.

    Attributes:
        original: The route; None for an application without routes, such as a directory of files.
        endpoint: Its endpoint, or that application.
        path: The full path, in Starlette's syntax.
        connection: ``"http"`` or ``"websocket"``.
        methods: The methods of the route; None for all, and for a websocket.
        above: The dependencies of the routers and applications around it, the outermost first.
        inside: The mounted applications around it, the outermost first.
    """

    original: Any
    endpoint: Any
    path: str
    connection: str = "http"
    methods: frozenset[str] | None = None
    above: tuple[Required, ...] = ()
    inside: tuple[object, ...] = ()

    @property
    def template(self) -> str:
        """The path with its parameters in braces, without their convertors."""
        return PARAM_REGEX.sub(r"{\1}", self.path)

    @cached_property
    def label(self) -> str:
        """The display name: ``GET /items/{id}``; ``*`` for all methods, ``WS`` for a websocket."""
        names = ",".join(sorted(self.methods - ({"HEAD"} if "GET" in self.methods else set()))) if self.methods else "*"
        return f"{names if self.connection == 'http' else 'WS'} {self.template}"


def _mounted(
    route: Any, above: str, required: Iterable[Required] = (), inside: tuple[object, ...] = ()
) -> MountedRoute:
    methods = getattr(route, "methods", None)
    connection = "http" if hasattr(route, "methods") else "websocket"
    there = tuple(Required(dependency, above + where) for dependency, where in required)
    taken = frozenset(methods) if methods else None
    path = above + (getattr(route, "path", None) or route.path_format)
    return MountedRoute(route, route.endpoint, path, connection, taken, there, inside)


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
    router, routes = router_of(app), routes_of(app)
    own = tuple(Required(depends.dependency, "") for depends in getattr(router, "dependencies", None) or ())
    for route, required in _listed(router.routes, own) if routes is not None else ():
        if isinstance(route, (Mount, Host)):
            if route.app not in inside and len(inside) < DEPTH:
                yield from _walk(route.app, above + _below(route, routes or ()), (*inside, route.app))
        elif hasattr(route, "endpoint") and hasattr(route, "path_format"):
            yield _mounted(route, above, required, inside)


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
        route = self.find(scope)
        return UNROUTED if route is None else route.label

    def labels_below(self, scope: Scope, dependency: object) -> tuple[str, list[str]] | None:
        """Return the path prefix and the labels of the routes that share a dependency; None if none is shared."""
        routes = [route for routes in self._routes_below(scope.get("router")).values() for route in routes]
        requiring = [(route.label, required) for route in routes for required in route.above]
        found = [(label, required) for label, required in requiring if required.dependency is dependency]
        return (found[0][1].where, sorted({label for label, _ in found})) if found else None

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
