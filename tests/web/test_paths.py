"""A limit on a path counts whatever a router or pydantic takes for it, and an exemption only its own text."""

import asyncio
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count, product
from pathlib import Path
from random import Random
from typing import Annotated, Any, Final
from uuid import UUID

import pytest
from fastapi import APIRouter, FastAPI, params
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from starlette._utils import get_route_path
from starlette.applications import Starlette
from starlette.convertors import CONVERTOR_TYPES, StringConvertor
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Host, Mount, Route, Router, WebSocketRoute, compile_path
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from slidegate import BanPolicy, Limiter, RateLimit, RateLimitMiddleware, Rule, client_ip, header, path_param
from slidegate.testing import RecordingObserver
from slidegate.web.charges import decision_of

from ..asgi import PEER, hello, scope_of, send_scope
from ..drawing import examples
from .middlewares import PLENTY, charged, checks, class_of, greet, with_root

# -- what pydantic takes for a number or a UUID ------------------------------------------------------------------------

SHORT = "0159eE+-._infaINFty "
PLAIN_ID, PUT = "7081965f-0432-4d1f-8a3c-5b9e2d7c6a10", ("-", "{", "}", "urn:", "uuid:", " ")
IDS = [form.format(one, one.replace("-", "")) for one in (PLAIN_ID, str(UUID(int=1))) for form in ("{}", "{1}")]
IDS += [f"{{{one}}}" for one in IDS] + [f"urn:uuid:{one}" for one in IDS]


async def untaken(kind: type, texts: Iterable[str]) -> list[str]:
    """Return those texts that FastAPI takes for a parameter of a kind, and a rule does not, or for another value."""
    limiter, key = Limiter(), path_param("v")
    app = RateLimitMiddleware(hello, rules=[Rule(f"/{{v:{kind.__name__.lower()}}}", PLENTY, key=key)], limiter=limiter)
    taken = dict[str, Any]()
    for text in texts:
        with suppress(ValidationError):
            taken[text] = TypeAdapter(kind).validate_python(text)
    assert len(taken) > 5
    found, keys = [], dict[Any, str]()
    for text, value in taken.items():
        await send_scope(app, scope := scope_of(f"/{text}"))
        expected = keys.setdefault(value, limiter.key_for(key.of(value)))  # that of an equal value, as 0.0 of -0.0
        if [own for _, own, _ in checks(scope)] != [expected]:
            found.append(text)
    return found


async def test_each_value_that_fastapi_takes_for_a_number_or_a_uuid_is_one_key_whatever_its_spelling() -> None:
    texts = ["".join(signs) for length in (1, 2, 3) for signs in product(SHORT, repeat=length)]
    texts += ["0_05", "+0+5", "0-5.0", "-05.00", " +5. ", "0+10", "1_0.0"]
    assert await untaken(int, texts) == []
    odd = ["_inf", "+_inf", "1.5E_+0", "_nan", "i_nf", "1e-5", "-inf", "+nan", "1e999", "-1_0.5_0E+0_1", "-0.0"]
    assert await untaken(float, [*odd, *(text for text in texts if not text.strip(" +-").startswith("_"))]) == []
    spelled = [f"{one[:at]}{put}{one[at:]}" for one in IDS for put in ("", *PUT) for at in range(len(one) + 1)]
    assert await untaken(UUID, [*spelled, *map(str.upper, spelled)]) == []

    blanks = [chr(code) for code in range(0x3001) if chr(code).isspace()]
    for kind, text in ((int, "5"), (int, "5_0.0"), (float, "5.5"), (float, "nan"), (float, "-Infinity")):
        assert await untaken(kind, [f"{blank}{text}{blank}" for blank in blanks]) == []


# -- requests that no server sends ------------------------------------------------------------------------------------


ODD: list[dict[str, Any]] = [
    *({"path": path} for path in (5, None, b"/a", ["/a"])),
    *({"method": method} for method in (None, b"POST", 5, ["GET"])),
    *({"root_path": root} for root in (None, b"", b"/api", ["/api"])),
    *({"client": (host, 1)} for host in (5, b"203.0.113.9", None, ["203.0.113.9"])),
    *({"client": client} for client in (5, "", [], ["203.0.113.9"], {}, {"host": "203.0.113.9"}, object)),
    *({"client": None, "server": server} for server in (5, "", [], {"port": 80}, ("127.0.0.1",))),
    *({"extensions": extensions} for extensions in (5, None, ["websocket.http.response"])),
]
"""What no server should send, and an adapter might."""


@pytest.mark.parametrize("odd", ODD, ids=str)
@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_a_scope_with_odd_values_is_counted_by_all_that_could_mean_it(
    odd: dict[str, Any], kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = [
        Rule("/free", exempt=True, methods=["GET"]),
        Rule("/a", exempt=True, when=lambda request: False),
        Rule("/a", "2/minute", key=header("X-API-Key"), name="a"),
        Rule("/{page}", "2/minute", key=path_param("page"), name="page"),
        Rule("/a", "9/minute", when=lambda request: True, name="when"),
        Rule("*", "9/minute", methods=["GET", "POST"], name="all"),
    ]
    observer = RecordingObserver()
    limiter, bans = Limiter(observers=[observer]), BanPolicy(signals={"/trap": "ban"})
    options: dict[str, Any] = {"limiter": limiter, "bans": bans, "client": client_ip(["10.0.0.0/8"])}
    middleware = RateLimitMiddleware(hello, rules=rules, default_limits="9/minute", **options)
    scopes, later = [scope_of("/a", type=kind) for _ in range(4)], time.monotonic() + 61
    for scope in scopes:
        scope.update({"extensions": {"websocket.http.response": {}}, **odd})
        if scope is scopes[-1]:
            await limiter.ban(PEER, "1h")
            monkeypatch.setattr(time, "monotonic", lambda: later)
        await send_scope(middleware, scope)
    assert charged(scopes[0]) == ["a", "page", "when", "all", "per-route *"]
    *before, last = [decision_of(HTTPConnection(scope)).reason for scope in scopes]
    assert before == ["ok", "ok", "limited"]
    assert last == "banned" or "client" in odd
    assert "refused" in observer.kinds
    said = re.findall(r"selecting rules failed; every limit counts the request: .*py:\d+\)(.*)", caplog.text)
    more = ["", " (and 2 more since the last such line)"]
    assert said == (more if said or "path" in odd else []), "odd requests fill no log"


# -- behind random trees of routes, whatever reaches a limited handler was charged, however its path was spelt ---------

# Every handler notes that it ran and what the routers found for its parameters. So a test knows, without any matching
# of its own, which path a request had for the routers that really served it.

MOUNTS = ["/v1", "/a", "/static", "", "/", "/{}", "/a/{}", "/v1/v1"]
PATHS = ["/login", "/", "/a", "/v1/login", "/{}", "/{}/{}", "/a/{}", "/{:int}", "/items/{:int}", "/{:path}", "/a\n"]
TYPED_PATHS = ["/{:float}", "/{:uuid}", "/floats/{:float}"]
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
    """Where something of a tree stands, such as a handler."""

    path: str = ""
    inner: str | None = None  # the path below a mount that has a middleware
    is_mounted: bool = False
    reads_apart: bool = False  # a mounted application around it has a root path of its own, and so reads another path

    def below(self, path: str) -> "Location":
        return replace(self, path=self.path + path, inner=None if self.inner is None else self.inner + path)


@dataclass
class Tree:
    """A random application; it notes who served the last request, and the values of its parameters.

    Handlers and their functions or classes are by their names.
    """

    random: Random
    files: Path
    roots: bool = True  # applications in it may have a root path of their own
    mixed: bool = False  # a segment may hold something beside a parameter
    dots: bool = False  # spellings name the directory of the files behind two dots
    handlers: dict[str, Location] = field(default_factory=dict)
    endpoints: dict[str, Any] = field(default_factory=dict)
    served: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    shared: set[str] = field(default_factory=set)  # the handlers that are one function with a limit of its own
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
        return self._named(self.random.choice([*paths, *TYPED_PATHS]))

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


AMBIGUOUS: Final = re.compile(r"\n|/\.\.(?:/|\Z)")
"""Paths that meet no exemption."""
METHODS: Final = ("GET", "GET", "POST", "HEAD", "post")
CONNECTIONS: Final = (None, None, None, None, "http", "websocket")
ROOTS: Final = ("", "", "", "/api", "/v1")


def rules_of(tree: Tree, random: Random, exemptions: int) -> tuple[list[Rule], dict[str, str]]:
    """Return a rule on each handler, and among them some that exempt or end the list; and the parameters they count by.

    The parameters are by the names of handlers.
    """
    rules, by = [], dict[str, str]()
    for name, handler in tree.handlers.items():
        methods = random.choice([None, None, None, ["GET"], ["POST"]])
        connection = random.choice(CONNECTIONS)
        key = None
        if names := sorted(parameters(handler.path)):
            by[name] = random.choice(names)
            key = path_param(by[name])
        rules.append(Rule(handler.path, PLENTY, name=name, methods=methods, connection=connection, key=key))
    candidates = ["/static/{rest:path}", "/v1/{rest:path}", "/login", "/a/{x}", "/{x}/{y}", "/{n:int}"]
    for path in random.sample([*candidates, *(handler.path for handler in tree.handlers.values())], exemptions):
        about: Any = {
            "methods": random.choice([None, None, ["GET"], ["POST"]]),
            "connection": random.choice(CONNECTIONS),
        }
        ends: Any = {"exempt": True} if random.random() < 0.6 else {"limits": PLENTY, "final": True}
        rule = Rule(path, **ends, **about, name=f"f{len(rules)}")
        rules.insert(random.randint(0, len(rules)), rule)
    return rules, by


def rules_below(tree: Tree, random: Random) -> list[Rule]:
    """Return a rule on what is below each handler, which counts the handler, too, and one that exempts some of it."""
    below = {name: f"{handler.path.removesuffix('/')}/{{rest:path}}" for name, handler in tree.handlers.items()}
    rules = [Rule(path, PLENTY, name=f"below_{name}") for name, path in below.items()]
    rules.insert(random.randint(0, len(rules)), Rule(random.choice([*below.values()]), exempt=True))
    return rules


def exactly(written: str, text: str) -> bool:
    """Tell whether a route of Starlette's would serve a path."""
    return compile_path(written)[0].fullmatch(text) is not None


@dataclass
class Judge:
    """Sends requests to a tree of routes, and looks for those that are counted otherwise than its routers say."""

    tree: Tree
    exemptions: int
    has_below: bool
    ran: int = 0
    left_out: int = 0  # how often a rule by path missed a request below a mount that reads another path
    wrong: list[str] = field(default_factory=list)
    routes: dict[str, str] = field(default_factory=dict)  # what the default limits count as that of each handler

    def __post_init__(self) -> None:
        tree, random = self.tree, self.tree.random
        self.rules, self.parameters = rules_of(tree, random, self.exemptions)
        if self.has_below:
            at = random.randint(0, len(self.rules))
            self.rules[at:at] = rules_below(tree, random)
        self.exempt = {name for name in tree.endpoints if random.random() < 0.25}
        for name in self.exempt:
            RateLimit.exempt(tree.endpoints[name])
        self.limiter = Limiter()
        self.app = RateLimitMiddleware(tree.app, rules=self.rules, default_limits=PLENTY, limiter=self.limiter)

    async def judge(self, spellings: int) -> "Judge":
        for _ in range(spellings):
            await self.ask()
            found = [(name, one) for name, values in self.tree.served for one in self.lacking(name, values)]
            if not self.tree.roots and self.path.startswith(f"{self.root}/") and not AMBIGUOUS.search(self.path):
                found += self.misread()
            self.ran += len(self.tree.served)
            sent = f"{self.kind} {self.method} {self.path!r}, root {self.root}, counted by {self.keys}"
            self.wrong += [f"{sent}: {self.tree.handlers.get(name)} {problem}" for name, problem in found]
        return self

    async def ask(self) -> None:
        """Send a request, and note the labels and keys by which limits counted it."""
        tree, random = self.tree, self.tree.random
        tree.served.clear()
        path, self.root = tree.spelling(random.choice([0, 1, None])), random.choice(ROOTS)
        self.path = self.root + path if random.random() < 0.6 else path
        self.kind, self.method = "websocket" if random.random() < 0.15 else "http", random.choice(METHODS)
        more: dict[str, Any] = {"headers": {"host": random.choice(["api.example.org", "x.example.org"])}}
        more |= {"raw_path": b"/", "root_path": self.root, "type": self.kind, "subprotocols": []}
        await send_scope(self.app, scope := scope_of(self.path, self.method, **more))
        self.keys = [(bucket.label, key) for bucket, key, _ in checks(scope)]
        self.counted = [label for label, _ in self.keys]
        self.own_root = getattr(tree.app, "root_path", "") or self.root
        self.text = get_route_path({"path": self.path, "root_path": self.own_root})
        """The path that the application directly behind the middleware reads."""

    def names(self, rule: Rule, method: str) -> bool:
        """Tell whether a rule names the type of the request and a method, as they are written."""
        method = method if self.kind == "http" else "GET"
        return rule.connection in (None, self.kind) and (rule.methods is None or method in rule.methods)

    def is_free(self, rule: Rule, reached: str) -> bool:
        """Tell whether a rule may end the list before it: as it stands, not as it could be read."""
        named = self.names(rule, self.method) and rule.is_final and not AMBIGUOUS.search(self.text)
        path = rule.paths[0]
        return named and exactly(path, self.text) and exactly(path, reached)

    def reads_apart(self, handler: Location) -> bool:
        """Return whether the application of a handler reads another path than the one directly behind the middleware.

        It does if it is mounted, and has a root path of its own, or the path does not begin with that of the server.
        """
        begins = self.own_root == "" or f"{self.path}/".startswith(f"{self.own_root}/")
        return handler.reads_apart or (handler.is_mounted and not begins)

    def lacking(self, name: str, values: dict[str, str]) -> list[str]:
        """Return the limits that a request which reached a handler was not counted on."""
        handler, lacking = self.tree.handlers[name], list[str]()
        # A router reads 5 from 05: what it has read is written as it was spelled, if the spelling reveals it.
        reached = self.text
        is_route = name in self.tree.endpoints or name in self.tree.shared  # files are served with a slash as well
        if is_route and not exactly(handler.path, self.text):
            reached = filled(handler.path, values)
        ends = [self.is_free(rule, reached) for rule in self.rules]
        for at, rule in enumerate(self.rules):
            if rule.name in (name, f"below_{name}") and rule.name not in self.counted:
                lacking += [f"rule {rule.name}"] * (self.names(rule, self.method.upper()) and not any(ends[:at]))
        if handler.inner is not None and f"inner_{name}" not in self.counted:
            lacking.append("the rule of a middleware within")
        if lacking and self.reads_apart(handler):  # a limit at its endpoint and the default limits count it
            lacking = []
            self.left_out += 1
        named = {*(rule.name for rule in self.rules), *(f"inner_{one}" for one in self.tree.handlers)}
        # Of a label that is too long its end stays: what has no other name is the limit at the endpoint.
        if name in self.tree.shared and all(one in named or one.startswith("per-route ") for one in self.counted):
            lacking.append("the limit at the endpoint")
        # What a mounted application makes of the path is its own: a rule ends the list for the path that it is given.
        is_free = handler.is_mounted and any(self.is_free(rule, self.text) for rule in self.rules)
        if not self.is_routed(name, is_free or any(ends)):
            lacking.append("the limit of its route")
        return [f"is not counted on {one}" for one in lacking]

    def is_routed(self, name: str, is_ended: bool) -> bool:
        """Tell whether the default limits count a request once, as one to the route of a handler."""
        routes = [label for label in self.counted if label.startswith("per-route ")]
        if name in self.exempt:  # what readers make several texts of is no request to it
            return routes == ["per-route *"] * bool(AMBIGUOUS.search(self.path)) or (is_ended and routes == [])
        if routes == []:
            return is_ended
        return routes == [self.routes.setdefault(name, routes[0])] != ["per-route *"]

    def misread(self) -> list[tuple[str, str]]:
        """Return the handlers whose rule counted by another value of a parameter than the routers found."""
        found = []
        for name, values in self.tree.served:
            value = values.get(self.parameters.get(name, ""), "")
            numbered = re.search(rf"{self.parameters.get(name)}:[fiu]", self.tree.handlers[name].path)
            if value == "" or (numbered and isinstance(value, str)):  # FastAPI makes a number of a text itself
                continue
            own = [key for label, key in self.keys if label == name]
            expected = self.limiter.key_for(path_param(self.parameters[name]).of(value))
            found += [(name, f"with {values} is counted by {own}")] * (own not in ([], [expected]))
        return found


FEATURES: Final[list[dict[str, bool]]] = [{}, {"roots": False}, {"mixed": True}, {"dots": True}]


OF_FAST_HTML = pytest.param("[^/]*", id="FastHTML", marks=pytest.mark.all)


@pytest.mark.parametrize("text", [pytest.param("[^/]+", id="Starlette"), OF_FAST_HTML])
@pytest.mark.parametrize("trees", [examples(60), pytest.param(4_000, marks=pytest.mark.deep)])
def test_requests_are_counted_as_the_routers_read_them(
    trees: int, text: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever reaches a handler is counted, and under the values that routers find."""
    monkeypatch.setattr(StringConvertor, "regex", text)
    ran, left_out = 0, 0

    @settings(max_examples=trees)
    @given(st.integers(0, 2**32 - 1), st.sampled_from(FEATURES), st.integers(0, 3), st.booleans())
    @example(449, {"mixed": True}, 1, False)
    @example(13035, {}, 2, False)
    @example(3108030150, {"mixed": True}, 3, False)
    @example(0, {}, 0, True)
    def search(seed: int, features: dict[str, bool], exemptions: int, has_below: bool) -> None:
        nonlocal ran, left_out
        found = asyncio.run(Judge(Tree(Random(seed), directory, **features), exemptions, has_below).judge(150))
        assert found.wrong == []
        ran += found.ran
        left_out += found.left_out

    search()
    assert ran > 10 * trees
    share = f"{left_out / ran:.1%}"
    print(f"rules by path missed {share} of the requests, below mounts that read other paths")  # noqa: T201 - the judge
    assert left_out < ran / 20
