"""Random trees of routes, and random spellings of the paths that they serve.

Every handler notes that it ran and what the routers found for its parameters. So a test knows, without any matching of
its own, which path a request had for the routers that really served it.
"""

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from inspect import Parameter, Signature
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from fastapi import APIRouter, FastAPI
from starlette._utils import get_route_path
from starlette.applications import Starlette
from starlette.convertors import CONVERTOR_TYPES
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Host, Mount, Route, Router, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from slidegate import RateLimit, RateLimitMiddleware, Rule

PLENTY = "1000000/minute"
MOUNTS = ["/v1", "/a", "/static", "", "/", "/{}", "/a/{}", "/v1/v1"]
PATHS = ["/login", "/", "/a", "/v1/login", "/{}", "/{}/{}", "/a/{}", "/{:int}", "/items/{:int}", "/{:path}", "/a\n"]
MIXED = [
    "/{}_{}",
    "/{:int}_{:int}",
    "/v{}.{}",
    "/{:int}5",
    "/{}{}",
    "/a{:float}x{:int}",
    "/{:uuid}{}",
    "/{:int}/{}-{:int}",
]
"""Paths with something beside a parameter, in one segment."""
TYPED = ["/{:float}", "/{:uuid}", "/floats/{:float}"]
WORDS = ["login", "a", "v1", "static", "items", "x", "5", "b", "\u00e9", "A", "a.js"]
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


@dataclass
class Handler:
    """One endpoint of a tree: its name, its path, and its path below a mount that has a middleware.

    Attributes:
        is_mounted: Whether its application is mounted in another one.
        reads_apart: Whether a mounted application around it has a root path of its own, and so reads another path.
    """

    name: str
    path: str
    websocket: bool
    inner: str | None
    is_mounted: bool = False
    reads_apart: bool = False


@dataclass
class Tree:
    """A random application; it notes who served the last request, and the values of its parameters.

    Attributes:
        roots: Whether applications in it may have a root path of their own.
        mixed: Whether a segment may hold something beside a parameter.
        dots: Whether spellings name the directory of the files behind two dots.
        shared: The handlers that are one function with a limit of its own.
        endpoints: The functions and classes of handlers by their names.
        serves_files: Whether something in it serves files, to which a final slash is none.
    """

    random: Random
    files: Path
    roots: bool = True
    mixed: bool = False
    dots: bool = False
    handlers: dict[str, Handler] = field(default_factory=dict)
    endpoints: dict[str, Any] = field(default_factory=dict)
    served: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    app: Any = None
    parameters: int = 0
    shared: dict[str, str] = field(default_factory=dict)
    serves_files: bool = False
    _mounted: int = -1
    _apart: int = 0

    def __post_init__(self) -> None:
        @RateLimit(PLENTY)
        async def shared(request: Request) -> Response:
            # The names of the parameters tell apart the routes of one function; it is not noted where there are none.
            values = dict(request.path_params)
            wanted = [name for name in self.shared if parameters(self.handlers[name].path) == set(values) != set()]
            self.served += [(name, values) for name in wanted if len(wanted) == 1]
            return Response()

        self._shared = shared
        depth = self.random.randint(0, 3 if self.mixed or self.dots else 12)
        self.app = self._application("", depth, None, top=True)

    def _application(self, above: str, depth: int, inner: str | None, *, top: bool = False) -> Any:
        kind = self.random.choice(
            ["starlette", "fastapi", "fastapi", "router"] if not top else ["starlette", "fastapi"]
        )
        redirects = self.random.random() < 0.6
        self._mounted += 1
        try:
            if kind != "fastapi":
                routes = self._routes(above, depth, inner)
                return Starlette(routes=routes) if kind == "starlette" else Router(routes, redirect_slashes=redirects)
            return self._fastapi(above, depth, inner, redirects)
        finally:
            self._mounted -= 1

    def _fastapi(self, above: str, depth: int, inner: str | None, redirects: bool) -> FastAPI:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a deprecated way to say the root path, and one in use
            of_none = [""] * (8 if self._mounted else 3)  # an application that is mounted has seldom one of its own
            root = self.random.choice([*of_none, "/api", "/v1"] if self.roots else [""])
            app = FastAPI(openapi_url=None, redirect_slashes=redirects, root_path=root)
        apart = bool(root and self._mounted)
        self._apart += apart
        app.router.routes.extend(self._routes(above, depth, inner))
        for _ in range(self.random.randint(0, 2)):
            self._include(app, above, inner, self.random.randint(0, 3))
        self._apart -= apart
        return app

    def _number(self, router: APIRouter, above: str, inner: str | None, kind: type = int) -> None:
        """Add a route that makes a number of a parameter itself, and is known to rules as one of a number."""
        written = kind.__name__.lower()
        path = self._named(f"/{written}s/{{}}")
        parameter = PARAMETER.findall(path)[0][0]
        typed = path.replace("}", f":{written}}}")
        name = self._add(above + typed, False, None if inner is None else inner + typed)
        page = self._api(name)

        async def numbered(request: Request, **number: Any) -> str:
            return str(await page(request))

        given = {"request": Request, parameter: kind}
        vars(numbered)["__signature__"] = Signature(
            [Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation) for name, annotation in given.items()]
        )
        router.add_api_route(path, numbered)

    def _include(self, app: Any, above: str, inner: str | None, depth: int) -> None:
        prefix = self._named(self.random.choice(["", "/v1", "/a", "/{}"]))
        router = APIRouter()
        below = inner if inner is None else inner + prefix
        for _ in range(self.random.randint(1, 2)):
            path = self._path([path for path in PATHS if path != "/a\n"])
            name = self._add(f"{above}{prefix}{path}", False, None if below is None else below + path)
            router.add_api_route(path, self._api(name), methods=["GET", "POST"])
        for kind in (int, float, UUID):
            if self.random.random() < 0.3:
                self._number(router, above + prefix, below, kind)
        if depth:
            self._include(router, above + prefix, below, depth - 1)
        app.include_router(router, prefix=prefix)

    def _routes(self, above: str, depth: int, inner: str | None) -> list[BaseRoute]:
        routes = [self._route(above, inner) for _ in range(self.random.randint(1, 3))]
        if depth:
            routes.insert(self.random.randint(0, len(routes)), self._mount(above, depth, inner))
        if depth and self.random.random() < 0.15:
            host = self.random.choice(["{sub}.example.org", "api.example.org"])
            routes.insert(0, Host(host, self._application(above, min(depth - 1, 2), inner)))
        if self.random.random() < (0.6 if self.dots else 0.1):
            self.serves_files = True
            name = self._add(f"{above}/files/a.js", False, None if inner is None else f"{inner}/files/a.js")
            routes.append(Mount("/files", _Files(self, name, self.files)))
        if self.random.random() < 0.1:
            name = self._add(f"{above}/other/x", False, None if inner is None else f"{inner}/other/x")
            routes.append(Mount("/other", _Unknown(self, name)))
        return routes

    def _path(self, paths: Sequence[str]) -> str:
        return self._named(self.random.choice(MIXED if self.mixed and self.random.random() < 0.5 else [*paths, *TYPED]))

    def _mount(self, above: str, depth: int, inner: str | None) -> Mount:
        path = self._named(self.random.choice(MOUNTS))
        whole = path.rstrip("/")
        middleware = self.random.random() < 0.2 and inner is None
        inside = "" if middleware else inner if inner is None else inner + whole
        before = set(self.handlers)
        below = self._application(above + whole, depth - 1, inside)
        if not middleware:
            return Mount(path, below)
        rules = [
            Rule(self.handlers[name].inner or "/", PLENTY, name=f"inner_{name}")
            for name in self.handlers
            if name not in before and self.handlers[name].inner
        ]
        return Mount(path, below, middleware=[Middleware(RateLimitMiddleware, rules=rules)])

    def _route(self, above: str, inner: str | None) -> BaseRoute:
        path = self._path(PATHS)
        websocket = self.random.random() < 0.15
        name = self._add(above + path, websocket, None if inner is None else inner + path)
        if websocket:
            return WebSocketRoute(path, self._socket(name))
        if self.random.random() < 0.2:
            return Route(path, self._class(name))
        if self.random.random() < 0.2:
            self.shared[name] = path
            return Route(path, self._shared)
        return Route(path, self._page(name), methods=self.random.choice([["GET"], ["GET", "POST"]]))

    def _named(self, path: str) -> str:
        """Give the parameters of a path names of their own."""

        def name(found: re.Match[str]) -> str:
            self.parameters += 1
            return f"{{p{self.parameters}{found[1]}}}"

        return re.sub(r"\{(:\w+)?\}", lambda found: name(found).replace("None", ""), path)

    def _add(self, path: str, websocket: bool, inner: str | None) -> str:
        name = f"h{len(self.handlers)}"
        self.handlers[name] = Handler(name, path, websocket, inner, self._mounted > 0, self._apart > 0)
        return name

    def _page(self, name: str) -> Any:
        async def page(request: Request) -> Response:
            self.served.append((name, dict(request.path_params)))
            return Response()

        self.endpoints[name] = page
        return page

    def _api(self, name: str) -> Any:
        async def page(request: Request) -> str:
            self.served.append((name, dict(request.path_params)))
            return ""

        self.endpoints[name] = page
        return page

    def _class(self, name: str) -> Any:
        methods = {method: _method(self._page(name)) for method in ("get", "post")}
        self.endpoints[name] = type("Endpoint", (HTTPEndpoint,), methods)
        return self.endpoints[name]

    def _socket(self, name: str) -> Any:
        async def socket(websocket: WebSocket) -> None:
            self.served.append((name, dict(websocket.path_params)))
            await websocket.accept()
            await websocket.close()

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
        words = self.random.choices(WORDS, k=self.random.randint(1, 3) if kind == "path" else 1)
        return "/".join(words)

    def _changed(self, path: str) -> str:
        random = self.random
        at = random.choice([index for index, sign in enumerate(path) if sign == "/"] or [0])
        place = random.randint(0, len(path))
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
                lambda: path[:place] + random.choice(ODD_SIGNS) + path[place:],
                lambda: path[:at] + path,
                lambda: path[at:],
                lambda: path.swapcase(),
                lambda: f"/{random.choice(WORDS)}{path}",
            ]
        )()


class _Files:
    """A directory of static files that says when one was served."""

    def __init__(self, tree: Tree, name: str, directory: Path) -> None:
        self.app = StaticFiles(directory=directory)
        self._tree = tree
        self._name = name

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            return  # older versions of what serves files fail at it
        values = dict(scope["path_params"])

        async def note(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                self._tree.served.append((self._name, values))
            await send(message)

        await self.app(scope, receive, note)


class _Unknown:
    """An application without routes, to which a final slash is none."""

    def __init__(self, tree: Tree, name: str) -> None:
        self._tree = tree
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = scope["type"] == "http" and get_route_path(scope).rstrip("/") == "/x"
        if found:
            self._tree.served.append((self._name, dict(scope.get("path_params", {}))))
        await Response(status_code=200 if found else 404)(scope, receive, send)


def _method(page: Any) -> Any:
    async def method(self: object, request: Request) -> Response:
        answer = await page(request)
        assert isinstance(answer, Response)
        return answer

    return method


def parameters(path: str) -> set[str]:
    return {found[1] for found in PARAMETER.finditer(path)}


def filled(path: str, values: dict[str, Any]) -> str:
    """Return a path with values for its parameters."""

    def text(found: re.Match[str]) -> str:
        kind = CONVERTOR_TYPES[found[2] or "str"]
        value = values[found[1]]
        return kind.to_string(value) if isinstance(value, (int, float)) else str(value)

    return PARAMETER.sub(text, path)
