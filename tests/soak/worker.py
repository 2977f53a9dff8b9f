"""Workers of a soak: an application behind the middleware.

``python -m tests.soak.worker STORE WORKERS`` takes the address of the store and the number of workers, and prints the
port. Each writes a line about itself twice a second to the file $SAMPLES, what fails to $LOG, and ends with the process
that started it.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from slidegate import BanPolicy, Limiter, RateLimitMiddleware, Rule, client_ip, everyone

from ..served_by_workers import serve
from .checks import PROMISES, Sample

SAMPLE_EVERY_S = 0.5
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


async def answer(request: Request) -> Response:
    """Answer with the status that was asked for; the rule of /maybe counts only what was found."""
    return PlainTextResponse("here you are", int(request.query_params.get("status", 200)))


def found(status: int) -> bool:
    return status < 400


async def stream(request: Request) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"part\n" * 200
            await asyncio.sleep(0.01)

    return StreamingResponse(parts())


def write_sample() -> None:
    rss_mib = int(Path("/proc/self/statm").read_text("ascii").split()[1]) * PAGE_MIB
    about = Sample(time.monotonic(), rss_mib, len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd")))
    with open(os.environ["SAMPLES"], "a", encoding="ascii") as lines:
        lines.write(json.dumps([os.getpid(), *about]) + "\n")


async def sample() -> None:
    """Write lines about this process until it ends, or until it is an orphan."""
    parent = os.getppid()
    while os.getppid() == parent:
        write_sample()
        await asyncio.sleep(SAMPLE_EVERY_S)
    os._exit(1)


def make() -> Starlette:
    # With "deny" nothing passes uncounted while a store is away, so that every bound can be checked all the time.
    limiter = Limiter.from_url(os.environ["STORE"], deadline="250ms", on_error="deny")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        sampling = asyncio.create_task(sample())
        async with limiter:
            yield
        sampling.cancel()

    more: dict[str, Any] = {"maybe": {"count_if": found}, "wait": {"wait": "1s"}, "service": {"key": everyone}}
    rules = [
        Rule(one.path, f"{one.amount}/{one.window_s}s", name=one.name, **more.get(one.name, {})) for one in PROMISES
    ]
    routes = [Route(path, answer) for path in ("/counts", "/exact", "/maybe", "/wait")]
    app = Starlette(routes=[*routes, Route("/stream", stream)], lifespan=lifespan)
    app.add_middleware(
        RateLimitMiddleware,
        limiter=limiter,
        rules=rules,
        client=client_ip(trusted=["127.0.0.1"]),
        bans=BanPolicy("12/5s", "8s", factor=1, ban_private=True),
    )
    return app


if __name__ == "__main__":
    with open(os.environ["LOG"], "wb") as log:
        os.dup2(log.fileno(), 2)
    serve(f"{__spec__.name}:make")
