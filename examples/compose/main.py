"""An application whose workers share their limits in Redis, and count for Prometheus.

``REDIS_URL`` is the address of Redis, ``REDIS_DEADLINE`` how long a request waits for it, by default 50 ms, and
``PROMETHEUS_MULTIPROC_DIR`` an empty directory for the counts of the workers.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from slidegate import Limiter, RateLimitMiddleware, Rule
from slidegate.prometheus import PrometheusMetrics

limiter = Limiter.from_url(os.environ["REDIS_URL"], deadline=os.environ.get("REDIS_DEADLINE", "50ms"))
metrics = PrometheusMetrics(limiter)


async def hello(request: Request) -> PlainTextResponse:
    """Answer."""
    return PlainTextResponse("hello")


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Close the connections to Redis when a worker ends."""
    async with limiter:
        yield


app = Starlette(routes=[Route("/", hello), Route("/metrics", metrics.app)], lifespan=lifespan)
app.add_middleware(
    RateLimitMiddleware,
    limiter=limiter,
    rules=[Rule("/metrics", exempt=True), Rule("*", "100/minute", name="visitors")],
)
