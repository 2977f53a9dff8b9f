"""An application with metrics for several workers: ``python -m tests.ops.served_metrics WORKERS`` prints its port."""

from __future__ import annotations

import os
import socket
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from slidegate import Limiter, RateLimitMiddleware, Rule
from slidegate.prometheus import PrometheusMetrics


async def item(request: Request) -> JSONResponse:
    return JSONResponse({"pid": os.getpid()})


def make() -> Starlette:
    limiter = Limiter()
    metrics = PrometheusMetrics(limiter)
    app = Starlette(routes=[Route("/item", item), Mount("/metrics", metrics.app)])
    rules = [Rule("/metrics/{rest:path}", exempt=True), Rule("/item", "100000/day", name="items")]
    app.add_middleware(RateLimitMiddleware, limiter=limiter, rules=rules)
    return app


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        uvicorn.run(
            f"{__spec__.name}:make", factory=True, fd=listening.fileno(), workers=int(sys.argv[1]), log_level="warning"
        )


if __name__ == "__main__":
    main()
