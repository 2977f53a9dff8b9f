"""An application with metrics of all its workers; the test starts it with a directory in METRICS."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from slidegate import Limiter, RateLimitMiddleware, Rule
from slidegate.prometheus import PrometheusMetrics

limiter = Limiter()
metrics = PrometheusMetrics(limiter, registry=CollectorRegistry(), directory=os.environ["METRICS"], interval="100ms")


async def item(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(os.getpid()))


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    yield
    await limiter.close()


app = Starlette(
    routes=[Route("/items/{id}", item), Route("/refused", item), Mount("/metrics", metrics.app)], lifespan=lifespan
)
app.add_middleware(
    RateLimitMiddleware,
    limiter=limiter,
    rules=[Rule("/refused", "1/day", name="tight"), Rule("/items/{id}", "1000000/minute", name="wide")],
)
