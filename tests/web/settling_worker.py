"""A process that lets requests in for an estimate and settles them: ``python -m tests.web.settling_worker URL``.

It prints a line behind every request that has been settled, and goes on until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from slidegate import Limiter, RateLimitMiddleware, Rule, everyone, settle

from ..asgi import call

ESTIMATE: Final = 7
USED: Final = 3
MORE: Final = 11
LIMIT: Final = "1000000/day"


async def complete(request: Request) -> PlainTextResponse:
    """Use less than the estimate, or more, by turns."""
    await settle(request, int(request.query_params["used"]), rule="tokens")
    return PlainTextResponse("done")


async def main(url: str) -> None:
    """Ask for completions without end."""
    limiter = Limiter.from_url(url, deadline="30s")
    rule = Rule("*", LIMIT, cost=lambda request: ESTIMATE, key=everyone, name="tokens")
    app = Starlette(
        routes=[Route("/", complete)], middleware=[Middleware(RateLimitMiddleware, rules=[rule], limiter=limiter)]
    )
    while True:
        for used in (USED, MORE):
            assert (await call(app, query_string=f"used={used}".encode())).status == 200
            sys.stdout.write(f"{used}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
