"""The time that a rate limit adds to a small application, admitted and refused, ours and the peers'.

Each counts one client in memory. slowapi, asgi-ratelimit and fastapi-guard are around the same Starlette application as
ours; fastapi-limiter is a FastAPI dependency and is compared with a bare FastAPI application. Ours and slowapi alone
send RateLimit fields, and ours alone records statistics of requests.
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from fastapi import Depends, FastAPI
from fastapi_limiter.depends import RateLimiter
from guard import PureASGISecurityMiddleware, RateLimitManager, SecurityConfig
from pyrate_limiter import Limiter as PyrateLimiter
from pyrate_limiter import Rate
from ratelimit import RateLimitMiddleware as PeerMiddleware
from ratelimit import Rule as PeerRule
from ratelimit.backends.simple import MemoryBackend
from slowapi import Limiter as SlowLimiter
from slowapi.middleware import SlowAPIASGIMiddleware, SlowAPIMiddleware
from slowapi.util import get_remote_address
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slidegate import MemoryStore, RateLimit, RateLimitMiddleware, Rule
from slidegate.core import Bucket, parse_limits

from .measure import asgi, compared, rounds
from .report.tables import Table

PACKAGES = ("starlette", "fastapi", "asgi-ratelimit", "slowapi", "fastapi-limiter", "fastapi-guard", "limits")

PLENTY = 2_000_000_000
OUTCOMES = {"admitted": (PLENTY, 200), "refused": (1, 429)}
"""The outcome of requests -> what each admits in an hour, and the status of its answers."""
SCANNING = "fastapi-guard, with its scan"
SCANNED_SHARE = 100
"""It takes tens of milliseconds for a request, so it is asked for a small share of them."""


async def page(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hi")


def starlette() -> Starlette:
    return Starlette(routes=[Route("/", page)])


def ours(amount: int, **options: Any) -> ASGIApp:
    return ours_with(limits=f"{amount}/hour", **options)


def ours_with(**options: Any) -> ASGIApp:
    app = starlette()
    app.add_middleware(RateLimitMiddleware, **options)
    return app


class ByHand:
    """The least that a rate limiter can be: it counts a request in the same store and sends the same two fields.

    It knows one rule and one kind of request, records nothing and hands nothing back.

    Args:
        app: The application behind it.
        fields: Whether it sends the fields; without them it only counts.
    """

    def __init__(self, app: ASGIApp, fields: bool) -> None:
        self.app = app
        self.fields = fields
        self.bucket = Bucket("default", parse_limits(f"{PLENTY}/hour"))
        self.hit = MemoryStore().hit
        self.policy = (b"ratelimit-policy", b'"default";q=%d;w=3600' % PLENTY)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        decision = self.hit(((self.bucket, scope["client"][0], 1),))
        if not self.fields:
            await self.app(scope, receive, send)
            return

        def send_with_fields(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                spent, leaves_us, _, _ = decision.readings[0]
                left = PLENTY - spent, -((decision.now_us - leaves_us) // 1_000_000)
                fields = [*message["headers"], self.policy, (b"ratelimit", b'"default";r=%d;t=%d' % left)]
                message = {**message, "headers": fields}
            return send(message)

        await self.app(scope, receive, send_with_fields)


def by_hand(app: Starlette, *, fields: bool) -> ASGIApp:
    app.add_middleware(ByHand, fields=fields)
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


def fastapi_guard(amount: int, *, scan: bool) -> ASGIApp:
    RateLimitManager._instance = None  # else all middlewares of the process count together
    config = SecurityConfig(
        rate_limit=amount, rate_limit_window=3_600, enable_redis=False, enable_penetration_detection=scan
    )
    return PureASGISecurityMiddleware(starlette(), config=config)


def fastapi(*dependencies: Any) -> FastAPI:
    app = FastAPI()

    @app.get("/", dependencies=list(dependencies))
    async def endpoint() -> str:
        return "hi"

    return app


def peer_at_endpoint(amount: int) -> ASGIApp:
    return fastapi(Depends(RateLimiter(PyrateLimiter(Rate(amount, 3_600_000)))))


def ours_around_fastapi(amount: int, **options: Any) -> ASGIApp:
    app = fastapi()
    app.add_middleware(RateLimitMiddleware, limits=f"{amount}/hour", **options)
    return app


def ours_at_endpoint(amount: int) -> ASGIApp:
    app = fastapi(Depends(RateLimit(f"{amount}/hour")))
    app.add_middleware(RateLimitMiddleware, rules=[])
    return app


async def nothing(connection: HTTPConnection) -> None:
    """Do nothing, as a dependency: what FastAPI takes for any."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--requests", type=int, default=2_000, help="in each round of each candidate")


def applications(amount: int, status: int) -> dict[str, tuple[ASGIApp, int]]:
    """Return all candidates by name, each with the status of its answers.

    Args:
        amount: What every gate admits in an hour.
        status: The status of the answers of a gate.
    """
    return {
        "bare Starlette": (starlette(), 200),
        "slidegate": (ours(amount), status),
        "slidegate, statistics=False": (ours(amount, statistics=False), status),
        "slidegate, headers=None, statistics=False": (ours(amount, headers=None, statistics=False), status),
        "slidegate, a rule for the path": (ours_with(rules=[Rule("/", f"{amount}/hour")]), status),
        "slidegate, default_limits": (ours_with(default_limits=f"{amount}/hour"), status),
        "asgi-ratelimit": (asgi_ratelimit(amount), status),
        "slowapi (ASGI middleware)": (slowapi(amount, SlowAPIASGIMiddleware), status),
        "slowapi (BaseHTTPMiddleware)": (slowapi(amount, SlowAPIMiddleware), status),
        "fastapi-guard, without its scan": (fastapi_guard(amount, scan=False), status),
        SCANNING: (fastapi_guard(amount, scan=True), status),
        "bare FastAPI": (fastapi(), 200),
        "slidegate around FastAPI": (ours_around_fastapi(amount), status),
        "slidegate around FastAPI, statistics=False": (ours_around_fastapi(amount, statistics=False), status),
        "FastAPI with a dependency that does nothing": (fastapi(Depends(nothing)), 200),
        "slidegate at the endpoint of FastAPI": (ours_at_endpoint(amount), status),
        "fastapi-limiter at the endpoint": (peer_at_endpoint(amount), status),
    }


def least() -> dict[str, tuple[ASGIApp, int]]:
    """Return the least gates by name, between the bare applications and ours; all of them admit every request."""
    apps = {
        "bare Starlette": starlette(),
        "a hit by hand": by_hand(starlette(), fields=False),
        "a hit and two fields by hand": by_hand(starlette(), fields=True),
        "slidegate, statistics=False": ours(PLENTY, statistics=False),
        "bare FastAPI": fastapi(),
        "a hit by hand, around FastAPI": by_hand(fastapi(), fields=False),
        "a hit and two fields by hand, around FastAPI": by_hand(fastapi(), fields=True),
        "slidegate around FastAPI, statistics=False": ours_around_fastapi(PLENTY, statistics=False),
    }
    return {name: (app, 200) for name, app in apps.items()}


def baseline(name: str) -> str | None:
    """Return the name of the bare application that a candidate is compared with; None for one itself."""
    base = "bare FastAPI" if "FastAPI" in name or "at the endpoint" in name else "bare Starlette"
    return None if name == base else base


async def measured(
    apps: Mapping[str, tuple[ASGIApp, int]], count: int, requests: int = 2_000
) -> dict[str, list[float]]:
    """Return the microseconds of one request of each candidate, by rounds."""
    for app, _ in apps.values():  # the one request that a refusing gate admits
        await asgi(app, 1, 200)()
    asked = {name: max(1, requests // SCANNED_SHARE) if name == SCANNING else requests for name in apps}
    return await rounds({name: asgi(app, asked[name], expected) for name, (app, expected) in apps.items()}, count)


def tables(options: Namespace) -> Iterator[Table]:
    """Measure both outcomes, and the least that a gate can add."""
    chosen = {f"One request, {outcome}": applications(*given) for outcome, given in OUTCOMES.items()}
    for title, apps in {**chosen, "The least that a rate limiter can add": least()}.items():
        taken = asyncio.run(measured(apps, options.rounds, options.requests))
        baselines = {name: base for name in apps if (base := baseline(name)) is not None}
        yield compared(title, taken, baselines)
