"""Random trees of routes, and random spellings of the paths that they serve.

Every handler notes that it ran and what the routers found for its parameters. So a test knows, without any matching of
its own, which path a request had for the routers that really served it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, FastAPI, params
from starlette._utils import get_route_path
from starlette.applications import Starlette
from starlette.convertors import CONVERTOR_TYPES
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Host, Mount, Route, Router, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from slidegate import RateLimit, RateLimitMiddleware, Rule

from .frameworks import with_root
from .middlewares import class_of
from .sockets import greet

PLENTY = "1000000/minute"
MOUNTS = ["/v1", "/a", "/static", "", "/", "/{}", "/a/{}", "/v1/v1"]
PATHS = ["/login", "/", "/a", "/v1/login", "/{}", "/{}/{}", "/a/{}", "/{:int}", "/items/{:int}", "/{:path}", "/a\n"]
TYPED = ["/{:float}", "/{:uuid}", "/floats/{:float}"]
KINDS = ["", ":str", ":int", ":float", ":uuid"]
LITERALS = ["", "", "_", "-", ".", "v", "5", "x", "e", "+", "\u00e9", "0", "inf", "a-b", "(", " "]
"""What stands beside parameters of a segment."""
WORDS = ["login", "a", "v1", "static", "items", "x", "5", "b", "\u00e9", "A", "a.js"]
MIXED_WORDS = [*WORDS, "a_b", "1_2", "v.1", "-", "_", "x5", "55", " ", "a b", "{", "5e5"]
SOME_UUID = "0b4f2a9e-3c1d-4e5f-8a6b-7c8d9e0f1a2b"
VALUES = {
    "int": ["5", "05", "123", "5", "+5", "5.0", "-5", " 5", "0-5", "5_0"],
    "float": ["5", "1.5", ".5", "5.", "1e5", "-1.5E+0", "+inf", "nan", "Infinity", " 5", "5_0.0", "0_5"],
    "uuid": [SOME_UUID, SOME_UUID.replace("-", ""), SOME_UUID.upper(), f"{{{SOME_UUID}}}", f"urn:uuid:{SOME_UUID}"],
}
"""Texts for parameters of a kind, of which routers and pydantic take some."""
PARAMETER = re.compile(r"\{(\w+)(?::(\w+))?\}")
ODD_SIGNS = ["\n", "\r", "\0", "\t", "\x0b", "\u2028", "%2F", "%0A"]
ODD_FLOATS = ["-1.5E_+0", "+_inf"]


@dataclass(frozen=True)
class Location:
    """Where something of a tree stands, such as a handler.

    Attributes:
        path: The whole path.
        inner: The path below a mount that has a middleware.
        is_mounted: Whether its application is mounted in another one.
        reads_apart: Whether a mounted application around it has a root path of its own, and so reads another path.
    """

    path: str = ""
    inner: str | None = None
    is_mounted: bool = False
    reads_apart: bool = False

    def below(self, path: str) -> "Location":
        return replace(self, path=self.path + path, inner=None if self.inner is None else self.inner + path)


@dataclass
class Tree:
    """A random application; it notes who served the last request, and the values of its parameters.

    Attributes:
        roots: Whether applications in it may have a root path of their own.
        mixed: Whether a segment may hold something beside a parameter.
        dots: Whether spellings name the directory of the files behind two dots.
        handlers: The places of the handlers by their names.
        endpoints: The functions and classes of handlers by their names.
        shared: The handlers that are one function with a limit of its own.
    """

    random: Random
    files: Path
    roots: bool = True
    mixed: bool = False
    dots: bool = False
    handlers: dict[str, Location] = field(default_factory=dict)
    endpoints: dict[str, Any] = field(default_factory=dict)
    served: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    shared: set[str] = field(default_factory=set)
    app: Any = None
    numbers: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        @RateLimit(PLENTY)
        async def shared(request: Request) -> Response:
            # The names of the parameters tell apart the routes of one function; it is not noted where there are none.
            values = dict(request.path_params)
            wanted = [name for name in self.shared if parameters(self.handlers[name].path) == set(values) != set()]
            self.served += [(name, values) for name in wanted if len(wanted) == 1]
            return Response()

        self._shared = shared
        self.app = self._application(Location(), self.random.randint(0, 3 if self.mixed or self.dots else 12))

    def _application(self, at: Location, depth: int) -> Any:
        kinds = ["starlette", "fastapi", "fastapi", "router"] if at.is_mounted else ["starlette", "fastapi"]
        kind, redirects = self.random.choice(kinds), self.random.random() < 0.6
        if kind == "fastapi":
            return self._fastapi(at, depth, redirects)
        routes = self._routes(at, depth)
        return Starlette(routes=routes) if kind == "starlette" else Router(routes, redirect_slashes=redirects)

    def _fastapi(self, at: Location, depth: int, redirects: bool) -> FastAPI:
        of_none = [""] * (8 if at.is_mounted else 3)  # an application that is mounted has seldom one of its own
        app = with_root(self.random.choice([*of_none, "/api", "/v1"] if self.roots else [""]))
        app.router.redirect_slashes = redirects
        inside = replace(at, reads_apart=at.reads_apart or bool(app.root_path and at.is_mounted))
        app.router.routes.extend(self._routes(inside, depth))
        for _ in range(self.random.randint(0, 2)):
            self._include(app, inside, self.random.randint(0, 3))
        return app

    def _include(self, app: Any, at: Location, depth: int) -> None:
        prefix = self._named(self.random.choice(["", "/v1", "/a", "/{}"]))
        router, inside = APIRouter(), at.below(prefix)
        for _ in range(self.random.randint(1, 2)):
            path = self._path([path for path in PATHS if path != "/a\n"])
            router.add_api_route(path, self._page(self._add(inside.below(path))), methods=["GET", "POST"])
        for kind in (int, float, UUID):
            if self.random.random() < 0.3:
                self._number(router, inside, kind)
        if depth:
            self._include(router, inside, depth - 1)
        app.include_router(router, prefix=prefix)

    def _number(self, router: APIRouter, at: Location, kind: type) -> None:
        """Add a route that makes a number of a parameter itself, and is known to rules as one of a number."""
        written = kind.__name__.lower()
        path = self._named(f"/{written}s/{{}}")
        name = self._add(at.below(path.replace("}", f":{written}}}")))
        page = self._page(name)

        async def numbered(request: Request, number: Any) -> Any:
            return await page(request)

        (parameter,) = parameters(path)
        numbered.__annotations__["number"] = Annotated[kind, params.Path(alias=parameter)]
        self.endpoints[name] = numbered
        router.add_api_route(path, numbered)

    def _routes(self, at: Location, depth: int) -> list[BaseRoute]:
        routes = [self._route(at) for _ in range(self.random.randint(1, 3))]
        if depth:
            routes.insert(self.random.randint(0, len(routes)), self._mount(at, depth))
        if depth and self.random.random() < 0.15:
            host = self.random.choice(["{sub}.example.org", "api.example.org"])
            routes.insert(0, Host(host, self._application(replace(at, is_mounted=True), min(depth - 1, 2))))
        if self.random.random() < (0.6 if self.dots else 0.1):
            routes.append(self._foreign(at, "/files", "/a.js", StaticFiles(directory=self.files)))
        if self.random.random() < 0.1:
            routes.append(self._foreign(at, "/other", "/x", unknown))
        return routes

    def _path(self, paths: Sequence[str]) -> str:
        if self.mixed and self.random.random() < 0.5:
            return self._named(template(self.random, 4))
        return self._named(self.random.choice([*paths, *TYPED]))

    def _mount(self, at: Location, depth: int) -> Mount:
        path = self._named(self.random.choice(MOUNTS))
        inside = replace(at.below(path.rstrip("/")), is_mounted=True)
        has_middleware = self.random.random() < 0.2 and at.inner is None
        before = len(self.handlers)
        below = self._application(replace(inside, inner="") if has_middleware else inside, depth - 1)
        if not has_middleware:
            return Mount(path, below)
        handlers = [*self.handlers.items()][before:]
        rules = [Rule(one.inner, PLENTY, name=f"inner_{name}") for name, one in handlers if one.inner]
        return Mount(path, below, middleware=[Middleware(RateLimitMiddleware, rules=rules)])

    def _foreign(self, at: Location, path: str, served: str, app: ASGIApp) -> Mount:
        """Return a mount of an application without routes that serves one path, also with a slash behind it."""
        name = self._add(at.below(path + served))

        async def noting(scope: Scope, receive: Receive, send: Send) -> None:
            values = dict(scope["path_params"])

            async def note(message: Message) -> None:
                self.served += [(name, values)] * (message.get("status") == 200)
                await send(message)

            if scope["type"] == "http":  # older versions of what serves files fail at a websocket
                await app(scope, receive, note)

        return Mount(path, noting)

    def _route(self, at: Location) -> BaseRoute:
        path = self._path(PATHS)
        is_websocket = self.random.random() < 0.15
        name = self._add(at.below(path))
        if is_websocket:
            return WebSocketRoute(path, self._socket(name))
        if self.random.random() < 0.2:
            self.endpoints[name] = class_of(self._page(name))
            return Route(path, self.endpoints[name])
        if self.random.random() < 0.2:
            self.shared.add(name)
            return Route(path, self._shared)
        return Route(path, self._page(name), methods=self.random.choice([["GET"], ["GET", "POST"]]))

    def _named(self, path: str) -> str:
        return named(path, self.numbers)

    def _add(self, at: Location) -> str:
        name = f"h{len(self.handlers)}"
        self.handlers[name] = at
        return name

    def _page(self, name: str) -> Any:
        async def page(request: Request) -> Response:
            self.served.append((name, dict(request.path_params)))
            return Response()

        self.endpoints[name] = page
        return page

    def _socket(self, name: str) -> Any:
        async def socket(websocket: WebSocket) -> None:
            self.served.append((name, dict(websocket.path_params)))
            await greet(websocket)

        return socket

    def spelling(self, changes: int | None = None) -> str:
        """Return a path that is, or once was, one of the tree."""
        random = self.random
        handler = random.choice(list(self.handlers.values()))
        path = PARAMETER.sub(lambda found: self._value(found[2]), handler.path)
        if random.random() < 0.1:
            path = "/" + "/".join(random.choices(WORDS, k=random.randint(1, 5)))
        for _ in range(random.choice([0, 0, 1, 1, 1, 2, 2, 3, 4]) if changes is None else changes):
            path = self._changed(path)
        return path

    def _value(self, kind: str | None) -> str:
        if kind in VALUES:
            return self.random.choice([*VALUES[kind], *(ODD_FLOATS if self.mixed and kind == "float" else ())])
        words = self.random.choices(
            MIXED_WORDS if self.mixed else WORDS, k=self.random.randint(1, 3) if kind == "path" else 1
        )
        return "/".join(words)

    def _changed(self, path: str) -> str:
        random = self.random
        at = random.choice([index for index, sign in enumerate(path) if sign == "/"] or [0])
        index = random.randint(0, len(path))
        if self.dots and random.random() < 0.2:
            return f"{path[:at]}/../{self.files.name}{path[at:]}"
        return random.choice(
            [
                *[lambda: path + "\n"] * 3,
                lambda: f"{path[:at]}/{path[at:]}",
                lambda: f"{path[:at]}/{path[at:]}\n",
                lambda: f"{path[:at]}//{path[at:]}",
                lambda: f"{path[:at]}/.{path[at:]}",
                lambda: f"{path[:at]}/x/..{path[at:]}",
                lambda: f"{path[:at]}/..{path[at:]}",
                lambda: f"{path[:at]};m=1{path[at:]}",
                lambda: f"{path};m",
                lambda: f"{path}/",
                lambda: path[:index] + random.choice(ODD_SIGNS) + path[index:],
                lambda: path[:at] + path,
                lambda: path[at:],
                lambda: path.swapcase(),
                lambda: f"/{random.choice(WORDS)}{path}",
            ]
        )()


async def unknown(scope: Scope, receive: Receive, send: Send) -> None:
    await Response(status_code=200 if get_route_path(scope).rstrip("/") == "/x" else 404)(scope, receive, send)


def template(random: Random, most: int) -> str:
    """Return a random path in Starlette's syntax, with at most so many parameters without names in a segment."""
    path = ""
    for _ in range(random.randint(1, 3)):
        segment = ""
        for _ in range(random.randint(0, most)):
            before, after = random.choices(LITERALS, k=2)
            segment += f"{before}{{{random.choice(KINDS)}}}{after}"
        path += f"/{segment or 'here'}"
    path = path.replace(".+", ".")  # a rule takes it for a regular expression
    return f"{path}/{{:path}}" if random.random() < 0.1 else path


def named(path: str, numbers: Iterator[int]) -> str:
    """Give the parameters of a path names of their own."""
    return re.sub(r"\{(:\w+)?\}", lambda found: f"{{p{next(numbers)}{found[1] or ''}}}", path)


def parameters(path: str) -> set[str]:
    return {found[1] for found in PARAMETER.finditer(path)}


def filled(path: str, values: dict[str, Any]) -> str:
    """Return a path with values for its parameters."""

    def text(found: re.Match[str]) -> str:
        kind = CONVERTOR_TYPES[found[2] or "str"]
        value = values[found[1]]
        return kind.to_string(value) if isinstance(value, (int, float)) else str(value)

    return PARAMETER.sub(text, path)
