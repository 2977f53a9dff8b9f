"""One worker of a soak: an application behind the middleware, on a socket that it inherits.

``python -m tests.soak.worker SOCKET STORE SAMPLES`` takes the number of the socket, the address of the store, and the
file to which it writes a line about itself twice a second. It ends with the process that started it.
"""

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from slidegate import BanPolicy, Limiter, RateLimitMiddleware, Rule, client_ip, everyone

from .record import PROMISES, Sample

SAMPLE_EVERY_S = 0.5
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


async def answer(request: Request) -> Response:
    return PlainTextResponse("here you are")


async def maybe(request: Request) -> Response:
    """Answer with what was asked for; the rule counts only what was found."""
    return PlainTextResponse("maybe", 404 if request.query_params.get("status") == "404" else 200)


def found(status: int) -> bool:
    return status < 400


async def stream(request: Request) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"part\n" * 200
            await asyncio.sleep(0.01)

    return StreamingResponse(parts())


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * PAGE_MIB


async def sample(path: Path) -> None:
    """Write lines about this process until it ends, or until it is an orphan."""
    parent = os.getppid()
    with path.open("a", encoding="utf-8") as lines:
        while os.getppid() == parent:
            about = Sample(time.monotonic(), resident_mib(), len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd")))
            lines.write(json.dumps(about) + "\n")
            lines.flush()
            await asyncio.sleep(SAMPLE_EVERY_S)
    os._exit(1)


def application(store: str, samples: Path) -> Starlette:
    """Return the application that a soak asks."""
    # With "deny" nothing passes uncounted while a store is away, so that every bound can be checked all the time.
    limiter = Limiter.from_url(store, deadline="250ms", on_error="deny")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        sampling = asyncio.create_task(sample(samples))
        async with limiter:
            yield
        sampling.cancel()

    more: dict[str, Any] = {"maybe": {"count_if": found}, "wait": {"wait": "1s"}, "service": {"key": everyone}}
    rules = [
        Rule(one.path, f"{one.amount}/{one.window_s}s", name=one.name, **more.get(one.name, {})) for one in PROMISES
    ]
    routes = [Route("/counts", answer), Route("/exact", answer), Route("/wait", answer)]
    app = Starlette(routes=[*routes, Route("/maybe", maybe), Route("/stream", stream)], lifespan=lifespan)
    app.add_middleware(
        RateLimitMiddleware,
        limiter=limiter,
        rules=rules,
        client=client_ip(trusted=["127.0.0.1"]),
        bans=BanPolicy("30/5s", "8s", factor=1, ban_private=True),
    )
    return app


def main() -> None:
    number, store, samples = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    config = uvicorn.Config(
        application(store, samples), log_level="warning", access_log=False, timeout_graceful_shutdown=5
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=number)])


if __name__ == "__main__":
    main()
