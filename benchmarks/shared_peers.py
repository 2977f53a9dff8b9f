"""The peers that hold one limit for all workers, on Redis, each as its documentation sets it up for several workers."""

from __future__ import annotations

import os

import redis.asyncio
from fastapi import Depends
from fastapi_limiter.depends import RateLimiter
from pyrate_limiter import Limiter, Rate
from pyrate_limiter.buckets.redis_bucket import RedisBucket
from slowapi import Limiter as SlowApi
from slowapi.middleware import SlowAPIASGIMiddleware
from slowapi.util import get_remote_address
from starlette.types import ASGIApp

from .apps import STORE, Allowed, App, bare, bare_fastapi


async def slowapi(allowed: Allowed) -> ASGIApp:
    """Return the application behind slowapi's faster middleware, with its default, a fixed window."""
    app = await bare(allowed)
    app.state.limiter = SlowApi(
        key_func=get_remote_address, application_limits=[str(allowed)], storage_uri=os.environ[STORE]
    )
    app.add_middleware(SlowAPIASGIMiddleware)
    return app


async def fastapi_limiter(allowed: Allowed) -> ASGIApp:
    """Return a FastAPI application whose routes depend on fastapi-limiter, with one bucket of pyrate-limiter."""
    rate = Rate(allowed.amount, 60_000)
    bucket = await RedisBucket.init([rate], redis.asyncio.Redis.from_url(os.environ[STORE]), "everybody")
    limiter = Limiter(bucket)
    return bare_fastapi(lambda: [Depends(RateLimiter(limiter=limiter))])


PEERS = {"slowapi": App(slowapi), "fastapi-limiter": App(fastapi_limiter)}
