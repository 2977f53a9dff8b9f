"""Applications with the mistakes that `slidegate check` finds, and one without."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

from slidegate import RateLimitMiddleware, Rule

events: list[str] = []


async def page(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


async def talk(websocket: WebSocket) -> None:
    await websocket.close()


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    events.append("start")
    yield
    events.append("end")


ROUTES = [
    Route("/items/{id:int}", page),
    Route("/items/{id:int}", page, methods=["DELETE"]),
    Mount("/admin", routes=[Route("/users", page), WebSocketRoute("/talk", talk)]),
]

healthy = Starlette(routes=ROUTES, lifespan=lifespan)
healthy.add_middleware(RateLimitMiddleware, limits="600/minute")
healthy.add_middleware(CORSMiddleware, expose_headers=["Retry-After", "RateLimit", "RateLimit-Policy"])

bare = Starlette(routes=ROUTES)


def guarded() -> object:
    """Put an application behind the rules of a file, which stays as it is."""
    return RateLimitMiddleware.from_file(bare, os.environ["RULES_OF_BARE"])


def raising() -> object:
    raise RuntimeError("a\nb\x1b[2J")


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


ONE = [Route("/one", page)]
LIMITED = Middleware(RateLimitMiddleware, limits="60/minute")

# A mounted application makes its middleware at its first request.
mounting = Starlette(routes=[Mount("/v1", Starlette(routes=ONE, middleware=[LIMITED]))])
PATCHED = Middleware(RateLimitMiddleware, rules=[Rule("/one", "5/minute", methods=["PATCH"])])
half = Starlette(routes=ONE, middleware=[PATCHED])
