"""The routes of an application, as a tree: mounts, hosts and, in FastAPI since 0.137, included routers.

Neither the path of a request nor ``scope["route"]`` tells the whole template of a route (a mount hides what it
matched), so the tree is walked. FastAPI is never imported; its objects are known by their attributes. An application
may be mounted in itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

from starlette.convertors import Convertor
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.routing import Host, Mount

from .matching import PathIndex, Written, regex_of

Mounts: TypeAlias = tuple[Mount | Host, ...]

DEPTH: Final = 64
"""How far down applications in applications are followed."""
ALL_BELOW: Final = "/{path:path}"
FRONTEND: Final = 0
"""Stands for the endpoint of frontends, which have none; no object has this id."""
_KNOWN: Final = frozenset({"starlette", "fastapi", "slidegate"})
_FLAGS: Final = re.compile("").flags


def layers(app: object) -> Iterator[object]:
    """Yield an application and each one that it wraps, from the outside in."""
    seen: set[int] = set()
    while app is not None and id(app) not in seen:
        seen.add(id(app))
        yield app
        app = getattr(app, "app", None)


def root_of(app: object) -> str:
    """Return the `root_path` that an application, or one that it wraps, gives itself as FastAPI does, or nothing."""
    roots = [getattr(layer, "root_path", "") for layer in layers(app) if hasattr(layer, "openapi")]
    return next((root for root in roots if root and isinstance(root, str)), "")


def router_of(app: object) -> Any:
    """Return the first layer of an application that shows its routes; None if none does."""
    return next((layer for layer in layers(app) if hasattr(layer, "routes")), None)


def methods_of(route: Any) -> str:
    """Return the methods of a route for people to read: ``GET,POST``, ``*`` for all, ``WS`` for a websocket."""
    methods = getattr(route, "methods", None)
    names = ",".join(sorted(set(methods) - ({"HEAD"} if "GET" in methods else set()))) if methods else "*"
    return names if hasattr(route, "methods") else "WS"


def written_of(route: Any) -> Written | None:
    """Return the path by which a route can be found: its pattern is the one that Starlette makes of the path."""
    path, convertors = getattr(route, "path", None), getattr(route, "param_convertors", None)
    pattern = getattr(route, "path_regex", None)
    if isinstance(route, Host) or not isinstance(path, str) or convertors is None or pattern is None:
        return None
    if isinstance(route, Mount):
        path += ALL_BELOW
    own = _is_known(getattr(type(route), "matches", None))
    alike = own and (pattern.pattern, pattern.flags) == (regex_of(path, convertors), _FLAGS)
    return (path, convertors) if alike else None


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
        connection: ``"http"`` or ``"websocket"``.
        methods: The methods of the route; None for all, and for a websocket.
        label: A name for people to read: ``GET /items/{id}``.
        paths: The mounts on the way, without the hosts.
    """

    mounts: Mounts
    route: Any
    above: tuple[Required, ...]
    template: str
    connection: str
    methods: frozenset[str] | None
    label: str
    paths: list[Mount]

    def takes(self, path: str) -> bool:
        """Return whether a path leads here; it is the one that the outermost router sees."""
        for mount in self.paths:
            match = mount.path_regex.match(path)
            if match is None:
                return False
            path = "/" + match["path"]
        return self.route.path_regex.match(path) is not None

    def written(self) -> Written | None:
        """Return the whole path, by which the route can be found; None where its text alone does not tell it."""
        path, convertors = "", dict[str, Convertor[Any]]()
        for part in (*self.paths, self.route):
            written = written_of(part)
            if written is None or not convertors.keys().isdisjoint(written[1].keys() - {"path"}):
                return None
            path += written[0] if part is self.route else written[0].removesuffix(ALL_BELOW)
            convertors |= written[1]
        return path, convertors


def _resolved(mounts: Mounts, route: Any, above: tuple[Required, ...], template: str) -> ResolvedRoute:
    methods = getattr(route, "methods", None)
    connection = "http" if hasattr(route, "methods") else "websocket"
    label = f"{methods_of(route)} {template}"
    paths = [mount for mount in mounts if isinstance(mount, Mount)]
    methods = frozenset(methods) if methods else None
    return ResolvedRoute(mounts, route, above, template, connection, methods, label, paths)


class Application:
    """An application, as mounts lead to it; those below it are found from here.

    Args:
        app: The application, with all that is wrapped around it.
        seen: The applications found before, by their id.

    Attributes:
        layers: What is wrapped around it, from the outside in, and at last itself.
        router: What holds its routes; None where they cannot be seen.
        root: The `root_path` that it gives itself.
        sure: Whether it and all that is wrapped around it is known, so that nothing unseen answers or changes a path.
        drops_slash: Whether it may answer a path with a final slash as it does without: it serves files, or is unknown.
        by_path: Whether type, method, path and root of a request tell which of its own routes takes it.
        routes: Its routes, those of included routers in their place, each with what is required of it.
        inner: The applications of its mounts and hosts, by the id of the mount, each with how that is written.
        lists: The lists of its own routes and those of included routers.
    """

    def __init__(self, app: object, seen: dict[int, Application]) -> None:
        seen[id(app)] = self
        shown = router_of(app)
        self.root = root_of(app)
        self.layers = list(layers(app))
        if shown is not None:
            del self.layers[self.layers.index(shown) + 1 :]
        self.sure = all(_is_known(type(layer)) for layer in self.layers)
        self.router = None if shown is None else getattr(shown, "router", shown)
        self.lists: list[Sized] = []
        self.routes: list[tuple[Any, tuple[Required, ...]]] = []
        if shown is not None:
            wrapped = [made.cls for made in getattr(shown, "user_middleware", ())]
            bare = getattr(self.router, "middleware_stack", None) in (None, getattr(self.router, "app", None))
            self.sure &= bare and all(map(_is_known, [type(self.router), *wrapped]))
            required = _with((), getattr(self.router, "dependencies", None), "")
            self.routes += self._flat(self.router, shown.routes, "", required)
        self.drops_slash = shown is None or any(isinstance(route, Frontend) for route, _ in self.routes)
        self.by_path = all(_looks_at_the_path(route) for route, _ in self.routes)
        self.inner = dict(self._mounted(seen))

    def _flat(
        self, router: Any, routes: Iterable[Any], prefix: str, above: tuple[Required, ...]
    ) -> Iterator[tuple[Any, tuple[Required, ...]]]:
        """Yield the routes of a router: those of included routers in their place, those that serve files last."""
        if not any(router.routes is known for known in self.lists):
            self.lists.append(router.routes)
        for listed in routes:
            if hasattr(listed, "effective_candidates"):
                included, inner = listed.include_context, listed.original_router
                where = included.prefix + inner.prefix
                required = _with(_with(above, _own(included.dependencies, above), where), inner.dependencies, where)
                yield from self._flat(inner, listed.effective_candidates(), included.prefix, required)
            else:
                yield getattr(listed, "starlette_route", None) or listed, above
        for group in getattr(router, "_low_priority_routes", ()):
            yield from ((Frontend(prefix + served.path), above) for served in getattr(group, "routes", ()))

    def _mounted(self, seen: dict[int, Application]) -> Iterator[tuple[int, tuple[str, Application]]]:
        mounts = [route for route, _ in self.routes if isinstance(route, (Mount, Host))]
        # A client writes what it likes into the Host header, so two names of one application are no two places.
        shared = [id(getattr(mount, "_base_app", mount.app)) for mount in mounts]
        for mount, base in zip(mounts, shared, strict=True):
            written = "" if isinstance(mount, Host) and shared.count(base) > 1 else _spelled(mount, "path")
            yield id(mount), (written, seen.get(id(mount.app)) or Application(mount.app, seen))

    def walk(self, mounts: Mounts = ()) -> Iterator[ResolvedRoute]:
        """Yield every route, at each place where it is mounted; `mounts` lead here."""
        prefix = "".join(_spelled(mount, "path_format").removesuffix("/{path}") for mount in mounts)
        for route, above in self.routes:
            if id(route) in self.inner:
                if not any(mount.app is route.app for mount in mounts) and len(mounts) < DEPTH:
                    # The dependencies of a router end at a mount: the application there is called as it is.
                    yield from self.inner[id(route)][1].walk((*mounts, route))
            elif hasattr(route, "endpoint") and hasattr(route, "path_format"):
                required = tuple([Required(call, prefix + where, depth) for call, where, depth in above])
                yield _resolved(mounts, route, required, prefix + route.path_format)

    def find(self, path: str) -> list[Any]:
        """Return the routes that may take a path, in their order; some of them do not."""
        return [self.routes[place][0] for place in sorted(set(self._by_text.find(path)))]

    @cached_property
    def _by_text(self) -> PathIndex[int]:
        index: PathIndex[int] = PathIndex()
        for place, (route, _) in enumerate(self.routes):
            if not isinstance(route, Frontend):
                index.add(written_of(route), place)
        return index

    def frontend(self, path: str) -> Frontend | None:
        """Return the frontend that serves a path, if no route does: the longest, as FastAPI chooses."""
        frontends = [route for route, _ in self.routes if isinstance(route, Frontend) and route.path_regex.match(path)]
        return max(frontends, key=lambda one: len(one.path), default=None)


class RouteTables:
    """Routes by what they are found by; each table is made when it is first asked for.

    Args:
        top: The application; None for no routes.
        unlisted: The ids of endpoints that requests have reached by none of its routes.
    """

    def __init__(self, top: Application | None, unlisted: Iterable[int] = ()) -> None:
        self._top = top
        self._unlisted = unlisted

    @cached_property
    def _resolved(self) -> list[ResolvedRoute]:
        return [] if self._top is None else list(self._top.walk())

    @cached_property
    def by_endpoint(self) -> Mapping[int, list[ResolvedRoute]]:
        """The routes of each endpoint, by its id; those of frontends, which have none, are those of `FRONTEND`."""
        routes: dict[int, list[ResolvedRoute]] = {endpoint_id: [] for endpoint_id in self._unlisted}
        for resolved in self._resolved:
            endpoint = resolved.route.endpoint
            routes.setdefault(FRONTEND if endpoint is None else id(endpoint), []).append(resolved)
        return routes

    @cached_property
    def labels_below(self) -> Mapping[int, list[str]]:
        """The labels of the routes below each dependency that a router or an application requires, by its id."""
        labels: dict[int, set[str]] = {}
        for resolved in self._resolved:
            for required in resolved.above:
                labels.setdefault(id(required.dependency), set()).add(resolved.label)
        return {dependency_id: sorted(those) for dependency_id, those in labels.items()}

    @cached_property
    def by_text(self) -> PathIndex[tuple[int, ResolvedRoute]]:
        """The routes, each with its place among them, by the text of their paths."""
        index: PathIndex[tuple[int, ResolvedRoute]] = PathIndex()
        routed = [resolved for resolved in self._resolved if resolved.route.endpoint is not None]
        for place, resolved in enumerate(routed):
            index.add(resolved.written(), (place, resolved))
        return index


def applications(app: object) -> list[Application]:
    """Return an application and all that are mounted below it, each once."""
    seen: dict[int, Application] = {}
    Application(app, seen)
    return list(seen.values())


def walk(app: object) -> Iterator[ResolvedRoute]:
    """Yield every route of an application, a router, or a wrapper around one."""
    return Application(app, {}).walk()


def _is_known(made: object) -> bool:
    """Return whether a class or function is one of Starlette, FastAPI or this package, and calls none of the user's."""
    return getattr(made, "__module__", "").partition(".")[0] in _KNOWN and made is not BaseHTTPMiddleware


def _looks_at_the_path(route: Any) -> bool:
    """Return whether type, method, path and root of a request tell whether a route takes it; a `Host` asks for more."""
    return isinstance(route, Frontend) or (not isinstance(route, Host) and _is_known(type(route).matches))


def _spelled(mount: Mount | Host, attribute: str) -> str:
    return getattr(mount, attribute) if isinstance(mount, Mount) else f"//{mount.host}"


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
