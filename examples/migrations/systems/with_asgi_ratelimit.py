"""asgi-ratelimit: its middleware with the backend in memory."""

from __future__ import annotations

from typing import Any

from ratelimit import RateLimitMiddleware, Rule
from ratelimit.auths.ip import client_ip
from ratelimit.backends.simple import MemoryBackend

from slidegate.testing import FakeClock

from ..asking import Asgi
from ..rows import Row, apart, of
from ..virtual_time import virtual_time
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


def extra() -> list[Row]:
    """Return the facts of asgi-ratelimit's page that other pages do not have."""
    paths = [f"/items/{number}" for number in range(1, 6)]
    with virtual_time() as clock:
        return [
            Row(
                "One client asks five paths, 100 times each (no `zone`): admitted",
                apart(one(clock), paths, 100),
                apart(with_slidegate.default(clock), paths, 100),
            ),
            Row(
                "Status for a client in a private network (`client_ip` of each)",
                of(app_of(Rule(minute=100), who=client_ip).ask(client="10.0.0.7").status),
                of(with_slidegate.default(clock).ask(client="10.0.0.7").status),
            ),
        ]
