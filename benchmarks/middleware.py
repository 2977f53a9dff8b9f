"""The time that a rate limit adds to a small application, admitted and refused, ours and the peers'.

Every gate counts one client in memory. slowapi and asgi-ratelimit stand over the same Starlette application as ours;
fastapi-limiter is a FastAPI dependency and is compared with a bare FastAPI application. asgi-ratelimit and
fastapi-limiter send no RateLimit fields; ours and slowapi do. Ours alone records statistics of requests.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import Depends, FastAPI
from fastapi_limiter.depends import RateLimiter
from pyrate_limiter import Limiter as PyrateLimiter
from pyrate_limiter import Rate
from ratelimit import RateLimitMiddleware as PeerMiddleware
from ratelimit import Rule as PeerRule
from ratelimit.backends.simple import MemoryBackend
from slowapi import Limiter as SlowLimiter
from slowapi.middleware import SlowAPIASGIMiddleware, SlowAPIMiddleware
from slowapi.util import get_remote_address
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Scope

from slidegate import RateLimitMiddleware

from .measure import asgi, rounds, table, versions

PLENTY = 2_000_000_000


async def page(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hi")


def starlette() -> Starlette:
    return Starlette(routes=[Route("/", page)])


def ours(amount: int, **options: Any) -> ASGIApp:
    app = starlette()
    app.add_middleware(RateLimitMiddleware, limits=f"{amount}/hour", **options)
    return app


def slowapi(amount: int, middleware: Callable[..., Any]) -> ASGIApp:
    app = starlette()
    app.state.limiter = SlowLimiter(
        key_func=get_remote_address, default_limits=[f"{amount}/hour"], headers_enabled=True, strategy="moving-window"
    )
    app.add_middleware(middleware)
    return app


def asgi_ratelimit(amount: int) -> ASGIApp:
    async def who(scope: Scope) -> tuple[str, str]:
        return scope["client"][0], "default"

    app = starlette()
    app.add_middleware(
        PeerMiddleware, authenticate=who, backend=MemoryBackend(), config={"^/": [PeerRule(hour=amount)]}
    )
    return app


def fastapi(amount: int | None) -> ASGIApp:
    app = FastAPI()
    limits = [Depends(RateLimiter(PyrateLimiter(Rate(amount, 3_600_000))))] if amount else []

    @app.get("/", dependencies=limits)
    async def endpoint() -> str:
        return "hi"

    return app


def ours_on_fastapi(amount: int) -> ASGIApp:
    app = fastapi(None)
    assert isinstance(app, FastAPI)
    app.add_middleware(RateLimitMiddleware, limits=f"{amount}/hour")
    return app


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--requests", type=int, default=2_000, help="in each round of each candidate")
    options = parser.parse_args()
    for outcome, amount, status in (("admitted", PLENTY, 200), ("refused", 1, 429)):
        apps: dict[str, tuple[ASGIApp, int]] = {
            "bare Starlette": (starlette(), 200),
            "slidegate": (ours(amount), status),
            "slidegate, statistics=False": (ours(amount, statistics=False), status),
            "slidegate, headers=None, statistics=False": (ours(amount, headers=None, statistics=False), status),
            "asgi-ratelimit": (asgi_ratelimit(amount), status),
            "slowapi (ASGI middleware)": (slowapi(amount, SlowAPIASGIMiddleware), status),
            "slowapi (BaseHTTPMiddleware)": (slowapi(amount, SlowAPIMiddleware), status),
            "bare FastAPI": (fastapi(None), 200),
            "slidegate on FastAPI": (ours_on_fastapi(amount), status),
            "fastapi-limiter": (fastapi(amount), status),
        }
        baselines = {name: "bare FastAPI" if "astapi" in name.lower() else "bare Starlette" for name in apps}
        del baselines["bare Starlette"], baselines["bare FastAPI"]
        for app, _ in apps.values():  # the one request that a refusing gate admits
            await asgi(app, 1, 200)()
        taken = await rounds(
            {name: asgi(app, options.requests, expected) for name, (app, expected) in apps.items()}, options.rounds
        )
        print(f"\n### One request, {outcome}\n\n{table(taken, baselines)}")
    print(f"\n{versions('starlette', 'fastapi', 'asgi-ratelimit', 'slowapi', 'fastapi-limiter', 'limits')}")


if __name__ == "__main__":
    asyncio.run(main())
