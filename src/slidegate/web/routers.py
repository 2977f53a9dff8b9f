"""The routers below a middleware: where they would lead a request, and what mounts make of a path.

Routers are not imitated: each is asked with a copy of the scope, in its own order, and the `matches` of a mount says
which scope it hands on. So a reading that only one version of one router knows is found too: a mount of Starlette's
loses count where the path does not begin with the root, also where the application below gives itself another root, and
where a path ends in a newline. The application below it then reads another part of the path, or all of it again.

FastAPI is never imported; its objects are known by their attributes. An application may be mounted in itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from functools import cached_property
from itertools import count
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from starlette.routing import Host, Match, Mount
from starlette.types import Scope

from .matching import Convertors, PathIndex, regex_of, route_path

T = TypeVar("T")
Written: TypeAlias = tuple[str, Convertors]
"""A path in Starlette's syntax, and the convertors of its parameters."""

DEPTH: Final = 64
"""How far down applications in applications are followed."""
_KNOWN: Final = frozenset({"starlette", "fastapi", "slidegate"})
_FLAGS: Final = re.compile("").flags
_PARAMETER: Final = re.compile(r"\{(\w+)\}")
_ALL_BELOW: Final = "/{path:path}"
_versions: Final = count(1)


def layers(app: object) -> Iterator[object]:
    """Yield an application and each one that it wraps, from the outside in."""
    seen: set[int] = set()
    while app is not None and id(app) not in seen:
        seen.add(id(app))
        yield app
        app = getattr(app, "app", None)


def own_root(app: object) -> str:
    """Return the `root_path` that an application gives itself, as FastAPI does; empty for none."""
    root = getattr(app, "root_path", "") if hasattr(app, "openapi") else ""
    return root if isinstance(root, str) else ""


def root_of(app: object) -> str:
    """Return the `root_path` that an application, or one that it wraps, gives itself; empty for none."""
    return next(filter(None, map(own_root, layers(app))), "")


def router_of(app: object) -> Any:
    """Return the first layer of an application that shows its routes; None if none does."""
    return next((layer for layer in layers(app) if hasattr(layer, "routes")), None)


def scope_to_ask(scope: Scope) -> Scope:
    """Return a copy of a scope that routes may write to."""
    return {key: dict(value) if type(value) is dict else value for key, value in scope.items()}


def flat_routes(routes: Iterable[Any]) -> Iterator[Any]:
    """Yield routes; those of an included router come in its place."""
    for listed in routes:
        if hasattr(listed, "effective_candidates"):
            yield from flat_routes(listed.effective_candidates())
        else:
            yield getattr(listed, "starlette_route", None) or listed


def is_known(thing: object) -> bool:
    """Return whether a thing is of a class of Starlette, FastAPI or this package."""
    return is_known_module(type(thing).__module__)


def is_known_module(module: str) -> bool:
    """Return whether a module is of Starlette, FastAPI or this package."""
    return module.partition(".")[0] in _KNOWN


def mounted(app: object) -> Iterator[tuple[str, object]]:
    """Yield the path and the application of each mount and host below an application."""
    waiting: list[tuple[str, object]] = [("", app)]
    seen = {id(app)}
    for above, outer in waiting:
        router = router_of(outer)
        for route in flat_routes(router.routes) if router is not None else ():
            if isinstance(route, (Mount, Host)):
                place = above + (route.path if isinstance(route, Mount) else ""), route.app
                yield place
                if id(route.app) not in seen:
                    seen.add(id(route.app))
                    waiting.append(place)


class RoutesByPath(Generic[T]):
    """Finds the routes that may take a path, among thousands, without asking each.

    Args:
        routes: The routes, or whatever stands for them, in their order.
        written: Returns the path of one; None where it may take any.
    """

    def __init__(self, routes: Iterable[T], written: Callable[[T], Written | None]) -> None:
        self._routes = tuple(routes)
        self._always: list[int] = []
        self._index: PathIndex[int] = PathIndex()
        for place, route in enumerate(self._routes):
            found = written(route)
            if found is None:
                self._always.append(place)
            else:
                self._index.add(*found, place)

    def find(self, path: str) -> Sequence[T]:
        """Return the routes that may take a path, in their order; some of them do not."""
        return [self._routes[place] for place in sorted({*self._always, *self._index.find(path)})]


def written_of(route: Any) -> Written | None:
    """Return the path by which a route can be found: its pattern is the one that Starlette makes of the path."""
    path, convertors = getattr(route, "path", None), getattr(route, "param_convertors", None)
    pattern = getattr(route, "path_regex", None)
    if isinstance(route, Host) or not isinstance(path, str) or convertors is None or pattern is None:
        return None
    if isinstance(route, Mount):
        path += _ALL_BELOW
    own = is_known_module(getattr(getattr(type(route), "matches", None), "__module__", ""))
    alike = own and (pattern.pattern, pattern.flags) == (regex_of(path, convertors), _FLAGS)
    return (path, convertors) if alike else None


class Reached(NamedTuple):
    """The end of a request's way through the routers.

    Attributes:
        route: The route; None for an application without routes, such as a directory of files.
        sure: Whether everything on the way is known, so nothing can have changed the path unseen.
        written: The path as the mounts and the route are written, with the hosts on the way:
            ``//api.example.org/items/{id:int}``.
        end: The endpoint of the route, or the application without routes; None for a route that tells no endpoint.
        answers: Whether the route takes the method too; where it does not, the router answers 405.
    """

    route: Any
    sure: bool
    written: str
    end: Any = None
    answers: bool = True


class _Application:
    """An application, as mounts lead to it.

    Attributes:
        app: The application without what is wrapped around it, where it has routes.
        router: What holds its routes; None where they cannot be seen.
        root: The `root_path` that it gives itself.
        sure: Whether it and all that is wrapped around it is known.
        drops_slash: Whether it may answer a path with a final slash as it does without: it serves files, or is unknown.
        by_path: Whether type, method, path and root of a request tell which of its own routes takes it.
        inner: The applications of its mounts and hosts, by the id of the mount, each with how that is written.
        lists: The lists of its own routes and those of included routers.
    """

    def __init__(self, app: object, seen: dict[int, _Application]) -> None:
        seen[id(app)] = self
        shown = router_of(app)
        self.app: object = None
        self.sure = True
        for layer in layers(app):
            self.app = layer
            self.sure &= is_known(layer)
            if layer is shown:
                break
        self.root = root_of(app)
        self.inner: dict[int, tuple[str, _Application]] = {}
        self.lists: list[Sized] = []
        self.router = None if shown is None else getattr(shown, "router", shown)
        self.by_path = self.drops_slash = True
        if shown is None:
            return
        wrapped = [made.cls for made in getattr(shown, "user_middleware", ())]
        bare = getattr(self.router, "middleware_stack", None) in (None, getattr(self.router, "app", None))
        self.sure &= is_known(self.router) and bare and all(is_known_module(cls.__module__) for cls in wrapped)
        self.drops_slash = bool(getattr(self.router, "_low_priority_routes", ()))
        self._list(self.router)
        routes = list(flat_routes(shown.routes))
        self._routes = routes
        self.by_path = all(map(_looks_at_the_path, routes))
        mounts = [route for route in routes if isinstance(route, (Mount, Host))]
        # A client writes what it likes into the Host header, so two names of one application are no two places.
        shared = [id(getattr(mount, "_base_app", mount.app)) for mount in mounts]
        for mount in mounts:
            written = mount.path if isinstance(mount, Mount) else f"//{mount.host}"
            if isinstance(mount, Host) and shared.count(id(getattr(mount, "_base_app", mount.app))) > 1:
                written = ""
            inner = seen.get(id(mount.app)) or _Application(mount.app, seen)
            self.inner[id(mount)] = written, inner

    def _list(self, router: Any) -> None:
        """Note the lists of routes of a router and of those that FastAPI has included in it."""
        if any(router.routes is known for known in self.lists):
            return
        self.lists.append(router.routes)
        for listed in router.routes:
            included = getattr(listed, "original_router", None)
            if included is not None:
                self.drops_slash |= bool(getattr(included, "_low_priority_routes", ()))
                self._list(included)

    @cached_property
    def by_text(self) -> RoutesByPath[Any]:
        """Its own routes, found by a path below the root."""
        return RoutesByPath(self._routes, written_of)


def _looks_at_the_path(route: Any) -> bool:
    """Return whether type, method, path and root of a request tell whether a route takes it; a `Host` asks for more."""
    return not isinstance(route, Host) and is_known_module(getattr(type(route).matches, "__module__", ""))


class Routes:
    """The routes below a middleware, as they are now.

    Args:
        app: The application that the middleware guards.
        hidden: Whether something stands between them that does not show what it wraps.

    Attributes:
        version: Tells apart how the routes are and were.
        by_path: Whether type, method, path and root of a request tell which routes take it, as far as routes are known.
    """

    def __init__(self, app: object, *, hidden: bool = False) -> None:
        self._app = app
        self._hidden = hidden
        self._behind: Routes | None = None
        self._top: _Application | None = None
        self._holder: Any = None
        self._lists: Sequence[Sized] = ()
        self._size = -1
        self._rooted = self._mounts_drop_slash = False
        self.version = 0
        self.by_path = True

    @cached_property
    def router(self) -> Any:
        """The router of the application; None where no routes are known."""
        return router_of(self._app)

    @cached_property
    def root(self) -> str:
        """The `root_path` that the application gives itself, whatever the server says; empty if there is none."""
        return root_of(self._app)

    def current(self) -> int:
        """Return the version of the routes as they are now, by how many some router has. Each request asks."""
        holder = self._holder
        if holder is not None and len(holder.routes) + sum(map(len, self._lists)) == self._size:
            return self.version
        if self.router is not None:
            self._look()
        return self.version

    def _look(self) -> None:
        seen: dict[int, _Application] = {}
        self._top = _Application(self._app, seen)
        applications = list(seen.values())
        self._lists = [routes for app in applications for routes in app.lists][1:]
        # The outermost router may get another list. No request asks further in.
        self._holder = self._top.router
        self._size = len(self._holder.routes) + sum(map(len, self._lists))
        self._rooted = any(app.root for app in applications[1:])
        self._mounts_drop_slash = any(app.drops_slash for app in applications[1:])
        self.by_path = all(app.by_path for app in applications)
        self.version = next(_versions)

    def seen_by(self, scope: Scope) -> Routes:
        """Return these routes; where none are seen, those of the application in the scope, if it tells them."""
        app = scope.get("app")
        if self.router is not None or "router" in scope or not hasattr(app, "routes"):
            return self
        if self._behind is None or self._behind._app is not app:
            self._behind = Routes(app, hidden=True)
        return self._behind

    def reach(self, scope: Scope) -> Reached | None:
        """Return the end of a request's way; None if no routes are known, or none takes the request."""
        try:
            return None if self._top is None else _reach(self._top, scope_to_ask(scope), "", not self._hidden, 0)
        except Exception:
            # A convertor or a route of the user's has failed. It will fail again in the application, which reports it.
            return None

    def lead_astray(self, *, off_root: bool) -> bool:
        """Return whether mounts may hand on another path than the one that is left behind them.

        Args:
            off_root: Whether the path of the request does not begin with its root.
        """
        return self._rooted or (off_root and self._top is not None and len(self._top.inner) > 0)

    def texts(self, scope: Scope, root: str) -> list[str]:
        """Return the path of a request as each application below reads it, behind what mounts have read."""
        if self._top is None:
            return []
        entered = _entered(self._top, {**scope_to_ask(scope), "root_path": root})
        return [read + route_path(inner) for read, _, inner in entered]

    def drop_slash(self, scope: Scope, root: str) -> bool:
        """Return whether a request may reach something that takes no notice of a final slash."""
        if self._top is None or self._top.drops_slash:
            return True
        if not self._mounts_drop_slash:
            return False
        return any(app.drops_slash for _, app, _ in _entered(self._top, {**scope_to_ask(scope), "root_path": root}))


def _entered(top: _Application, scope: Scope) -> Iterator[tuple[str, _Application, Scope]]:
    """Yield each application that mounts lead a request to, with what they have read and what it sees."""
    waiting = [("", top, scope, 0)]
    seen: set[tuple[int, str, str]] = set()
    for read, at, outer, depth in waiting:
        for mount in at.by_text.find(route_path(outer)) if at.inner and depth < DEPTH else ():
            match, child = mount.matches(outer) if id(mount) in at.inner else (Match.NONE, {})
            if match is not Match.FULL:
                continue
            _, app = at.inner[id(mount)]
            inner = {**outer, **child}
            inner["root_path"] = app.root or inner.get("root_path", "")
            text = read + _read_by(mount, outer)
            if (way := (id(app), text, route_path(inner))) not in seen:
                seen.add(way)
                waiting.append((text, app, inner, depth + 1))
                yield text, app, inner


def _read_by(mount: Any, scope: Scope) -> str:
    """Return the part of a path that a mount reads."""
    found = mount.path_regex.match(route_path(scope)) if isinstance(mount, Mount) else None
    if found is None:
        return ""
    return _PARAMETER.sub(lambda parameter: found[parameter[1]], mount.path_format.removesuffix("/{path}"))


def _reach(at: _Application, scope: Scope, written: str, sure: bool, depth: int) -> Reached | None:
    """Ask a router for the first route that takes a request, else for one with other methods, as for a 405."""
    sure = sure and at.sure
    if at.root:
        scope["root_path"] = at.root
    if at.router is None:
        return Reached(None, sure, written + _ALL_BELOW, at.app)
    partial: Reached | None = None
    for route in at.by_text.find(route_path(scope)) if depth <= DEPTH else ():
        match, child = route.matches(scope)
        if match is Match.FULL and id(route) in at.inner:
            place, inner = at.inner[id(route)]
            scope.update(child)
            return _reach(inner, scope, written + place, sure, depth + 1)
        if match is Match.FULL:
            return _at(route, written, sure)
        if match is Match.PARTIAL and partial is None:
            partial = _at(route, written, sure)._replace(answers=False)
    if partial is not None or _redirects(at, scope):
        return partial
    # The frontends of FastAPI (`app.frontend`) are asked after all routes.
    asked = getattr(at.router, "_match_low_priority", None)
    served = asked is not None and asked(scope)[0] is not Match.NONE
    return Reached(None, sure, written + _ALL_BELOW) if served else None


def _at(route: Any, written: str, sure: bool) -> Reached:
    if not hasattr(route, "path_regex") or not hasattr(route, "path_format"):
        return Reached(route, False, written + _ALL_BELOW)
    path = getattr(route, "path", None) or route.path_format
    return Reached(route, sure, written + path, getattr(route, "endpoint", None))


def _redirects(at: _Application, scope: Scope) -> bool:
    """Return whether a router redirects to the path with, or without, a slash at its end."""
    path = route_path(scope)
    if scope["type"] != "http" or not getattr(at.router, "redirect_slashes", False) or path == "/":
        return False
    given: str = scope["path"]
    other = {**scope, "path": given.rstrip("/") if path.endswith("/") else given + "/"}
    return any(route.matches(other)[0] is not Match.NONE for route in at.by_text.find(route_path(other)))
