"""fastapi-limiter 0.2: a dependency on a limiter of pyrate-limiter, in memory."""

from __future__ import annotations

from fastapi import Depends, FastAPI
from fastapi_limiter.depends import RateLimiter
from pyrate_limiter import Duration, Limiter, Rate

from slidegate.testing import FakeClock

from ..asking import Asgi
from ..attacks import flood
from ..rows import Row, of
from ..virtual_time import virtual_time
from . import with_slidegate

OTHER = "203.0.113.9"


def app_of(*rates: Rate) -> Asgi:
    """Return an application with the dependency on one route."""
    app = FastAPI()

    @app.get("/", dependencies=[Depends(RateLimiter(limiter=Limiter(list(rates))))])
    async def home() -> str:
        return "hi"

    return Asgi(app)


def one(clock: FakeClock) -> Asgi:
    """Return one limit."""
    return app_of(Rate(100, Duration.MINUTE))


def two_limits(clock: FakeClock) -> Asgi:
    """Return two limits."""
    return app_of(Rate(5, Duration.MINUTE), Rate(50, Duration.HOUR))


def extra() -> list[Row]:
    """Return the facts that only the page of fastapi-limiter has."""
    rows = []
    with virtual_time() as clock:
        theirs, ours = one(clock), with_slidegate.default(clock)
        for system in (theirs, ours):
            flood(system)
        rows.append(
            Row(
                "One client has spent its 100 requests; another one asks 100 times: admitted",
                of(sum(theirs.ask(client=OTHER).passed for _ in range(100))),
                of(sum(ours.ask(client=OTHER).passed for _ in range(100))),
            )
        )
    return rows
