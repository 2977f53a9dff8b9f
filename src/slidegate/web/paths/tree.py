"""Finds the route to which the routers below a gate lead a request.

The routers are not imitated: each is asked with a copy of the scope, in the order in which it asks its routes, and the
`matches` of a mount says which scope it hands on. So a reading that only one version of one router knows is found too:
a mount of Starlette's, for example, loses count where a path ends in a newline, and the application below it reads
another part of the path, or all of it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Final, NamedTuple

from starlette.routing import Host, Match, Mount
from starlette.types import Scope

from .below_root import route_path
from .layers import (
    DEPTH,
    RouteWatch,
    flat_routes,
    is_known,
    is_known_module,
    layers,
    own_root,
    root_of,
    scope_to_ask,
)
from .routes_by_path import RoutesByPath, written_of

_ALL_BELOW: Final = "/{path:path}"


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


class _Way(NamedTuple):
    """The way to an application: how mounts and hosts on it are written, whether all on it is known, and how many
    routers were asked."""

    written: str = ""
    sure: bool = True
    depth: int = 0
    asks: Callable[[Any, str], Iterable[Any]] = lambda router, path: flat_routes(router.routes)
    """Returns the routes of a router that may take a path."""


class Tree:
    """The routes below a gate.

    Args:
        app: The application that the gate guards.
    """

    def __init__(self, app: object) -> None:
        self._app = app
        self._watch = RouteWatch(app)
        self._indexes: dict[int, tuple[object, RoutesByPath[Any]]] = {}

    def reach(self, scope: Scope) -> Reached | None:
        """Return the end of a request's way; None if no routes are known, or none takes the request."""
        app, way = self._app, _Way()
        if self._watch.router is None:
            if not self.known(scope):
                return None
            # Something between the gate and its application does not show what it wraps.
            app, way = scope["app"], way._replace(sure=False)
        else:
            self.changed()
            way = way._replace(asks=self._asks)
        try:
            return _enter(app, scope_to_ask(scope), way)
        except Exception:
            # A convertor or a route of the user's has failed. It will fail again in the application, which reports it.
            return None

    def known(self, scope: Scope) -> bool:
        """Return whether there are routes to ask."""
        return self._watch.router is not None or ("router" not in scope and hasattr(scope.get("app"), "routes"))

    @cached_property
    def root(self) -> str:
        """The `root_path` that the application below gives itself, whatever the server says; empty if there is none."""
        return root_of(self._app)

    @property
    def varies(self) -> bool:
        """Whether a route somewhere below looks at more than type, method, path and root, as `Host` does."""
        self.changed()
        return not self._watch.by_path

    def changed(self) -> bool:
        """Return whether some router below has more or fewer routes than when this was asked last."""
        if not self._watch.changed():
            return False
        self._indexes.clear()
        return True

    def _asks(self, router: Any, path: str) -> Iterable[Any]:
        known = self._indexes.get(id(router))
        if known is None:
            # Keep the router alive, or id() could be reused for another object.
            known = self._indexes[id(router)] = router, RoutesByPath(flat_routes(router.routes), written_of)
        return known[1].find(path)


def _enter(app: Any, scope: Scope, way: _Way) -> Reached | None:
    """Go through the layers of an application to its router, and ask it."""
    for layer in layers(app):
        app = layer
        way = way._replace(sure=way.sure and is_known(layer))
        if root := own_root(layer):
            scope["root_path"] = root
        if hasattr(layer, "routes"):
            break
    if not hasattr(app, "routes"):
        return _reached(way, _ALL_BELOW, end=app)
    router = getattr(app, "router", app)
    wrapped = [made.cls for made in getattr(app, "user_middleware", ())]
    bare = getattr(router, "middleware_stack", None) in (None, getattr(router, "app", None))
    known = is_known(router) and bare and all(is_known_module(cls.__module__) for cls in wrapped)
    return _ask(router, scope, way._replace(sure=way.sure and known, depth=way.depth + 1))


def _ask(router: Any, scope: Scope, way: _Way) -> Reached | None:
    """Ask a router for the first route that takes a request, else for one with other methods, as for a 405."""
    if way.depth > DEPTH:
        return None
    partial: Reached | None = None
    for route in way.asks(router, route_path(scope)):
        match, child = route.matches(scope)
        if match is Match.FULL:
            return _follow(route, scope, child, way._replace(written=way.written + _host(route, router)))
        if match is Match.PARTIAL and partial is None:
            partial = _at(route, way)._replace(answers=False)
    if partial is None and not _redirects(router, scope, way):
        return _frontend(router, scope, way)
    return partial


def _follow(route: Any, scope: Scope, child: Scope, way: _Way) -> Reached | None:
    if not isinstance(route, (Mount, Host)):
        return _at(route, way)
    if isinstance(route, Mount):
        way = way._replace(written=way.written + route.path)
    scope.update(child)
    return _enter(route.app, scope, way)


def _at(route: Any, way: _Way) -> Reached:
    if not hasattr(route, "path_regex") or not hasattr(route, "path_format"):
        return _reached(way._replace(sure=False), _ALL_BELOW, route)
    written = getattr(route, "path", None) or route.path_format
    return _reached(way, written, route, getattr(route, "endpoint", None))


def _host(route: Any, router: Any) -> str:
    """Return the host that a route asks for, if its application is found at this host alone; else nothing.

    A client writes what it likes into the Host header, so two names of one application are no two places.
    """
    if not isinstance(route, Host):
        return ""
    handed_on = [getattr(other, "_base_app", getattr(other, "app", None)) for other in flat_routes(router.routes)]
    return f"//{route.host}" if sum(app is route.app for app in handed_on) == 1 else ""


def _frontend(router: Any, scope: Scope, way: _Way) -> Reached | None:
    """Return the frontend that takes a request (`app.frontend` of FastAPI); it is asked after all routes."""
    asked = getattr(router, "_match_low_priority", None)
    if asked is None or asked(scope)[0] is Match.NONE:
        return None
    return _reached(way, _ALL_BELOW)


def _redirects(router: Any, scope: Scope, way: _Way) -> bool:
    """Return whether a router redirects to the path with, or without, a slash at its end."""
    path = route_path(scope)
    if scope["type"] != "http" or not getattr(router, "redirect_slashes", False) or path == "/":
        return False
    given: str = scope["path"]
    other = {**scope, "path": given.rstrip("/") if path.endswith("/") else given + "/"}
    return any(route.matches(other)[0] is not Match.NONE for route in way.asks(router, route_path(other)))


def _reached(way: _Way, written: str, route: object = None, end: object = None) -> Reached:
    return Reached(route, way.sure, way.written + written, end)
