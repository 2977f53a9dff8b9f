"""What tests of several rooms ask about a middleware, clients of websockets, and one limit at each place for one."""

import asyncio
import functools
import logging
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import http_sf
from anyio import from_thread
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from mmdb_writer import MMDBWriter
from netaddr import IPSet
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.exceptions import HTTPException, WebSocketException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from slidegate import RateLimit, network
from slidegate import _watcher as watcher
from slidegate.core.buckets import Check
from slidegate.events import Outcome
from slidegate.networks.operators import Network
from slidegate.testing import FakeClock, RecordingObserver

from ..asgi import PEER, Answer, call, scope_of

PLENTY = "1000000/minute"
WRITTEN_NS = 1_800_000_000_000_000_000


def checks(scope: Scope) -> list[Check]:
    """Return what the limits of all middlewares and endpoints asked about a request: bucket, key and cost of each."""
    return [check for _, decision in scope["slidegate"].decisions for check in decision.checks]


def charged(scope: Scope) -> list[str]:
    return [bucket.label for bucket, _, _ in checks(scope)]


def fields(value: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the items of a structured field, each with its parameters."""
    return [(item, dict(params)) for item, params in http_sf.parse(value.encode(), tltype="list")] if value else []


def check_fields(answer: Answer) -> None:
    """Check that both fields name the same limits, and tell of no more units and time than each of them has."""
    policy, shown = (fields(answer.headers.get(name, "")) for name in ("ratelimit-policy", "ratelimit"))
    assert [name for name, _ in policy] == [name for name, _ in shown]
    for (_, limit), (_, left) in zip(policy, shown, strict=True):
        assert 0 <= left["r"] <= limit["q"]
        length_s = limit.get("w", 366 * 86_400)
        # Of an amount above the resolution the running slice is kept as well.
        assert 0 <= left.get("t", 0) <= length_s - -length_s // 64


def end_of_looks() -> None:
    """Wait until every look at a file that a request has begun is over."""
    for thread in threading.enumerate():
        if thread.name == watcher.THREAD:
            thread.join(60)
            assert not thread.is_alive()


class Listener(RecordingObserver):
    """Keeps events and outcomes."""

    def __init__(self, *, without: Sequence[str] = ()) -> None:
        super().__init__(without=without)
        self.outcomes: list[Outcome] = []

    def request(self, outcome: Outcome, /) -> None:
        self.outcomes.append(outcome)


class Log(logging.Handler):
    """Keeps the warnings and errors of the log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class FollowedFiles:
    """A directory of files that are followed, the clock of all files until the test ends, and an observer."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = FakeClock()
        watcher.now_s = self.seconds
        self.observer = RecordingObserver(without=["refused", "exceeded"])
        self._written = 0

    def seconds(self) -> float:
        return self.clock.now_us / 1_000_000

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.directory / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        # Two versions within one tick of the file system's clock are two versions all the same.
        self._written += 1
        os.utime(path, ns=(self._written, WRITTEN_NS + self._written * 1_000))
        return path

    async def look(self, app: ASGIApp) -> None:
        """Have a request that is not counted look at the files."""
        self.clock.advance("1s")
        await call(app, "/", "OPTIONS", headers={"Origin": "x", "Access-Control-Request-Method": "GET"})
        end_of_looks()

    async def visit(self, app: ASGIApp) -> None:
        """Let a change be seen at two looks."""
        await self.look(app)
        await self.look(app)


# -- files that say whose networks are, as makers of such files write them ---------------------------------------------


TENCENT = {"autonomous_system_number": 132203, "autonomous_system_organization": "Tencent"}
OTHER = {"autonomous_system_number": 64500, "autonomous_system_organization": "Other"}
ASN = {
    "43.128.0.0/14": TENCENT,
    "101.32.0.0/16": TENCENT,
    "203.0.0.0/16": OTHER,
    "10.0.0.0/8": OTHER,
    "2402:4e00::/32": TENCENT,
}


def mmdb(path: Path, records: dict[str, Any], version: int = 6) -> Path:
    """Write a file in MaxMind's format, and put it in its place in one step."""
    writer = MMDBWriter(version, "test", ipv4_compatible=version == 6)
    for text, record in records.items():
        writer.insert_network(IPSet([text]), record)
    made = path.with_suffix(".new")
    writer.to_db_file(str(made))
    os.replace(made, path)
    return path


def operators(directory: Path) -> Network:
    return network(mmdb(directory / "asn.mmdb", ASN))


def countries(directory: Path) -> Network:
    records = {
        "198.51.0.0/16": {"country": {"iso_code": "NL"}, "registered_country": {"iso_code": "US"}},
        "203.0.0.0/16": {"registered_country": {"iso_code": "BE"}},
        "2a02::/16": {"country": {"iso_code": "DE"}},
    }
    return network(mmdb(directory / "country.mmdb", records))


# -- the client of a websocket behind a server that keeps ASGI's rules, and applications that only listen --------------


BYE: Message = {"type": "websocket.disconnect", "code": 1000}


def texts(count: int) -> list[Message]:
    return [{"type": "websocket.receive", "text": f"m{number}"} for number in range(count)]


class SocketClient:
    """A client that has sent some messages in advance, and keeps what comes back.

    Whichever side closes, the application gets a disconnect, as behind every server.
    """

    def __init__(
        self, *sent: Message, address: str = PEER, strict: bool = False, gone: bool = False, **more: object
    ) -> None:
        """Make a client that sends these messages after its handshake, and has gone by the time of a close, or not.

        A strict server sends no close code but 1000 and those of applications, as daphne does. More may be in the
        scope, such as a method, as NGINX Unit named it.
        """
        self.scope = scope_of("/", type="websocket", client=(address, 1)) | more
        self.strict, self.gone = strict, gone
        self.came: list[Message] = []
        self.coming: asyncio.Queue[Message] = asyncio.Queue()
        for message in ({"type": "websocket.connect"}, *sent):
            self.coming.put_nowait(message)

    async def send(self, message: Message) -> None:
        code = message.get("code", 1000)
        if message["type"] == "websocket.close" and self.strict:
            if code != 1000 and not 3000 <= code <= 4999:
                raise Exception(f"invalid close code {code} (must be 1000 or from [3000, 4999])")
            assert not self.closes, f"{message} after the close"
        self.came.append(message)
        if message["type"] == "websocket.close" and self.gone:
            raise ConnectionResetError("the client has gone")
        if message["type"] == "websocket.close":
            self.coming.put_nowait({"type": "websocket.disconnect", "code": 1006})

    async def run(self, app: ASGIApp) -> "SocketClient":
        await app(self.scope, self.coming.get, self.send)
        return self

    @property
    def received(self) -> list[Message]:
        """What the application has received after the handshake."""
        return self.scope.get("received", [])  # type: ignore[no-any-return]

    @property
    def closes(self) -> list[tuple[int, str]]:
        return [(m["code"], m.get("reason", "")) for m in self.came if m["type"] == "websocket.close"]


async def listening(scope: Scope, receive: Receive, send: Send) -> None:
    """Accept, and keep what comes until the connection ends, for the `SocketClient` whose scope it is."""
    scope["received"], scope["send"] = [], send
    await receive()
    await send({"type": "websocket.accept"})
    while not scope["received"] or scope["received"][-1]["type"] == "websocket.receive":
        scope["received"].append(await receive())


async def asking(limit: RateLimit, is_patient: bool, scope: Scope, receive: Receive, send: Send) -> None:
    """Accept, ask a limit for each message, and keep those that pass; a refusal ends it where it is not patient."""
    websocket, scope["received"] = WebSocket(scope, receive, send), []
    await websocket.accept()
    async for text in websocket.iter_text():
        with suppress(WebSocketException) if is_patient else nullcontext():
            await limit.check(websocket)
            scope["received"].append({"type": "websocket.receive", "text": text})


async def greet(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.close()


# -- functions of the user's -------------------------------------------------------------------------------------------


def fails(*given: Any) -> Any:
    raise LookupError("no such country")


class Odd:
    """A function that equals everything and cannot be hashed, as an instance of a data class may."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *given: Any) -> Any:
        return self.function(*given)

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def written(function: Callable[..., Any], how: str) -> Callable[..., Any]:
    """Return a function as some user might write it."""

    def plain(*given: Any) -> Any:
        return function(*given)

    async def later(*given: Any) -> Any:
        return function(*given)

    made: dict[str, Callable[..., Any]] = {"plain": plain, "later": later, "odd": Odd(function)}
    return made[how]


# -- one limit in a rule of the middleware, or at an endpoint in each of its forms -------------------------------------


METHODS = ["GET", "HEAD", "POST", "PUT"]
RAISED: dict[str, Exception] = {"raises": RuntimeError("no"), "left": ClientDisconnect()}
RAISED |= {"busy": HTTPException(429, "busy", {"Retry-After": "5"}), "denied": HTTPException(401)}


def answer(request: Request) -> Response:
    """Answer with the status that a request says."""
    status = request.headers.get("x-status", "200")
    if status in RAISED:
        raise RAISED[status]
    return PlainTextResponse("page", int(status))


async def page(request: Request) -> Response:
    return answer(request)


async def item(n: int) -> int:
    return n


def starlette(endpoint: Any, **options: Any) -> Starlette:
    return Starlette(routes=[Route("/", endpoint, methods=METHODS)], **options)


def fastapi(endpoint: Any, of_router: Sequence[Any] = (), of_route: Sequence[Any] = (), **options: Any) -> FastAPI:
    """Return an application whose endpoint is in a router in a router, each with dependencies."""
    app = FastAPI(**options)
    outer, router = APIRouter(dependencies=[*map(Depends, of_router)]), APIRouter()
    router.api_route("/", methods=METHODS, dependencies=[*map(Depends, of_route)])(endpoint)
    outer.include_router(router)
    app.include_router(outer)
    return app


def with_root(root: str, **options: Any) -> FastAPI:
    """Return an application that gives itself a `root_path`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and in use
        return FastAPI(openapi_url=None, root_path=root, **options)


def needing(limit: RateLimit) -> Callable[..., Any]:
    """Return a dependency that depends on a limit."""

    async def needs(_: None = Depends(limit)) -> None:
        pass

    return needs


def class_of(endpoint: Any, decorate: Callable[[Any], Any] = lambda method: method) -> type[HTTPEndpoint]:
    """Return an endpoint class with a method that answers as a function does."""

    async def get(self: object, request: Request) -> Response:
        return await endpoint(request)  # type: ignore[no-any-return]

    get.__qualname__ = "Page.get"
    return type("Page", (HTTPEndpoint,), dict.fromkeys(map(str.lower, METHODS), decorate(get)))


def around(endpoint: Callable[..., Any], how: str = "anybody", limit: Any = None) -> Callable[..., Any]:
    """Return a function that calls an endpoint: as anybody decorates it, or without awaiting it; in a thread, as a sync
    one, which only works there; with a parameter of the kind by which FastAPI gives the request to a limit; or when it
    has asked a limit."""

    @functools.wraps(endpoint)
    async def anybody(*args: Any, **options: Any) -> Any:
        return await endpoint(*args, **options)

    def returned(request: Request) -> Any:
        return endpoint(request)

    def sync(request: Request) -> Any:
        return from_thread.run(endpoint, request)

    async def connected(connection: HTTPConnection, request: Request) -> Any:
        assert connection is request
        return await endpoint(request)

    async def asking(request: Request) -> Any:
        await limit.check(request)
        return await endpoint(request)

    return {"anybody": anybody, "returned": returned, "sync": sync, "connected": connected, "asking": asking}[how]


FORMS: dict[str, Callable[..., ASGIApp]] = {
    "application": lambda limit, endpoint, **options: fastapi(endpoint, dependencies=[Depends(limit)], **options),
    "router": lambda limit, endpoint, **options: fastapi(endpoint, of_router=[limit], **options),
    "dependency": lambda limit, endpoint, **options: fastapi(endpoint, of_route=[limit], **options),
    "needed": lambda limit, endpoint, **options: fastapi(endpoint, of_route=[needing(limit)], **options),
    "decorator": lambda limit, endpoint, **options: fastapi(limit(endpoint), **options),
    "sync": lambda limit, endpoint, **options: fastapi(limit(around(endpoint, "sync")), **options),
    "connection": lambda limit, endpoint, **options: fastapi(limit(around(endpoint, "connected")), **options),
    "starlette": lambda limit, endpoint, **options: starlette(limit(endpoint), **options),
    "partial": lambda limit, endpoint, **options: starlette(limit(functools.partial(endpoint)), **options),
    "under": lambda limit, endpoint, **options: starlette(around(limit(endpoint)), **options),
    "above": lambda limit, endpoint, **options: starlette(limit(around(endpoint)), **options),
    "returned": lambda limit, endpoint, **options: starlette(limit(around(endpoint, "returned")), **options),
    "method": lambda limit, endpoint, **options: starlette(class_of(endpoint, limit), **options),
    "checked": lambda limit, endpoint, **options: starlette(around(endpoint, "asking", limit), **options),
    "mounted": lambda limit, endpoint, **options: Starlette(routes=[Mount("/", starlette(limit(endpoint), **options))]),
}
"""All forms of a limit at an endpoint, which is at ``/``: each takes the limit and a function."""
