"""Metrics for Prometheus: ``STORE=lmdb:///tmp/observability uvicorn examples.observability.app:app --workers 2``.

``STORE`` is the address of the store that the workers share; by default each counts in its own memory.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from slidegate import BanPolicy, Limiter, RateLimitMiddleware, Rule
from slidegate.prometheus import PrometheusMetrics

limiter = Limiter.from_url(os.environ.get("STORE", "memory://"))
metrics = PrometheusMetrics(limiter, registry=CollectorRegistry())


async def search(request: Request) -> JSONResponse:
    """Find nothing."""
    return JSONResponse({"found": []})


async def order(request: Request) -> JSONResponse:
    """Take an order."""
    return JSONResponse({"ordered": request.path_params["id"]})


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Publish the last figures when the worker ends."""
    async with limiter:
        yield


routes = [
    Route("/search", search),
    Route("/orders/{id}", order, methods=["POST"]),
    Mount("/metrics", metrics.app),
]
app = Starlette(routes=routes, lifespan=lifespan)
app.add_middleware(
    RateLimitMiddleware,
    limiter=limiter,
    rules=[
        Rule("/metrics/{rest:path}", exempt=True),
        Rule("/search", "20/10s", name="search"),
        Rule("/orders/{id}", "5/minute", methods=["POST"], wait="2s", name="orders"),
        Rule("*", "100/minute", shadow=True, name="trial"),
    ],
    bans=BanPolicy(after="50/5m", duration="10m", ban_private=True),
)
