"""The site that every host serves; requests are counted in Redis, for all hosts together.

| variable | |
| --- | --- |
| `HOST_NAME` | the name of this host |
| `REDIS_URL` | the Redis that all hosts share |
| `SITE_SECRET` | the key of digests, the same on all hosts |
| `ADMIN_TOKEN` | the token of operators for `/admin` |
| `TRUSTED_PROXIES` | the addresses of the fronts, separated by commas; only their X-Forwarded-For is trusted |
| `REDIS_DEADLINE` | how long a request waits for Redis, 250ms by default |
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from slidegate import Limiter, RateLimitMiddleware, Rule, client_ip
from slidegate.admin import AdminRoutes
from slidegate.events import Event

AMOUNT = 10
RULES = [
    Rule("/health", exempt=True),
    Rule("/admin/{rest:path}", exempt=True),
    Rule("*", f"{AMOUNT}/10m", name="visitors"),
]
NEWS = ("store_failed", "store_recovered", "store_reset", "store_evicts", "banned", "unbanned")


def make_app(settings: Mapping[str, str] = os.environ) -> Starlette:
    """Return the site of one host."""
    name = settings["HOST_NAME"]
    client = client_ip(trusted=settings["TRUSTED_PROXIES"].split(","))
    health = {"host": name, "counts": "in Redis"}

    def tell(event: Event) -> None:
        where = {"store_failed": "in this process", "store_recovered": "in Redis"}
        health["counts"] = where.get(event.kind, health["counts"])
        print(f"event: {event.kind}: {event.message}", flush=True)

    limiter = Limiter.from_url(
        settings["REDIS_URL"],
        secret=settings["SITE_SECRET"],
        deadline=settings.get("REDIS_DEADLINE", "250ms"),
        on_error="local",  # while Redis is unavailable, each host counts separately
    )
    limiter.observe(tell, kinds=NEWS)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with limiter:
            yield

    async def home(request: Request) -> JSONResponse:
        return JSONResponse({"host": name})

    async def show_health(request: Request) -> JSONResponse:
        return JSONResponse(health)

    return Starlette(
        routes=[
            Route("/", home),
            Route("/health", show_health),
            Mount("/admin", AdminRoutes(limiter, token=settings["ADMIN_TOKEN"], client=client)),
        ],
        middleware=[Middleware(RateLimitMiddleware, limiter=limiter, client=client, rules=RULES)],
        lifespan=lifespan,
    )
