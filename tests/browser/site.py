"""An application with a dashboard, served by uvicorn on a port that the system chooses.

``python -m tests.browser.site STORE WORKERS`` prints the port and serves until SIGTERM. The client is the one that
``X-Forwarded-For`` names, so that a test can be anybody.
"""

import os
from typing import Final

from starlette.applications import Starlette
from starlette.routing import Mount, Route

from slidegate import BanPolicy, Limiter, Networks, RateLimitMiddleware, Rule, client_ip, everyone, header
from slidegate.dashboard import Dashboard

from ..asgi import page
from ..served_by_workers import serve

TOKEN: Final = "a-token-for-tests-alone"
AMOUNT: Final = 30
"""The limit of a client in ten minutes, a window longer than any test."""

limiter = Limiter.from_url(os.environ.get("STORE", "memory://"), deadline="30s")
app = Starlette(
    routes=[
        Route("/", page),
        Route("/reports", page),
        Route("/search", page),
        Route("/login", page, methods=["POST"]),
        Mount("/slidegate", Dashboard(limiter, token=TOKEN)),
    ]
)
app.add_middleware(
    RateLimitMiddleware,
    limiter=limiter,
    client=client_ip(trusted=["127.0.0.0/8"]),
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


def make() -> Starlette:
    return app


if __name__ == "__main__":
    serve(f"{__spec__.name}:make")
