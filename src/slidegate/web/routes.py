"""Where the routes below a middleware lead a request, which one it came by, and what mounts make of its path.

The tree of routes is walked once, and again when a router has another number of routes.

Routers are not imitated: each is asked with a copy of the scope, in its own order, and the `matches` of a mount says
which scope it hands on. So a reading that only one version of one router knows is found too: a mount of Starlette's
loses count where the path does not begin with the root, also where the application below gives itself another root, and
where a path ends in a newline. The application below it then reads another part of the path, or all of it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Sized
from itertools import count
from typing import Any, Final, NamedTuple

from starlette.routing import Match, Mount
from starlette.types import Scope

from ..core.memo import MAX_PATHS, PATH_BYTES, remember
from ..limiter.stats import UNROUTED
from .matching import below, route_path
from .route_tree import (
    ALL_BELOW,
    DEPTH,
    FRONTEND,
    Application,
    Mounts,
    ResolvedRoute,
    RouteTables,
    applications,
    root_of,
    router_of,
)

_PARAMETER: Final = re.compile(r"\{(\w+)\}")
_MAX_UNLISTED: Final = 4_096
_MAX_ROUTERS: Final = 64
_versions: Final = count(1)


class Reached(NamedTuple):
    """The end of a request's way through the routers.

    Attributes:
        route: The route; None for an application without routes, such as a directory of files.
        sure: Whether everything on the way is known, so nothing can have changed the path unseen.
        written: The path as the mounts and the route are written, with the hosts on the way:
            ``//api.example.org/items/{id:int}``.
        mounts: The mounts and hosts on the way.
        end: The endpoint of the route, or the application without routes; None for a route that tells no endpoint.
        answers: Whether the route takes the method too; where it does not, the router answers 405.
    """

    route: Any
    sure: bool
    written: str
    mounts: Mounts = ()
    end: Any = None
    answers: bool = True


class Routes:
    """The routes below a middleware, as they are now.

    Args:
        app: The application that the middleware guards.
        hidden: Whether something stands between them that does not show what it wraps.

    Attributes:
        router: The router of the application; None where no routes are known.
        root: The `root_path` that the application gives itself, whatever the server says; empty if there is none.
        version: Tells apart how the routes are and were.
        by_path: Whether type, method, path and root of a request tell which routes take it, as far as routes are known.
    """

    def __init__(self, app: object, *, hidden: bool = False) -> None:
        self._app = app
        self._hidden = hidden
        self.router = router_of(app)
        self.root = root_of(app)
        self._behind: Routes | None = None
        self._top: Application | None = None
        self._holder: Any = None
        self._lists: Sequence[Sized] = ()
        self._size = -1
        self._unlisted: set[int] = set()
        self._tables = RouteTables(None)
        self._labels: dict[tuple[str, str, str], str] = {}
        self._rooted = self._mounts_drop_slash = False
        self.version = 0
        self.by_path = True

    def current(self) -> int:
        """Return the version of the routes as they are now, by how many some router has. Each request asks."""
        holder = self._holder
        if holder is not None and len(holder.routes) + sum(map(len, self._lists)) == self._size:
            return self.version
        if self.router is not None:
            self._learn()
        return self.version

    def _learn(self) -> None:
        top, *others = apps = applications(self._app)
        self._top = top
        self._lists = [routes for app in apps for routes in app.lists][1:]
        # The outermost router may get another list. No request asks further in.
        self._holder = top.router
        self._size = len(self._holder.routes) + sum(map(len, self._lists))
        self._rooted = any(app.root for app in others)
        self._mounts_drop_slash = any(app.drops_slash for app in others)
        self.by_path = all(app.by_path for app in apps)
        self.version = next(_versions)
        self._labels.clear()
        self._tables = RouteTables(top, self._unlisted)

    @property
    def tables(self) -> RouteTables:
        """The routes as they are now, by what they are found by."""
        self.current()
        return self._tables

    def of_endpoint(self, endpoint_id: int) -> list[ResolvedRoute]:
        """Return the routes of an endpoint that a request has reached."""
        if endpoint_id not in self.tables.by_endpoint:
            # A function that has a route already may get another one, also in a router that is included.
            if len(self._unlisted) >= _MAX_UNLISTED:
                self._unlisted.clear()
            self._unlisted.add(endpoint_id)
            self._learn()
        return self._tables.by_endpoint[endpoint_id]

    def of_request(self, candidates: Sequence[ResolvedRoute], scope: Scope) -> ResolvedRoute | None:
        """Return the one of several routes to an endpoint by which a request came."""
        root = scope.get("app_root_path", scope.get("root_path", ""))
        reached = self.reach({**scope, "root_path": root})
        if reached is None:
            return None
        # One application on two hosts is one route.
        paths = [mount for mount in reached.mounts if isinstance(mount, Mount)]
        return next((one for one in candidates if one.route is reached.route and one.paths == paths), None)

    def label_of(self, kind: str, method: str, path: str) -> str:
        """Return the label of the route where a request leads: else of one with other methods, as for a 405."""
        self.current()
        asked = kind, method, path
        return self._labels.get(asked) or remember(self._labels, asked, self._label(*asked), MAX_PATHS, PATH_BYTES)

    def _label(self, kind: str, method: str, path: str) -> str:
        candidates = self._tables.by_text.find(path)
        if len(candidates) > 1:
            candidates.sort()
        found = [resolved for _, resolved in candidates if resolved.connection == kind and resolved.takes(path)]
        taking = (resolved for resolved in found if resolved.methods is None or method in resolved.methods)
        route = next(taking, found[0] if found else None)
        return UNROUTED if route is None else route.label

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
            return None if self._top is None else _reach(self._top, _copy(scope), "", (), not self._hidden)
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
        return [] if self._top is None else [text for text, _ in _entered(self._top, scope, root)]

    def drop_slash(self, scope: Scope, root: str) -> bool:
        """Return whether a request may reach something that takes no notice of a final slash."""
        if self._top is None or self._top.drops_slash:
            return True
        return self._mounts_drop_slash and any(app.drops_slash for _, app in _entered(self._top, scope, root))


class RouteIndex:
    """Finds the routes of requests: of those that an endpoint has seen, and of those that were refused before.

    Args:
        app: The application, where no scope names one.
    """

    def __init__(self, app: object = None) -> None:
        self._app = app
        self._routes: dict[int, Routes] = {}

    def find(self, scope: Scope) -> ResolvedRoute | None:
        """Return the route that a request came by; None where no router tells it."""
        candidates = self.candidates(scope)
        if len(candidates) <= 1:
            return candidates[0] if candidates else None
        return self._below(scope["router"]).of_request(candidates, scope)

    def candidates(self, scope: Scope) -> list[ResolvedRoute]:
        """Return the routes of the endpoint that a request reached: one, unless several routes lead there."""
        router, endpoint = scope.get("router"), scope.get("endpoint")
        endpoint_id = FRONTEND if "frontend_path" in scope.get("fastapi", ()) else id(endpoint)
        if router is None or (endpoint is None and endpoint_id != FRONTEND):
            return []
        return self._below(router).of_endpoint(endpoint_id)

    def labels_below(self, scope: Scope, dependency: object) -> list[str]:
        """Return the labels of the routes below the routers and applications that require `dependency`, sorted."""
        return self._below(scope["router"]).tables.labels_below[id(dependency)]

    def label_of(self, scope: Scope) -> str:
        """Return the label of the route that a refused request would have gone to: no router has seen it.

        It is found by the text of the path, whatever the number of routes.
        """
        outermost = scope["router"] if "router" in scope else scope.get("app", self._app)
        root = scope["app_root_path"] if "app_root_path" in scope else scope.get("root_path", "")
        path = below(root, scope["path"]) if root else scope["path"]
        try:
            return self._below(outermost).label_of(scope["type"], scope.get("method", "GET"), path)
        except Exception:
            return UNROUTED  # a router of the user's has failed, which is no reason not to refuse

    def _below(self, router: object) -> Routes:
        """Return the routes below a router. They hold it, or its id could be another's."""
        return self._routes.get(id(router)) or remember(self._routes, id(router), Routes(router), _MAX_ROUTERS)


def _entered(top: Application, scope: Scope, root: str) -> Iterator[tuple[str, Application]]:
    """Yield the path as each application reads it that mounts lead to, behind what they have read, and that one."""
    waiting = [("", top, {**_copy(scope), "root_path": root}, 0)]
    seen: set[tuple[int, str, str]] = set()
    for read, at, outer, depth in waiting:
        for mount in at.find(route_path(outer)) if at.inner and depth < DEPTH else ():
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
                yield text + route_path(inner), app


def _read_by(mount: Any, scope: Scope) -> str:
    """Return the part of a path that a mount reads."""
    match = mount.path_regex.match(route_path(scope)) if isinstance(mount, Mount) else None
    if match is None:
        return ""
    return _PARAMETER.sub(lambda parameter: match[parameter[1]], mount.path_format.removesuffix("/{path}"))


def _reach(at: Application, scope: Scope, written: str, mounts: Mounts, sure: bool) -> Reached | None:
    """Ask a router for the first route that takes a request, else for one with other methods, as for a 405."""
    sure = sure and at.sure
    if at.root:
        scope["root_path"] = at.root
    if at.router is None:
        return Reached(None, sure, written + ALL_BELOW, mounts, at.layers[-1])
    partial: Reached | None = None
    for route in at.find(route_path(scope)) if len(mounts) <= DEPTH else ():
        match, child = route.matches(scope)
        if match is Match.FULL and id(route) in at.inner:
            place, inner = at.inner[id(route)]
            scope.update(child)
            return _reach(inner, scope, written + place, (*mounts, route), sure)
        if match is Match.FULL:
            return _at(route, written, mounts, sure)
        if match is Match.PARTIAL and partial is None:
            partial = _at(route, written, mounts, sure)._replace(answers=False)
    if partial is not None or _redirects(at, scope):
        return partial
    frontend = at.frontend(route_path(scope)) if scope["type"] == "http" else None
    return None if frontend is None else _at(frontend, written, mounts, sure)


def _at(route: Any, written: str, mounts: Mounts, sure: bool) -> Reached:
    if not hasattr(route, "path_regex") or not hasattr(route, "path_format"):
        return Reached(route, False, written + ALL_BELOW, mounts)
    path = getattr(route, "path", None) or route.path_format
    return Reached(route, sure, written + path, mounts, getattr(route, "endpoint", None))


def _redirects(at: Application, scope: Scope) -> bool:
    """Return whether a router redirects to the path with, or without, a slash at its end."""
    path = route_path(scope)
    if scope["type"] != "http" or not getattr(at.router, "redirect_slashes", False) or path == "/":
        return False
    given: str = scope["path"]
    other = {**scope, "path": given.rstrip("/") if path.endswith("/") else given + "/"}
    return any(route.matches(other)[0] is not Match.NONE for route in at.find(route_path(other)))


def _copy(scope: Scope) -> Scope:
    """Return a copy of a scope that routes may write to."""
    return {key: dict(value) if type(value) is dict else value for key, value in scope.items()}
