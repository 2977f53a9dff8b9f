"""An application for several workers on a shared store: ``python -m tests.served_by_workers STORE`` prints its port.

``/`` and ``/item`` are limited and answer with the id of their worker; ``/stats/{window}`` says what all workers have
seen of ``/item``. Nobody closes the limiter: the middleware publishes the last stats when the server ends.
"""

from __future__ import annotations

import os
import socket
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from slidegate import Limiter, RateLimitMiddleware, Rule, everyone
from slidegate.stats import Statistics
from slidegate.stats.statistics import recording_of

WORKERS = 2
AMOUNT = 60
NAME = "items"
INTERVAL_S = 0.2


async def worker(request: Request) -> JSONResponse:
    return JSONResponse({"pid": os.getpid()})


async def figures(request: Request) -> JSONResponse:
    statistics: Statistics = request.app.state.statistics
    window = request.path_params["window"]
    found, chart = await statistics.stats_all(window), await statistics.chart_all(window, rule=NAME)
    seen = found.rules.get(NAME)
    workers = [(worker.pid, worker.age_s) for worker in found.workers]
    counted = [0, 0] if seen is None else [seen.passed, seen.refused]
    charted = [sum(point.passed for point in chart.points), sum(point.refused for point in chart.points)]
    return JSONResponse({"counted": counted, "charted": charted, "workers": workers})


def make() -> Starlette:
    limiter = Limiter.from_url(os.environ["STORE"], deadline="10s")
    recording_of(limiter).publisher.interval_s = INTERVAL_S
    rules = [Rule("/", "1000/second", name="api"), Rule("/item", f"{AMOUNT}/day", key=everyone, name=NAME)]
    middleware = Middleware(RateLimitMiddleware, limiter=limiter, rules=rules)
    routes = [Route("/", worker), Route("/item", worker), Route("/stats/{window}", figures)]
    app = Starlette(routes=routes, middleware=[middleware])
    app.state.statistics = Statistics(limiter)
    return app


def main() -> None:
    os.environ["STORE"] = sys.argv[1]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        uvicorn.run(f"{__spec__.name}:make", factory=True, fd=listening.fileno(), workers=WORKERS, log_level="warning")


if __name__ == "__main__":
    main()
