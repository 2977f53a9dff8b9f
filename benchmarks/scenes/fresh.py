"""Floods of what is always new: addresses, header values, spellings of paths."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from ipaddress import ip_address
from random import Random

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Scope

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule, header

from .. import apps
from ..asgi import scope_of
from .field import Seen, play

PLENTY = "1000000/minute"
KEYS = 150_000
PEER_KEYS = 100_000
VARIANTS = 50_000
LONG_PATHS = 1_000
RULES = 1_000
FIRST_IPV4 = int(ip_address("198.18.0.0"))
ATTACKER = "203.0.113.66"
PATH = "/items/7"


async def page(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hi")


def starlette() -> Starlette:
    return Starlette(routes=[Route(path, page) for path in ("/items/{id}", "/shops/{shop}/{number}/{item:int}")])


async def keys(scale: float, scopes: Callable[[int], Iterator[Scope]], rule: Rule) -> Seen:
    """Send requests that each have a key of their own, three times as many as the store has room for."""
    count = int(KEYS * scale)
    store = MemoryStore(max_keys=count // 3)
    app = starlette()
    app.add_middleware(RateLimitMiddleware, rules=[rule], limiter=Limiter(store))
    seen = await play(app, starlette(), scopes, count)
    if store.stats().keys > store.max_keys:
        raise SystemExit(f"{store!r} holds too many windows")
    return seen


def addresses(count: int) -> Iterator[Scope]:
    return (scope_of(PATH, str(ip_address(FIRST_IPV4 + number))) for number in range(count))


async def ipv4(scale: float) -> Seen:
    """Let every request come from an IPv4 address of its own."""
    return await keys(scale, addresses, Rule("*", PLENTY))


async def ipv4_to(make: Callable[[apps.Allowed], Awaitable[ASGIApp]], scale: float) -> Seen:
    """Let every request to another library come from an IPv4 address of its own."""
    app = await make(apps.PLENTY)
    return await play(app, apps.starlette(10), addresses, int(PEER_KEYS * scale))


async def ipv6(scale: float) -> Seen:
    """Let requests come from one IPv6 /48; its 65,536 networks of 64 bits are one client each."""

    def scopes(count: int) -> Iterator[Scope]:
        return (scope_of(PATH, f"2001:db8:0:{number % 65_536:x}::{number:x}") for number in range(count))

    return await keys(scale, scopes, Rule("*", PLENTY))


async def header_values(scale: float) -> Seen:
    """Let one client send a new API key with every request; one in 16 is as long as servers let it be."""

    def scopes(count: int) -> Iterator[Scope]:
        chance = Random(64)
        for number in range(count):
            value = b"%032x" % chance.getrandbits(128)
            yield scope_of(PATH, ATTACKER, [(b"x-api-key", value * (250 if number % 16 == 0 else 1))])

    return await keys(scale, scopes, Rule("*", PLENTY, key=header("X-API-Key")))


def behind_rules() -> Starlette:
    app = starlette()
    rules = [Rule(f"/shops/{{shop}}/{number}/{{item:int}}", PLENTY) for number in range(RULES)]
    app.add_middleware(RateLimitMiddleware, rules=rules, limiter=Limiter(MemoryStore()))
    return app


async def path_variants(scale: float) -> Seen:
    """Ask an application with a thousand rules for different paths: of rules, of none, and in odd spellings."""
    shapes = (
        "/shops/a/500/{}",
        "/shops/{}/500/7",
        "/no/{}",
        "/shops/a/500/7;v={}",
        "//shops/./{}/500/7",
        "/x/../{}%2e\n",
    )

    def scopes(count: int) -> Iterator[Scope]:
        return (scope_of(shapes[number % len(shapes)].format(number), ATTACKER) for number in range(count))

    return await play(behind_rules(), starlette(), scopes, int(VARIANTS * scale), path="/shops/mine/400/7")


async def long_paths(scale: float) -> Seen:
    """Ask for odd paths that are too long to be read, so that every one of a thousand rules counts them."""

    def scopes(count: int) -> Iterator[Scope]:
        return (scope_of(f"//{number}{'/x' * 4_000}", ATTACKER) for number in range(count))

    return await play(behind_rules(), starlette(), scopes, int(LONG_PATHS * scale), path="/shops/mine/400/7")
