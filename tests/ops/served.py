"""An application for four workers, with statistics and metrics: ``python -m tests.ops.served STORE`` prints its port.

``/item`` is limited and answers with the id of its worker; ``/stats/{window}`` has the statistics of all workers.
Nobody closes the limiter: the middleware ends its observers when the server ends.
"""

import os

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from slidegate import Limiter, RateLimitMiddleware, Rule, everyone
from slidegate.ops.statistics import Statistics
from slidegate.prometheus import PrometheusMetrics

from ..served_by_workers import serve, worker

WORKERS = 4
AMOUNT = 60
NAME = "items"


async def figures(request: Request) -> JSONResponse:
    statistics: Statistics = request.app.state.statistics
    found = await statistics.read(request.path_params["window"], rule=NAME)
    clients = await statistics.clients()
    return JSONResponse(
        {
            "counted": [found.total.passed, found.total.refused],
            "steps": [sum(step.passed for step in found.steps), sum(step.refused for step in found.steps)],
            "workers": [worker.pid for worker in found.workers],
            "clients": [client.requests for client in clients],
        }
    )


def make() -> Starlette:
    limiter = Limiter.from_url(os.environ["STORE"], deadline="10s")
    rules = [
        Rule(["/stats/{window}", "/metrics/{rest:path}"], exempt=True),
        Rule("/item", f"{AMOUNT}/day", key=everyone, name=NAME),
        Rule("/item", "1000/second", name="each"),
    ]
    middleware = Middleware(RateLimitMiddleware, limiter=limiter, rules=rules)
    routes = [
        Route("/item", worker),
        Route("/stats/{window}", figures),
        Mount("/metrics", PrometheusMetrics(limiter).app),
    ]
    app = Starlette(routes=routes, middleware=[middleware])
    app.state.statistics = Statistics.of(limiter)
    return app


if __name__ == "__main__":
    serve(f"{__spec__.name}:make", WORKERS)
