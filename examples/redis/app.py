"""A site that any number of processes, on any number of hosts, serve under one limit.

Serve it on its own with ``REDIS_URL=redis://localhost:6379/0 uvicorn examples.redis.app:app``, as often as you like.
"""

from __future__ import annotations

import os

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from slidegate import Event, Limiter, RateLimitMiddleware, Rule, header

AMOUNT = 10

RULES = [
    Rule("/health", exempt=True),
    Rule("*", f"{AMOUNT}/minute", key=header("X-API-Key"), name="api"),
]

health = {"counts": "in Redis"}


def note(event: Event) -> None:
    """Keep the last news of Redis; `slidegate` logs it as well."""
    where = {"store_failed": "in this process", "store_recovered": "in Redis"}
    health["counts"] = where.get(event.kind, health["counts"])


async def home(request: Request) -> JSONResponse:
    """Say which process answers."""
    return JSONResponse({"process": os.getpid()})


async def show_health(request: Request) -> JSONResponse:
    """Say where requests are counted."""
    return JSONResponse(health)


limiter = Limiter.from_url(
    os.environ.get("REDIS_URL", "redis://localhost:6379/0"),
    # Given here, so that a process can start while Redis is away; otherwise the secret is in Redis.
    secret=os.environ.get("SITE_SECRET", "keep this one to yourself"),
    deadline="250ms",  # no request waits longer than that for Redis; the default is 50 ms
    on_error="local",  # then each process counts for itself
    observers=[note],
)
app = Starlette(
    routes=[Route("/", home), Route("/health", show_health)],
    middleware=[Middleware(RateLimitMiddleware, limiter=limiter, rules=RULES)],
)
