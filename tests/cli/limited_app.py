"""An application for several workers: ``python -m tests.cli.limited_app STORE WORKERS`` prints its port."""

from __future__ import annotations

import os
import socket
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from slidegate import Limiter, RateLimitMiddleware, Rule


async def home(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hi", headers={"X-Pid": str(os.getpid())})


def make() -> Starlette:
    limiter = Limiter.from_url(os.environ["STORE"], deadline="10s")
    middleware = Middleware(RateLimitMiddleware, limiter=limiter, rules=[Rule("*", "1000/second", name="api")])
    return Starlette(routes=[Route("/", home)], middleware=[middleware])


def main() -> None:
    os.environ["STORE"], workers = sys.argv[1], int(sys.argv[2])
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        uvicorn.run(f"{__spec__.name}:make", factory=True, fd=listening.fileno(), workers=workers, log_level="warning")


if __name__ == "__main__":
    main()
