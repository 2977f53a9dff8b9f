"""The applications that are measured: bare ones, slidegate in many configurations, and peers set up as documented.

All have ten routes, or a thousand, with an endpoint each, and admit the same requests. Only names that both compared
versions of slidegate have are used.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
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
from starlette.types import ASGIApp, Scope

from slidegate import Limiter, RateLimit, RateLimitMiddleware, Rule

from .rounds import Round
from .traffic import TEMPLATES, Client, Traffic, timed


class Allowed(NamedTuple):
    """The limit of each client."""

    amount: int
    unit: str

    def __str__(self) -> str:
        return f"{self.amount}/{self.unit}"


USUAL: Final = Traffic()
PLENTY: Final = Allowed(2_000_000_000, "minute")
ONE: Final = Allowed(1, "hour")


@dataclass(frozen=True)
class App:
    """One candidate.

    Attributes:
        make: Returns the application with a limit.
        traffic: The requests that it gets.
        status: The status of every response.
        allowed: The limit during the measurement.
    """

    make: Callable[[Allowed], Awaitable[ASGIApp]]
    traffic: Traffic = USUAL
    status: int = 200
    allowed: Allowed = PLENTY

    async def warm(self) -> ASGIApp:
        """Return the application, after requests of every client to every route."""
        made, client = await self.make(self.allowed), Client()
        for scope in self.traffic.warm_up():
            await client.ask(made, scope)
        return made

    async def __call__(self, requests: int) -> Round:
        """Return the rounds of this candidate."""
        made = await self.warm()
        return lambda turn: timed(made, self.traffic.round(turn, requests), requests, self.status)


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


async def bare(allowed: Allowed, routes: int = 10) -> Starlette:
    return Starlette(routes=[Route(template, endpoint(place)) for place, template in enumerate(templates(routes))])


async def limited(
    allowed: Allowed,
    *,
    routes: int = 10,
    limits: str = "{0}",
    rules: Callable[[str], list[Rule]] | None = None,
    by_route: bool = False,
    banned: Iterable[str] = (),
    attach: Callable[[Limiter], object] = lambda limiter: None,
    **options: Any,
) -> ASGIApp:
    """Return the application behind our middleware.

    Args:
        allowed: The amount and unit of every limit.
        routes: The number of routes.
        limits: The limits of a client, as a format string for `allowed`.
        rules: Returns rules with these limits, to use instead of the limits.
        by_route: Whether each route has its own limits (`default_limits`).
        banned: The addresses and networks that are banned.
        attach: Attaches observers to the limiter.
        **options: Options of `RateLimitMiddleware`.
    """
    written = limits.format(allowed)
    if rules:
        options["rules"] = rules(written)
    else:
        options["default_limits" if by_route else "limits"] = written
    limiter = Limiter()
    attach(limiter)
    for address in banned:
        await limiter.ban(address, "1h")
    app = await bare(allowed, routes)
    app.add_middleware(RateLimitMiddleware, limiter=limiter, **options)
    return app


async def client_of_peer(scope: Scope) -> tuple[str, str]:
    return scope["client"][0], "default"


async def api_key_of_peer(scope: Scope) -> tuple[str, str]:
    return next(value.decode() for name, value in scope["headers"] if name == b"x-api-key"), "default"


async def asgi_ratelimit(
    allowed: Allowed,
    patterns: Iterable[str] = ("^/",),
    who: Callable[[Scope], Awaitable[tuple[str, str]]] = client_of_peer,
) -> ASGIApp:
    """Return the application behind asgi-ratelimit, with a zone so that a client is counted over all paths."""
    config = {pattern: [PeerRule(zone=pattern, **{allowed.unit: allowed.amount})] for pattern in patterns}
    app = await bare(allowed)
    app.add_middleware(PeerMiddleware, authenticate=who, backend=MemoryBackend(), config=config)
    return app


def bare_fastapi(dependencies: Callable[[], list[Any]] = list, decorate: Callable[[Any], Any] | None = None) -> FastAPI:
    """Return a FastAPI application, with the dependencies of each route, and what decorates its endpoint."""
    app = FastAPI()
    for template in TEMPLATES:

        async def page(id: str) -> str:
            return "hi"

        app.get(template, dependencies=dependencies())(page if decorate is None else decorate(page))
    return app


async def fastapi(allowed: Allowed, limit: str = "") -> ASGIApp:
    """Return a FastAPI application whose endpoints have a limit, by one of our two ways or by that of the peer."""
    written = str(allowed)
    rate = Rate(allowed.amount, {"minute": 60_000, "hour": 3_600_000}[allowed.unit])
    dependencies = {
        "dependency": lambda: [Depends(RateLimit(written))],
        "fastapi-limiter": lambda: [Depends(RateLimiter(limiter=PyrateLimiter(rate)))],
    }.get(limit, list)
    app = bare_fastapi(dependencies, (lambda page: RateLimit(written)(page)) if limit == "decorator" else None)
    if limit in ("dependency", "decorator"):
        app.add_middleware(RateLimitMiddleware, rules=[], limiter=Limiter())
    return app
