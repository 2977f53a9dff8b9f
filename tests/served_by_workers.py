"""An application for several workers on a shared store: ``python -m tests.served_by_workers STORE`` prints its port.

``/`` and ``/item`` are limited and answer with the id of their worker.
"""

import os
import socket
import sys
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from slidegate import Limiter, RateLimitMiddleware, Rule, everyone

WORKERS = 2
AMOUNT = 60
NAME = "items"


async def worker(request: Request) -> JSONResponse:
    return JSONResponse({"pid": os.getpid()})


def make() -> Starlette:
    limiter = Limiter.from_url(os.environ["STORE"], deadline="10s")
    rules = [Rule("/", "1000/second", name="api"), Rule("/item", f"{AMOUNT}/day", key=everyone, name=NAME)]
    middleware = Middleware(RateLimitMiddleware, limiter=limiter, rules=rules)
    routes = [Route("/", worker), Route("/item", worker)]
    return Starlette(routes=routes, middleware=[middleware])


def serve(factory: str, workers: int, **options: Any) -> None:
    """Serve the application that a factory ``module:make`` makes on the store in the arguments, and print the port."""
    os.environ["STORE"] = sys.argv[1]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        uvicorn.run(factory, factory=True, fd=listening.fileno(), workers=workers, log_level="warning", **options)


if __name__ == "__main__":
    serve(f"{__spec__.name}:make", WORKERS)
