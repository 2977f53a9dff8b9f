"""Looks at an application from outside: the layers around it, its `root_path`, its routes in one list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from functools import cached_property
from typing import Any, Final

from starlette.routing import Host, Mount
from starlette.types import Scope

DEPTH: Final = 64
"""How far down applications in applications are looked at; one may be mounted in itself."""
_KNOWN: Final = frozenset({"starlette", "fastapi", "slidegate"})


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
    return is_known_module(type(thing).__module__)


def is_known_module(module: str) -> bool:
    return module.partition(".")[0] in _KNOWN


class RouteWatch:
    """Tells whether routes were added or taken away, in whichever router below an application.

    Args:
        app: The application.

    Attributes:
        by_path: Whether type, method, path and root of a request tell which routes take it, as far as routes are known.
    """

    def __init__(self, app: object) -> None:
        self._app = app
        self._lists: Sequence[Sized] = ()
        self._size: int | None = None
        self.by_path = False

    @cached_property
    def router(self) -> Any:
        """The router of the application; None where no routes are known."""
        return router_of(self._app)

    def changed(self) -> bool:
        """Return whether some router has more or fewer routes than when this was asked last."""
        router = self.router
        if router is None or len(router.routes) + sum(map(len, self._lists)) == self._size:
            return False
        self._lists = list(_nested_routes(router.routes, 0))
        self._size = len(router.routes) + sum(map(len, self._lists))
        self.by_path = not _look_further(router, 0)
        return True


def _nested_routes(routes: Iterable[Any], depth: int) -> Iterator[Sized]:
    """Yield the lists of routes in the routers below some routes."""
    for listed in routes if depth < DEPTH else ():
        route = getattr(listed, "starlette_route", None) or listed
        inner = getattr(listed, "original_router", None)
        if inner is None and isinstance(route, (Mount, Host)):
            inner = router_of(route.app)
        if inner is not None:
            yield inner.routes
            yield from _nested_routes(inner.routes, depth + 1)


def _look_further(router: Any, depth: int) -> bool:
    """Return whether a route looks at more than type, method, path and root, as `Host` does."""
    for route in flat_routes(router.routes) if router is not None and depth < DEPTH else ():
        if isinstance(route, Host) or not is_known_module(getattr(type(route).matches, "__module__", "")):
            return True
        if isinstance(route, Mount) and _look_further(router_of(route.app), depth + 1):
            return True
    return False
