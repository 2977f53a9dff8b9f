"""An application with a dashboard, served by uvicorn on a port that the system chooses.

``python -m tests.browser.site WORKERS`` prints the port and serves until SIGTERM. ``SITE_STORE`` is the address of the
store. The client is the one that ``X-Forwarded-For`` names, so that a test can be anybody.
"""

import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from uvicorn.supervisors import Multiprocess

from slidegate import BanPolicy, Limiter, Networks, RateLimitMiddleware, Rule, client_ip, everyone, header
from slidegate.dashboard import Dashboard

TOKEN: Final = "a-token-for-tests-alone"
AMOUNT: Final = 30
"""The limit of a client in ten minutes, a window longer than any test."""

limiter = Limiter.from_url(os.environ.get("SITE_STORE", "memory://"), deadline="30s")
behind = client_ip(trusted=["127.0.0.0/8"])


async def page(request: Request) -> PlainTextResponse:
    return PlainTextResponse("a page")


async def slow(request: Request) -> PlainTextResponse:
    """Respond with a delay, so that the chart has response times."""
    await anyio.sleep(0.02)
    return PlainTextResponse("a report")


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with limiter:
        yield


app = Starlette(
    routes=[
        Route("/", page),
        Route("/articles/{slug}", page),
        Route("/reports", slow),
        Route("/search", page),
        Route("/login", page, methods=["POST"]),
        Mount("/slidegate", Dashboard(limiter, token=TOKEN)),
    ],
    lifespan=lifespan,
)
app.add_middleware(
    RateLimitMiddleware,
    limiter=limiter,
    client=behind,
    rules=[
        Rule("/slidegate/{rest:path}", exempt=True),
        Rule("/login", "5/minute; 20/hour", methods=["POST"], name="login"),
        Rule("/reports", "200/10m", key=header("X-API-Key"), name="reports"),
        Rule("/search", "60/minute", key=everyone, name="search"),
        Rule("*", f"{AMOUNT}/10m", name="everybody"),
        Rule("*", "10/10m", name="tighter", shadow=True),
    ],
    blocklist=Networks(["192.0.2.128/25"]),
    bans=BanPolicy(after="500/10m", duration="1h", factor=4, longest="7d"),
)


def main(workers: int) -> None:
    place = socket.socket()
    place.bind(("127.0.0.1", 0))
    config = uvicorn.Config("tests.browser.site:app", workers=workers, log_level="warning", lifespan="on")
    sys.stdout.write(f"{place.getsockname()[1]}\n")
    sys.stdout.flush()
    if workers > 1:
        Multiprocess(config, sockets=[place]).run()
    else:
        uvicorn.Server(config).run(sockets=[place])


if __name__ == "__main__":
    main(int(sys.argv[1]))
