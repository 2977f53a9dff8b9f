"""An application whose workers share their counts: ``uvicorn examples.workers.app:app --workers 4``.

Every worker opens the same directory, so a client gets 100 requests an hour from all of them together, and its counts
survive a restart. ``LIMITS`` sets the directory; by default it is in the directory for temporary files.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from slidegate import Limiter, RateLimitMiddleware, Rule

PLACE = os.environ.get("LIMITS") or str(Path(tempfile.gettempdir()) / f"slidegate-workers-{os.geteuid()}")

limiter = Limiter.from_url(f"lmdb://{PLACE}")


async def who(request: Request) -> JSONResponse:
    """Return the process ID of the worker."""
    return JSONResponse({"worker": os.getpid()})


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Close the store when the worker ends."""
    async with limiter:
        yield


app = Starlette(routes=[Route("/", who)], lifespan=lifespan)
app.add_middleware(RateLimitMiddleware, limiter=limiter, rules=[Rule("*", "100/hour", name="everybody")])
