"""Applications with the mistakes that `slidegate check` finds, and one without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

from slidegate import BanPolicy, Limiter, RateLimit, RateLimitMiddleware, Rule, header
from slidegate.admin import AdminRoutes

events: list[str] = []


async def page(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


async def talk(websocket: WebSocket) -> None:
    await websocket.close()


@RateLimit("5/second")
async def limited(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


@RateLimit.exempt
async def exempt(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    events.append("start")
    yield
    events.append("end")


ROUTES = [
    Route("/items/{id:int}", page),
    Route("/items/{id:int}", page, methods=["DELETE"]),
    Route("/limited", limited),
    Mount("/admin", routes=[Route("/users", page), WebSocketRoute("/talk", talk)]),
]

healthy = Starlette(routes=ROUTES, lifespan=lifespan)
healthy.add_middleware(RateLimitMiddleware, limits="600/minute")
healthy.add_middleware(CORSMiddleware, expose_headers=["Retry-After", "RateLimit", "RateLimit-Policy"])

bare = Starlette(routes=ROUTES)

uncovered = Starlette(routes=ROUTES)
uncovered.add_middleware(
    RateLimitMiddleware,
    rules=[
        Rule("/items/{id}", "5/minute", methods=["GET"]),
        Rule("/admin/{rest:path}", "5/minute", connection="http"),
        Rule("/nowhere", "5/minute", name="lost"),
        Rule("/items/x", "5/minute", name="no-number"),
        Rule("/wp-login.php", block=True),
    ],
)

hidden = Starlette(routes=ROUTES)
hidden.add_middleware(RateLimitMiddleware, limits="600/minute")
hidden.add_middleware(CORSMiddleware, expose_headers=["Retry-After"])

inside_out = Starlette(routes=ROUTES)
inside_out.add_middleware(CORSMiddleware)
inside_out.add_middleware(RateLimitMiddleware, rules=[Rule("*", "9/s", final=True), Rule("/limited", "5/s")])

fast = FastAPI(openapi_url=None)
fast.add_middleware(RateLimitMiddleware, rules=[Rule("/covered", "5/minute")])


@fast.get("/covered")
async def covered() -> str:
    return "hello"


@fast.get("/depends", dependencies=[Depends(RateLimit("5/second"))])
async def depends() -> str:
    return "hello"


@fast.get("/open")
async def open_to_all() -> str:
    return "hello"


broken = Starlette(routes=ROUTES)
broken.add_middleware(RateLimitMiddleware, limits="5/minit")


@asynccontextmanager
async def no_database(app: Starlette) -> AsyncIterator[None]:
    raise RuntimeError("no\ndatabase")
    yield


failing = Starlette(routes=ROUTES, lifespan=no_database)


async def no_lifespan(scope: object, receive: object, send: object) -> None:
    raise AssertionError("this application knows no lifespan")


async def stuck(scope: object, receive: object, send: object) -> None:
    await asyncio.Event().wait()


documented = FastAPI()
documented.add_middleware(RateLimitMiddleware, rules=[Rule("/covered", "5/minute")])
documented.get("/covered")(covered)
documented.get("/open")(open_to_all)

ONE = [Route("/one", page)]
LIMITED = Middleware(RateLimitMiddleware, limits="60/minute")

# A mounted application makes its middleware at its first request.
mounting = Starlette(routes=[Mount("/v1", Starlette(routes=ONE, middleware=[LIMITED]))])
half = Starlette(routes=[Route("/free", page), Mount("/v1", Starlette(routes=ONE, middleware=[LIMITED]))])


def with_rules(*rules: Rule, bans: BanPolicy | None = None) -> Starlette:
    return Starlette(routes=ONE, middleware=[Middleware(RateLimitMiddleware, rules=rules, bans=bans)])


chosen = with_rules(Rule("/one", "5/minute", key=header("X-API-Key")))
shadowed = with_rules(Rule("*", "5/minute", shadow=True))
never = with_rules(Rule("*", "5/minute", shadow=True), bans=BanPolicy("5/m"))
late = with_rules(Rule("*", "5/minute"), bans=BanPolicy("5/m", signals={429: 1}))
inner = Starlette(
    routes=ONE,
    middleware=[
        Middleware(RateLimitMiddleware, rules=[Rule("*", "5/minute", name="outer")]),
        Middleware(RateLimitMiddleware, rules=[Rule("/one", "60/minute", name="inner")]),
    ],
)

seeing, blind = Limiter(), Limiter()
SEEN = [Rule("/seen/{rest:path}", exempt=True), Rule("/blind/{rest:path}", exempt=True), Rule("*", "60/minute")]
TOOLS = [Mount("/seen", AdminRoutes(seeing, token="t" * 20)), Mount("/blind", AdminRoutes(blind, token="t" * 20))]
aside = Starlette(routes=[*ONE, *TOOLS], middleware=[Middleware(RateLimitMiddleware, limiter=seeing, rules=SEEN)])
