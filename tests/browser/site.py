"""An application with a dashboard, the processes that serve it, and requests to it with any client address.

``python -m tests.browser.site STORE WORKERS`` prints the port and serves until SIGTERM. The client is the one that
``X-Forwarded-For`` names, so that a test can be anybody.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from starlette.applications import Starlette
from starlette.routing import Mount, Route

from slidegate import BanPolicy, Limiter, Networks, RateLimitMiddleware, Rule, client_ip, everyone, header
from slidegate.dashboard import Dashboard

from ..asgi import page
from ..redis_servers import until
from ..served_by_workers import serve
from ..workers import ask, serving

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


@dataclass
class Site:
    url: str

    @property
    def dashboard(self) -> str:
        return f"{self.url}/slidegate/"

    def ask(self, client: str, path: str = "/", **fields: str) -> int:
        """Send one request over a new connection; return the status, 0 without a response."""
        answer = ask(self.url + path, **{"X-Forwarded-For": client, **fields})
        return 0 if answer is None else answer.status_code

    def flood(self, client: str, requests: int, path: str = "/", **fields: str) -> list[int]:
        """Send requests, a few at a time, each over a new connection; return their statuses."""
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda _: self.ask(client, path, **fields), range(requests)))


@contextmanager
def served(store: str = "memory://", workers: int = 1, sites: int = 1) -> Iterator[list[Site]]:
    """Serve the site by several servers with several workers each, on one store."""
    with ExitStack() as stack:
        started = [Site(stack.enter_context(serving("tests.browser.site", store, workers))) for _ in range(sites)]
        for site in started:
            until(lambda site=site: site.ask("192.0.2.1", "/slidegate/") == 401, "the server answers")
        yield started


if __name__ == "__main__":
    serve(f"{__spec__.name}:make")
