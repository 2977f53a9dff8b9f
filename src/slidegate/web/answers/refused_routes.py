"""The route that a refused request would have gone to: no router has seen it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from starlette.convertors import Convertor
from starlette.routing import Mount
from starlette.types import ASGIApp, Scope

from ...core.memo import remember
from ...limiter.figures.statistics import UNROUTED
from ..matching import below
from ..routers import RoutesByPath, Written, written_of
from ..routes import ResolvedRoute, walk

_MEMO: Final = 2_048
_MEMO_PATH: Final = 256
_MEMO_ROOTS: Final = 64


class RefusedRoutes:
    """Finds routes for requests that were refused.

    Args:
        app: The application, where no scope names one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._below: dict[int, tuple[object, RoutesByPath[ResolvedRoute]]] = {}
        self._known: dict[tuple[int, str, str, str, str], tuple[str, object]] = {}

    def of(self, scope: Scope) -> str:
        """Return the label of the route: its template and methods."""
        outermost = scope["router"] if "router" in scope else scope.get("app", self._app)
        root = scope["app_root_path"] if "app_root_path" in scope else scope.get("root_path", "")
        method, path = scope.get("method", "GET"), scope["path"]
        asked = id(outermost), scope["type"], method, root, path
        known = self._known.get(asked)
        if known is not None:
            return known[0]
        label = self.find(outermost, scope["type"], method, below(root, path))
        if len(method) + len(path) <= _MEMO_PATH:
            # Keep the application alive, or id() could be reused for another object.
            remember(self._known, asked, (label, outermost), _MEMO)
        return label

    def find(self, outermost: object, connection: str, method: str, path: str) -> str:
        """Return the label of the route, for a path below the outermost router."""
        known = self._below.get(id(outermost))
        if known is None:
            try:
                routed = [place for place in walk(outermost) if place.route.endpoint is not None]
            except Exception:
                return UNROUTED  # a router of the user's has failed, which is no reason not to refuse
            known = remember(self._below, id(outermost), (outermost, RoutesByPath(routed, _written)), _MEMO_ROOTS)
        return _led(known[1].find(path), connection, method, path)


def _written(place: ResolvedRoute) -> Written | None:
    """Return the whole path of a place."""
    path, convertors = "", dict[str, Convertor[Any]]()
    for route in (*(mount for mount in place.mounts if isinstance(mount, Mount)), place.route):
        found = written_of(route)
        if found is None or not convertors.keys().isdisjoint(found[1].keys() - {"path"}):
            return None
        path += found[0].removesuffix("/{path:path}") if isinstance(route, Mount) else found[0]
        convertors |= found[1]
    return path, convertors


def _led(places: Sequence[ResolvedRoute], connection: str, method: str, path: str) -> str:
    """Return the label of the place where a router leads a request: else one with other methods, as for a 405."""
    places = [place for place in places if place.connection == connection]
    for place in places:
        if place.leads(method, path):
            return place.label
    for place in places:
        if place.methods is not None and place.leads(next(iter(place.methods)), path):
            return place.label
    return UNROUTED
