"""A server whose endpoint takes processor time; ``python -m benchmarks.overloads.worker shed|none WORK_MS LOOP``."""

from __future__ import annotations

import socket
import sys
import time

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from slidegate import LoadSheddingMiddleware, RateLimitMiddleware


def priority(request: object) -> int:
    """Return 1 for the tenth of the requests that is important."""
    return int(isinstance(request, Request) and "x-important" in request.headers)


def app_of(how: str, work_ms: float) -> ASGIApp:
    """Return the application with its limits, below a middleware that sheds load or not."""

    async def page(request: Request) -> Response:
        end_s = time.thread_time() + work_ms / 1000
        while time.thread_time() < end_s:
            pass
        return PlainTextResponse("page")

    app = Starlette(routes=[Route("/", page)])
    limited = RateLimitMiddleware(app, limits="1000000/minute")
    return LoadSheddingMiddleware(limited, lag="50ms", priority=priority) if how == "shed" else limited


def main() -> None:
    """Serve on a port that the system chooses, and print it."""
    how, work_ms, loop = sys.argv[1], float(sys.argv[2]), sys.argv[3]
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(listening.getsockname()[1], flush=True)
    server = uvicorn.Server(uvicorn.Config(app_of(how, work_ms), log_level="error", backlog=2048, loop=loop))
    server.run(sockets=[listening])


if __name__ == "__main__":
    main()
