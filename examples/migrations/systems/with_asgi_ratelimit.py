"""asgi-ratelimit: its middleware with the memory backend."""

from __future__ import annotations

from typing import Any

from ratelimit import RateLimitMiddleware, Rule
from ratelimit.backends.simple import MemoryBackend

from slidegate.testing import FakeClock

from ..asking import Asgi
from . import with_slidegate


async def by_address(scope: Any) -> tuple[str, str]:
    """Return the client and its group."""
    return scope["client"][0], "default"


def app_of(*rules: Rule, who: Any = by_address) -> Asgi:
    """Return an application behind the middleware."""
    return Asgi(RateLimitMiddleware(with_slidegate.hello, who, MemoryBackend(), {r".*": list(rules)}))


def one(clock: FakeClock) -> Asgi:
    """Return one limit."""
    return app_of(Rule(minute=100))


def two_limits(clock: FakeClock) -> Asgi:
    """Return two limits."""
    return app_of(Rule(minute=5, hour=50))
