"""The applications that are measured: bare ones, slidegate in many configurations, and peers set up as documented.

All have ten routes, or a thousand, with an endpoint each, and use only what both compared versions of slidegate have.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple

from fastapi import Depends, FastAPI
from fastapi_limiter.depends import RateLimiter
from pyrate_limiter import Limiter as PyrateLimiter
from pyrate_limiter import Rate
from ratelimit import RateLimitMiddleware as PeerMiddleware
from ratelimit import Rule as PeerRule
from ratelimit.backends.simple import MemoryBackend
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slidegate import Limiter, MessageLimits, RateLimit, RateLimitMiddleware

from .rounds import Round
from .traffic import TEMPLATES, Client, Traffic, client_of, now_ns, other_code, scope_of, timed

USUAL: Final = Traffic()
PLENTY: Final = "2000000000/minute"
ONE: Final = "1/hour"
RATES: Final = {PLENTY: Rate(2_000_000_000, 60_000), ONE: Rate(1, 3_600_000)}
REQUESTS: Final = 200  # of each candidate in a round


class App(NamedTuple):
    """One candidate: what makes the application, the requests that it gets, and the status of every response."""

    make: Callable[[], Awaitable[ASGIApp]]
    traffic: Traffic = USUAL
    status: int = 200

    async def warm(self) -> ASGIApp:
        """Return the application, after requests of every client to every route."""
        made, client = await self.make(), Client()
        for scope in self.traffic.warm_up():
            await client.ask(made, scope)
        return made

    async def __call__(self) -> Round:
        made = await self.warm()
        return lambda turn: timed(made, self.traffic.round(turn, REQUESTS), REQUESTS, self.status)


def templates(routes: int) -> list[str]:
    """Return templates of `routes` routes; the ten that requests match are evenly distributed among them."""
    others = range(routes // len(TEMPLATES) - 1)
    groups = [[*(f"/shops/{number}/{other}/{{id}}" for other in others), met] for number, met in enumerate(TEMPLATES)]
    return [template for group in groups for template in group]


def endpoint(number: int) -> Callable[[Request], Awaitable[PlainTextResponse]]:
    """Return an endpoint with a unique name, because some limiters identify endpoints by name."""

    async def page(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hi")

    page.__name__ = f"page_{number}"
    return page


async def bare(routes: int = 10) -> Starlette:
    return Starlette(routes=[Route(template, endpoint(place)) for place, template in enumerate(templates(routes))])


async def limited(
    routes: int = 10,
    banned: Iterable[str] = (),
    attach: Callable[[Limiter], object] = lambda limiter: None,
    **options: Any,
) -> ASGIApp:
    """Return the application behind our middleware, with addresses and networks that are banned, and observers."""
    limiter = Limiter()
    attach(limiter)
    for address in banned:
        await limiter.ban(address, "1h")
    app = await bare(routes)
    app.add_middleware(RateLimitMiddleware, limiter=limiter, **options)
    return app


async def client_of_peer(scope: Scope) -> tuple[str, str]:
    return scope["client"][0], "default"


async def api_key_of_peer(scope: Scope) -> tuple[str, str]:
    return next(value.decode() for name, value in scope["headers"] if name == b"x-api-key"), "default"


async def asgi_ratelimit(
    patterns: Iterable[str] = ("^/",),
    who: Callable[[Scope], Awaitable[tuple[str, str]]] = client_of_peer,
) -> ASGIApp:
    """Return the application behind asgi-ratelimit, with a zone so that a client is counted over all paths."""
    config = {pattern: [PeerRule(zone=pattern, minute=2_000_000_000)] for pattern in patterns}
    app = await bare()
    app.add_middleware(PeerMiddleware, authenticate=who, backend=MemoryBackend(), config=config)
    return app


async def fastapi(limit: str = "", limits: str = PLENTY) -> ASGIApp:
    """Return a FastAPI application whose endpoints have a limit, by one of our two ways or by that of the peer."""
    app = FastAPI()
    for template in TEMPLATES:

        async def page(id: str) -> str:
            return "hi"

        dependencies, endpoint = [], page
        if limit == "dependency":
            dependencies = [Depends(RateLimit(limits))]
        if limit == "decorator":
            endpoint = RateLimit(limits)(page)
        if limit == "fastapi-limiter":
            dependencies = [Depends(RateLimiter(limiter=PyrateLimiter(RATES[limits])))]
        app.get(template, dependencies=dependencies)(endpoint)
    if limit in ("dependency", "decorator"):
        app.add_middleware(RateLimitMiddleware, rules=[], limiter=Limiter())
    return app


async def listener(scope: Scope, receive: Receive, send: Send) -> None:
    while (message := await receive())["type"] != "websocket.disconnect":
        if message["type"] == "websocket.connect":
            await send({"type": "websocket.accept"})


class Server:
    """The server of a websocket, which takes the time for its messages; other code runs before each."""

    taken_ns = began_ns = 0
    number = -1

    async def receive(self) -> Message:
        self.taken_ns += now_ns() - self.began_ns
        self.number += 1
        if self.number == 0:
            message = {"type": "websocket.connect"}
        elif self.number <= REQUESTS:
            await other_code(self.number)
            message = {"type": "websocket.receive", "text": "hi"}
        else:
            message = {"type": "websocket.disconnect", "code": 1000}
        if self.number == 1:
            self.taken_ns = 0  # the handshake is no message
        self.began_ns = now_ns()
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "websocket.close":
            raise RuntimeError("the websocket was closed")


async def messages(limited: bool) -> Round:
    """Return the rounds of a websocket, with a limit or without a middleware."""

    async def one_round(turn: int) -> float:
        limits = MessageLimits(PLENTY)
        app = RateLimitMiddleware(listener, messages=limits) if limited else listener
        server, scope = Server(), {**scope_of("/feed", client_of(turn % 256)), "type": "websocket"}
        del scope["method"]
        await app(scope, server.receive, server.send)
        return server.taken_ns / REQUESTS / 1_000

    return one_round
