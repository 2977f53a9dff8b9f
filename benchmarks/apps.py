"""The applications that are measured: bare ones, slidegate in many configurations, and peers set up as documented.

All have ten routes, or a thousand, with an endpoint each, and admit the same requests. Only names that both compared
versions of slidegate have are used.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from ipaddress import IPv4Network
from itertools import islice
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

from slidegate import BanPolicy, Limiter, MemoryStore, Networks, RateLimit, RateLimitMiddleware, Rule, client_ip
from slidegate.stats import Statistics

TEMPLATES: Final = (
    "/items/{id}",
    "/users/{id}",
    "/users/{id}/orders",
    "/api/orders/{id}",
    "/api/invoices/{id}",
    "/api/carts/{id}/lines",
    "/export/{id}",
    "/pages/{id}",
    "/search/{id}",
    "/files/{id}/info",
)
CLIENTS: Final = tuple(f"203.0.113.{number}" for number in range(256))
PROXY: Final = "10.0.0.1"
PROXIES: Final = ["10.0.0.0/8", "127.0.0.0/8"]
NETWORKS: Final = [str(network) for network in islice(IPv4Network("198.18.0.0/15").subnets(new_prefix=26), 0, 2_000, 2)]
"""A thousand networks, no two of which are adjacent."""
BLOCKED: Final = "198.18.0.1"
ELSEWHERE: Final = "192.0.2.7"
NETWORK_ELSEWHERE: Final = "192.0.2.0/24"


class Allowed(NamedTuple):
    """The limit of each client."""

    amount: int
    unit: str


PLENTY: Final = Allowed(2_000_000_000, "minute")
ONE: Final = Allowed(1, "hour")
FEW: Final = Allowed(3, "hour")

STORE: Final = "SLIDEGATE_BENCH_STORE"
"""The variable with the address of the store that workers share; without it each worker has a memory store."""

Make = Callable[[Allowed], Awaitable[ASGIApp]]
SECONDS: Final = {"minute": 60, "hour": 3_600}


def endpoint(number: int) -> Callable[[Request], Awaitable[PlainTextResponse]]:
    """Return an endpoint with a unique name, because slowapi identifies endpoints by name."""

    async def page(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hi")

    page.__name__ = f"page_{number}"
    return page


def templates(routes: int) -> list[str]:
    """Return templates of `routes` routes; the ten that requests match are evenly distributed among them."""
    others = routes // len(TEMPLATES) - 1
    return [
        template
        for number, met in enumerate(TEMPLATES)
        for template in (*(f"/shops/{number}/{other}/{{id}}" for other in range(others)), met)
    ]


def starlette(routes: int) -> Starlette:
    return Starlette(routes=[Route(template, endpoint(place)) for place, template in enumerate(templates(routes))])


async def bare(allowed: Allowed, *, routes: int = 10) -> ASGIApp:
    return starlette(routes)


def five_rules(written: str) -> list[Rule]:
    """Return five rules with the same limits; half of the requests match two of them."""
    return [
        Rule("/login", written, methods=["POST"]),
        Rule("/api/{rest:path}", written, name="api"),
        Rule("/items/{id}", written),
        Rule("/export/{id}", written),
        Rule("*", written),
    ]


def thousand_rules(written: str) -> list[Rule]:
    """Return a thousand rules; each request matches one of them."""
    return [Rule(template, written) for template in templates(1_000)]


async def ours(
    allowed: Allowed,
    *,
    routes: int = 10,
    limits: str = "{0.amount}/{0.unit}",
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
    limiter = Limiter.from_url(os.environ.get(STORE, "memory://"))
    attach(limiter)
    for address in banned:
        await limiter.ban(address, "1h")
    app = starlette(routes)
    app.add_middleware(RateLimitMiddleware, limiter=limiter, **options)
    return app


async def asgi_ratelimit(allowed: Allowed, *, patterns: Sequence[str] = ("^/",)) -> ASGIApp:
    """Return the application behind asgi-ratelimit, with a zone so that a client is counted over all paths."""

    async def who(scope: Scope) -> tuple[str, str]:
        return scope["client"][0], "default"

    config = {pattern: [PeerRule(zone=pattern, **{allowed.unit: allowed.amount})] for pattern in patterns}
    app = starlette(10)
    app.add_middleware(PeerMiddleware, authenticate=who, backend=MemoryBackend(), config=config)
    return app


def fastapi(
    dependencies: Callable[[], Sequence[Any]] = tuple, decorate: Callable[[Any], Any] = lambda page: page
) -> FastAPI:
    """Return a FastAPI application whose endpoints have the given dependencies and decorator."""
    app = FastAPI()
    for template in TEMPLATES:

        async def page(id: str) -> str:
            return "hi"

        app.get(template, dependencies=dependencies())(decorate(page))
    return app


async def bare_fastapi(allowed: Allowed) -> ASGIApp:
    return fastapi()


async def our_dependency(allowed: Allowed) -> ASGIApp:
    app = fastapi(lambda: [Depends(RateLimit(f"{allowed.amount}/{allowed.unit}"))])
    app.add_middleware(RateLimitMiddleware, rules=[], limiter=Limiter(MemoryStore()))
    return app


async def our_decorator(allowed: Allowed) -> ASGIApp:
    app = fastapi(decorate=lambda page: RateLimit(f"{allowed.amount}/{allowed.unit}")(page))
    app.add_middleware(RateLimitMiddleware, rules=[], limiter=Limiter(MemoryStore()))
    return app


async def fastapi_limiter(allowed: Allowed) -> ASGIApp:
    rate = Rate(allowed.amount, SECONDS[allowed.unit] * 1_000)
    return fastapi(lambda: [Depends(RateLimiter(limiter=PyrateLimiter(rate)))])


class App(NamedTuple):
    """One candidate.

    Attributes:
        make: Returns the application.
        allowed: The limit during the measurement.
        status: The status of every response.
        limited: Whether it counts; only bare applications do not.
        ours: Whether it must send the header fields of slidegate.
        by_client: Whether it counts each client separately.
        new_paths: Whether every path is requested only once.
        proxied: Whether requests come through a proxy.
        bans: Whether clients that continue after refusals are banned.
        blocks: Whether the networks of the blocklist are refused.
    """

    make: Make
    allowed: Allowed = PLENTY
    status: int = 200
    limited: bool = True
    ours: bool = False
    by_client: bool = True
    new_paths: bool = False
    proxied: bool = False
    bans: bool = False
    blocks: bool = False


def behind_ours(allowed: Allowed = PLENTY, status: int = 200, *, new_paths: bool = False, **options: Any) -> App:
    """Return a candidate with our middleware; the properties to check follow from its options."""
    return App(
        partial(ours, **options),
        allowed,
        status,
        ours=True,
        limited=CLIENTS[0] not in options.get("banned", ()),
        new_paths=new_paths,
        proxied="client" in options,
        bans="bans" in options,
        blocks="blocklist" in options,
    )


def in_arrangements() -> dict[str, App]:
    """Return configurations of slidegate in memory with ten routes; only one has an observer, as its name says."""
    proxies = {"client": client_ip(trusted=PROXIES)}
    policy = {"bans": BanPolicy(after="20/10m", duration="1h", factor=4, longest="7d")}
    blocklist = {"blocklist": Networks(NETWORKS)}
    everything = {"rules": five_rules, **proxies, **policy, **blocklist}
    return {
        "default": behind_ours(),
        "trusted proxies": behind_ours(**proxies),
        "ban policy": behind_ours(**policy),
        "blocklist": behind_ours(**blocklist),
        "everything": behind_ours(**everything),
        "everything, statistics listening": behind_ours(attach=Statistics, **everything),
        "default_limits": behind_ours(by_route=True),
        "1,000 rules": behind_ours(rules=thousand_rules),
        "two windows": behind_ours(limits="{0.amount}/{0.unit}; {0.amount}/day"),
        "an address banned": behind_ours(banned=[ELSEWHERE]),
        "a network banned": behind_ours(banned=[NETWORK_ELSEWHERE]),
        "refused by a limit": behind_ours(ONE, 429),
        "refused by a ban": behind_ours(status=403, banned=CLIENTS),
    }


def on_new_paths() -> dict[str, App]:
    """Return the candidates for paths that were never requested before."""
    refused = partial(behind_ours, ONE, 429, new_paths=True)
    many = partial(bare, routes=1_000)
    return {
        "bare Starlette, 10 routes": App(bare, limited=False, new_paths=True),
        "bare Starlette, 1,000 routes": App(many, limited=False, new_paths=True),
        "10 routes, refused": refused(),
        "1,000 routes, refused": refused(routes=1_000),
        "1,000 rules, refused": refused(rules=thousand_rules),
        "10 routes, refused by default_limits": refused(by_route=True),
        "1,000 routes, refused by default_limits": refused(by_route=True, routes=1_000),
    }


def candidates() -> dict[str, App]:
    """Return all candidates by name."""
    five = ("^/login", "^/api/", "^/items/", "^/export/", "^/")
    return {
        "bare Starlette": App(bare, limited=False),
        **in_arrangements(),
        "asgi-ratelimit": App(asgi_ratelimit),
        "asgi-ratelimit, once more": App(asgi_ratelimit),
        "asgi-ratelimit, five patterns": App(partial(asgi_ratelimit, patterns=five)),
        **on_new_paths(),
        "bare FastAPI": App(bare_fastapi, limited=False),
        "dependency": App(our_dependency, ours=True),
        "decorator": App(our_decorator, ours=True),
        "fastapi-limiter": App(fastapi_limiter, by_client=False),
        "dependency, refused": App(our_dependency, ONE, 429, ours=True),
        "decorator, refused": App(our_decorator, ONE, 429, ours=True),
        "fastapi-limiter, refused": App(fastapi_limiter, ONE, 429, by_client=False),
    }
