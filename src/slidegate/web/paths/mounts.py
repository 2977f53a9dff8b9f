"""What mounts make of a path.

A mount of Starlette loses count where the path does not begin with the root, also where the application below gives
itself another root: that application then reads all of the path again. What serves files takes no notice of a final
slash. The mounts are asked, never the routes, and only about such paths.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final, NamedTuple

from starlette.routing import Host, Match, Mount
from starlette.types import Scope

from .below_root import route_path
from .layers import DEPTH, RouteWatch, flat_routes, root_of, router_of, scope_to_ask

_PARAMETER: Final = re.compile(r"\{(\w+)\}")


class _Application(NamedTuple):
    """An application, as mounts lead to it.

    Attributes:
        root: The `root_path` that it gives itself.
        mounts: Its mounts and hosts, with the applications below.
        drops_slash: Whether it may answer a path with a final slash as it does without: it serves files, or is unknown.
    """

    root: str
    mounts: tuple[tuple[Any, _Application], ...]
    drops_slash: bool

    def leads_to_root(self) -> bool:
        """Return whether an application further in gives itself a `root_path`."""
        return any(app.root or app.leads_to_root() for _, app in self.mounts)

    def entered(self, scope: Scope) -> Iterator[tuple[Any, _Application, Scope]]:
        """Yield the mounts that take a request, with their applications and what these see."""
        for mount, app in self.mounts:
            match, child = mount.matches(scope)
            if match is Match.FULL:
                inner = {**scope, **child}
                yield mount, app, {**inner, "root_path": app.root or inner.get("root_path", "")}


class Mounts:
    """The mounts below a gate.

    Args:
        app: The application that the gate guards.
    """

    def __init__(self, app: object) -> None:
        self._app = app
        self._watch = RouteWatch(app)
        self._top = _Application("", (), drops_slash=True)
        self._hidden: Mounts | None = None
        self._rooted = False

    @cached_property
    def root(self) -> str:
        """The `root_path` that the application gives itself, whatever the server says; empty if there is none."""
        return root_of(self._app)

    def seen_by(self, scope: Scope) -> Mounts:
        """Return the mounts as they are now; where the gate sees none, those of the application in the scope."""
        if self._watch.changed():
            self._top = _application(self._app, 0)
            self._rooted = self._top.leads_to_root()
        if self._watch.router is not None:
            return self
        app = scope.get("app")
        if "router" in scope or not hasattr(app, "routes"):
            return self
        # Something between the gate and its application does not show what it wraps.
        if self._hidden is None or self._hidden._app is not app:
            self._hidden = Mounts(app)
        return self._hidden.seen_by(scope)

    @property
    def by_path(self) -> bool:
        """Whether type, method, path and root of a request tell which mounts take it."""
        return self._watch.by_path or self._watch.router is None

    def lead_astray(self, *, off_root: bool) -> bool:
        """Return whether mounts may hand on another path than the one that is left behind them.

        Args:
            off_root: Whether the path of the request does not begin with its root.
        """
        return self._rooted or (off_root and len(self._top.mounts) > 0)

    def texts(self, scope: Scope, root: str) -> list[str]:
        """Return the path of a request as each application below reads it, behind what mounts have read."""
        return list(_texts(self._top, {**scope_to_ask(scope), "root_path": root}))

    def drop_slash(self, scope: Scope, root: str) -> bool:
        """Return whether a request may reach something that takes no notice of a final slash."""
        return self._top.drops_slash or _drops_slash(self._top, {**scope_to_ask(scope), "root_path": root})


def _application(app: object, depth: int) -> _Application:
    router = router_of(app)
    routes = flat_routes(router.routes) if router is not None and depth < DEPTH else ()
    mounts = [(route, _application(route.app, depth + 1)) for route in routes if isinstance(route, (Mount, Host))]
    return _Application(root_of(app), tuple(mounts), router is None or _has_frontend(router))


def _has_frontend(router: Any) -> bool:
    """Return whether FastAPI serves files where no route of a router, or of one included in it, matches."""
    router = getattr(router, "router", router)
    included = (getattr(listed, "original_router", None) for listed in router.routes)
    return bool(getattr(router, "_low_priority_routes", ())) or any(map(_has_frontend, filter(None, included)))


def _texts(at: _Application, scope: Scope) -> Iterator[str]:
    for mount, app, inner in at.entered(scope):
        read = ""
        if isinstance(mount, Mount):
            found = mount.path_regex.match(route_path(scope))
            if found is not None:
                read = _filled(mount.path_format.removesuffix("/{path}"), found)
        yield read + route_path(inner)
        for text in _texts(app, inner):
            yield read + text


def _filled(written: str, found: re.Match[str]) -> str:
    return _PARAMETER.sub(lambda parameter: found[parameter[1]], written)


def _drops_slash(at: _Application, scope: Scope) -> bool:
    return at.drops_slash or any(_drops_slash(app, inner) for _, app, inner in at.entered(scope))
