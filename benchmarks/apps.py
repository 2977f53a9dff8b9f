"""The applications that are measured: bare ones, slidegate in many configurations, and peers set up as documented.

All have ten routes, or a thousand, with an endpoint each, and admit the same requests. Only names that both compared
versions of slidegate have are used.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from ipaddress import IPv4Network
from itertools import islice
from typing import Any, Final, NamedTuple

import redis.asyncio
from fastapi import Depends, FastAPI
from fastapi_limiter.depends import RateLimiter
from prometheus_client import CollectorRegistry
from pyrate_limiter import Limiter as PyrateLimiter
from pyrate_limiter import Rate
from pyrate_limiter.buckets.redis_bucket import RedisBucket
from ratelimit import RateLimitMiddleware as PeerMiddleware
from ratelimit import Rule as PeerRule
from ratelimit.backends.simple import MemoryBackend
from slowapi import Limiter as SlowApi
from slowapi.middleware import SlowAPIASGIMiddleware
from slowapi.util import get_remote_address
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Scope

from slidegate import BanPolicy, Limiter, Networks, RateLimit, RateLimitMiddleware, Rule, client_ip, header
from slidegate.ops.statistics import Statistics
from slidegate.prometheus import PrometheusMetrics

from .traffic import PROXY, TEMPLATES, Traffic, client_of

PROXIES: Final = ["10.0.0.0/8", "127.0.0.0/8"]
NETWORKS: Final = [str(network) for network in islice(IPv4Network("198.18.0.0/15").subnets(new_prefix=26), 0, 2_000, 2)]
"""A thousand networks, no two of which are adjacent."""
STORE: Final = "SLIDEGATE_BENCH_STORE"
"""The variable with the address of the store that workers share; without it each worker has a memory store."""


class Allowed(NamedTuple):
    """The limit of each client."""

    amount: int
    unit: str

    def __str__(self) -> str:
        return f"{self.amount}/{self.unit}"


USUAL: Final = Traffic()
PROXIED: Final = Traffic(proxy=PROXY)
ON_UNIX_SOCKET: Final = Traffic(proxy="")
NEW_PATHS: Final = Traffic(new_paths=True)
BUSY: Final = Traffic(clients=10_000, paths=1_000)
KEYS: Final = Traffic(keys=100_000)
PLENTY: Final = Allowed(2_000_000_000, "minute")
ONE: Final = Allowed(1, "hour")


class App(NamedTuple):
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


def five_rules(limits: str) -> list[Rule]:
    """Return five rules with the same limits, the first of which that matches counts a request, as for the peer."""
    paths = ("/api/{rest:path}", "/items/{id}", "/export/{id}")
    login = Rule("/login", limits, methods=["POST"], final=True)
    return [login, *(Rule(path, limits, final=True) for path in paths), Rule("*", limits)]


def rule_of_each(limits: str) -> list[Rule]:
    """Return a rule for each of the ten routes."""
    return [Rule(template, limits) for template in TEMPLATES]


def with_shadow(limits: str) -> list[Rule]:
    return [Rule("*", limits), Rule("*", limits, name="tried", shadow=True)]


def waiting_beside_count_denied(limits: str) -> list[Rule]:
    return [Rule("*", limits, wait="200ms"), Rule("*", limits, name="strict", count_denied=True)]


def with_prometheus(limiter: Limiter) -> PrometheusMetrics:
    return PrometheusMetrics(limiter, registry=CollectorRegistry())


async def ours(
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
    limiter = Limiter.from_url(os.environ.get(STORE, "memory://"))
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


async def slowapi_on_redis(allowed: Allowed) -> ASGIApp:
    """Return the application behind slowapi's faster middleware, with its default, a fixed window."""
    app, store = await bare(allowed), os.environ[STORE]
    app.state.limiter = SlowApi(key_func=get_remote_address, application_limits=[str(allowed)], storage_uri=store)
    app.add_middleware(SlowAPIASGIMiddleware)
    return app


async def fastapi_limiter_on_redis(allowed: Allowed) -> ASGIApp:
    """Return a FastAPI application whose routes depend on fastapi-limiter, with one bucket for all workers."""
    client = redis.asyncio.Redis.from_url(os.environ[STORE])
    limiter = PyrateLimiter(await RedisBucket.init([Rate(allowed.amount, 60_000)], client, "everybody"))
    return bare_fastapi(lambda: [Depends(RateLimiter(limiter=limiter))])


def behind_ours(traffic: Traffic = USUAL, status: int = 200, allowed: Allowed = PLENTY, **options: Any) -> App:
    return App(partial(ours, **options), traffic, status, allowed)


def one_rule(**options: Any) -> dict[str, Any]:
    """Return the option of one rule for all requests."""
    return {"rules": lambda limits: [Rule("*", limits, **options)]}


def arrangements() -> dict[str, App]:
    """Return configurations of slidegate in memory."""
    proxies: dict[str, Any] = {"client": client_ip(trusted=PROXIES)}
    policy: dict[str, Any] = {"bans": BanPolicy(after="20/10m", duration="1h", factor=4, longest="7d")}
    blocklist: dict[str, Any] = {"blocklist": Networks(NETWORKS)}
    everything = partial(behind_ours, PROXIED, rules=five_rules, **proxies, **policy, **blocklist)
    refused = partial(behind_ours, NEW_PATHS, 429, ONE)
    return {
        "default": behind_ours(),
        "trusted proxies": behind_ours(PROXIED, **proxies),
        "ban policy": behind_ours(**policy),
        "blocklist": behind_ours(**blocklist),
        "everything": everything(),
        "everything, statistics": everything(attach=Statistics.of),
        "everything, Prometheus": everything(attach=with_prometheus),
        "header key": behind_ours(Traffic(keys=256), **one_rule(key=header("X-API-Key"))),
        "header key, 100,000 values": behind_ours(KEYS, **one_rule(key=header("X-API-Key"))),
        "count_if": behind_ours(**one_rule(count_if=lambda status: status == 200)),
        "concurrency": behind_ours(**one_rule(concurrency=100)),
        "key function": behind_ours(**one_rule(key=lambda request: request.client.host)),
        "condition": behind_ours(**one_rule(when=lambda request: True)),
        "shadow": behind_ours(rules=with_shadow),
        "idle wait": behind_ours(**one_rule(wait="200ms")),
        "wait beside count_denied": behind_ours(rules=waiting_beside_count_denied),
        "Unix socket": behind_ours(ON_UNIX_SOCKET, client=client_ip(trusted=["unix"])),
        "ten rules": behind_ours(rules=rule_of_each),
        "10,000 clients, 1,000 paths": behind_ours(BUSY),
        "two windows": behind_ours(limits="{0}; {0.amount}/day"),
        "an address banned": behind_ours(banned=["192.0.2.7"]),
        "a network banned": behind_ours(banned=["192.0.2.0/24"]),
        "refused by a limit": behind_ours(USUAL, 429, ONE),
        "refused by a ban": behind_ours(USUAL, 403, banned=[client_of(number) for number in range(256)]),
        "10 routes, refused": refused(),
        "1,000 routes, refused": refused(routes=1_000),
        "10 routes, default_limits": refused(by_route=True),
        "1,000 routes, default_limits": refused(by_route=True, routes=1_000),
    }


def candidates() -> dict[str, App]:
    """Return all candidates by name."""
    five = ("^/login", "^/api/", "^/items/", "^/export/", "^/")
    at_endpoints = {name: partial(fastapi, limit=name) for name in ("dependency", "decorator", "fastapi-limiter")}
    return {
        "bare Starlette": App(bare),
        "bare Starlette, 10 routes": App(bare, NEW_PATHS),
        "bare Starlette, 1,000 routes": App(partial(bare, routes=1_000), NEW_PATHS),
        "bare Starlette, 10,000 clients": App(bare, BUSY),
        "bare Starlette, 100,000 values": App(bare, KEYS),
        **arrangements(),
        "asgi-ratelimit": App(asgi_ratelimit),
        "asgi-ratelimit, once more": App(asgi_ratelimit),
        "asgi-ratelimit, 10,000 clients": App(asgi_ratelimit, BUSY),
        "asgi-ratelimit, 100,000 values": App(partial(asgi_ratelimit, who=api_key_of_peer), KEYS),
        "asgi-ratelimit, five patterns": App(partial(asgi_ratelimit, patterns=five)),
        "slowapi, Redis": App(slowapi_on_redis),
        "fastapi-limiter, Redis": App(fastapi_limiter_on_redis),
        "bare FastAPI": App(fastapi),
        **{name: App(make) for name, make in at_endpoints.items()},
        **{f"{name}, refused": App(make, USUAL, 429, ONE) for name, make in at_endpoints.items()},
    }
