"""An application for several workers on a shared store, with statistics and metrics.

``python -m tests.served_by_workers STORE WORKERS`` prints its port. ``/`` and ``/item`` are limited and answer with the
id of their worker; ``/stats/{window}`` has the statistics of all workers. Nobody closes the limiter: the middleware
ends its observers when the server ends.
"""

import os
import socket
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from slidegate import Limiter, RateLimitMiddleware, Rule, everyone
from slidegate.ops.statistics import Statistics
from slidegate.prometheus import PrometheusMetrics

AMOUNT = 60
NAME = "items"


async def worker(request: Request) -> JSONResponse:
    return JSONResponse({"pid": os.getpid()})


async def item(request: Request) -> JSONResponse:
    return await worker(request)  # an endpoint of its own, so that its route has a name of its own


async def figures(request: Request) -> JSONResponse:
    statistics: Statistics = request.app.state.statistics
    found = await statistics.read(request.path_params["window"], rule=NAME)
    clients = await statistics.clients()
    return JSONResponse(
        {
            "counted": [found.total.passed, found.total.refused],
            "steps": [sum(step.passed for step in found.steps), sum(step.refused for step in found.steps)],
            "workers": [worker.pid for worker in found.workers],
            "clients": [client.requests for client in clients.busiest],
        }
    )


def make() -> Starlette:
    limiter = Limiter.from_url(os.environ["STORE"], deadline="10s")
    rules = [
        Rule(["/stats/{window}", "/metrics/{rest:path}"], exempt=True),
        Rule("/item", f"{AMOUNT}/day", key=everyone, name=NAME),
        Rule("*", "1000/second", name="api"),
    ]
    middleware = Middleware(RateLimitMiddleware, limiter=limiter, rules=rules)
    pages = [Route("/", worker), Route("/item", item), Route("/stats/{window}", figures)]
    app = Starlette(routes=[*pages, Mount("/metrics", PrometheusMetrics(limiter).app)], middleware=[middleware])
    app.state.statistics = Statistics.of(limiter)
    return app


def serve(factory: str) -> None:
    """Serve what a factory ``module:make`` makes, on the store and by the workers in the arguments; print the port.

    Uvicorn replaces a worker that does not answer its supervisor for five seconds. A new worker answers when it has
    imported this module, which takes longer on a busy machine: each would be replaced before it serves.
    """
    os.environ["STORE"] = sys.argv[1]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        uvicorn.run(
            factory,
            factory=True,
            fd=listening.fileno(),
            workers=int(sys.argv[2]),
            log_level="warning",
            timeout_worker_healthcheck=60,
        )


if __name__ == "__main__":
    serve(f"{__spec__.name}:make")
