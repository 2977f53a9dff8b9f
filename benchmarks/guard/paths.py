"""The paths that the guard counts, and the reference loop that they are divided by.

Run under valgrind (`instructions.py` does it), this process imports and warms everything once. Then it forks two
children for each path: one sends `COUNT` requests, the other twice as many. What a child did before its first request
is the same in both, so the difference is the instructions of `COUNT` requests and nothing else. For each child the
process prints a line: the path, the requests and the child's process id, with tabs between.

The monotonic clock is a counter, so that slices begin at the same requests in every run. The garbage collector runs as
always, but does not see what there was before the fork.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import traceback
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, Final

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slidegate import Limiter, RateLimitMiddleware
from slidegate.limiter.figures import statistics
from slidegate.stores.memory import store as memory

COUNT: Final = 512
"""Statistics count 256 records at once: with any other number, more or fewer of these counts fall into a run."""
WARM: Final = 1_200
"""The number of requests before the fork: the gate checks its first 1,000 for settings that look wrong."""
PLENTY: Final = 2_000_000_000
STEP_US: Final = 10
SCOPE: Final[Scope] = {
    "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "GET",
    "scheme": "http", "path": "/", "raw_path": b"/", "query_string": b"", "root_path": "",
    "headers": [(b"host", b"app.test"), (b"user-agent", b"benchmark"), (b"accept", b"*/*")],
    "client": ("203.0.113.9", 4711), "server": ("127.0.0.1", 80),
}  # fmt: skip

Path = Callable[[int], Coroutine[Any, Any, None]]
"""Does one thing so many times."""

REFERENCE: Final = "reference loop"


class Tally:
    """What the reference loop changes."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, number: int) -> int:
        self.total += number
        return self.total


async def reference(times: int) -> None:
    """Do a little of what every gate does: await, call, look up, count, and build small objects."""

    async def step(tally: Tally, seen: dict[str, int], number: int) -> tuple[str, int]:
        name = f"key:{number & 63}"
        seen[name] = tally.add(seen.get(name, 0) & 7)
        return name, number

    tally, seen = Tally(), dict[str, int]()
    for number in range(times):
        await step(tally, seen, number)


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer in two messages, with next to no instructions of its own."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


def steady_clock() -> None:
    """Let the clocks of memory stores and of statistics go on by a step each time that they are read."""
    # Not a clock that is given to a store: that one may step back, so a store looks at it in other ways.
    memory.monotonic_ns = count(10**15, 1_000 * STEP_US).__next__
    # Times of real requests fall into more buckets of a histogram on a busy machine, which costs instructions.
    statistics.monotonic_ns = count(10**15, 1_000 * STEP_US).__next__


async def page(request: Request) -> PlainTextResponse:
    """Answer as the small application of the other benchmarks does."""
    return PlainTextResponse("hi")


async def endpoint() -> str:
    """Answer as the small FastAPI application of the other benchmarks does."""
    return "hi"


def starlette() -> Starlette:
    """Return the small application."""
    return Starlette(routes=[Route("/", page)])


def fastapi() -> FastAPI:
    """Return the small FastAPI application."""
    app = FastAPI()
    app.get("/")(endpoint)
    return app


def around(app: Starlette, **options: Any) -> Path:
    """Return the path of requests that a gate around an application admits."""
    app.add_middleware(RateLimitMiddleware, limits=f"{PLENTY}/hour", limiter=Limiter(), **options)
    return requests(app, 200)


def gate(amount: int, expected: int, **options: Any) -> Path:
    """Return the path of requests through a gate, the last of which is answered with the expected status."""
    return requests(RateLimitMiddleware(application, limits=f"{amount}/hour", limiter=Limiter(), **options), expected)


def requests(app: ASGIApp, expected: int) -> Path:
    """Return the path of requests to an application, the last of which is answered with the expected status."""
    statuses = [0]

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses[0] = message["status"]

    async def run(times: int) -> None:
        for _ in range(times):
            await app(dict(SCOPE), receive, send)
        if statuses[0] != expected:
            raise RuntimeError(f"expected {expected}, got {statuses[0]}")

    return run


def hit(amount: int, *, allowed: bool) -> Path:
    """Return the path of hits of one key, the last of which is decided as expected."""
    limits, own = f"{amount}/hour", Limiter()

    async def run(times: int) -> None:
        for _ in range(times):
            decision = await own.hit("user:42", limits)
        if decision.allowed is not allowed:
            raise RuntimeError(f"expected {allowed}, got {decision}")

    return run


def paths() -> dict[str, Path]:
    """Return every path by its name."""
    return {
        REFERENCE: reference,
        "gate, admitted": gate(PLENTY, 200),
        "gate, refused": gate(1, 429),
        "gate, statistics=False, admitted": gate(PLENTY, 200, statistics=False),
        "gate, statistics=False, refused": gate(1, 429, statistics=False),
        "limiter.hit, admitted": hit(PLENTY, allowed=True),
        "limiter.hit, refused": hit(1, allowed=False),
        "Starlette": requests(starlette(), 200),
        "Starlette, gate": around(starlette()),
        "Starlette, gate, statistics=False": around(starlette(), statistics=False),
        "FastAPI": requests(fastapi(), 200),
        "FastAPI, gate": around(fastapi()),
        "FastAPI, gate, statistics=False": around(fastapi(), statistics=False),
    }


def forked(path: Path, times: int) -> int:
    """Run a path in a child; return its process id."""
    pid = os.fork()
    if not pid:
        try:
            asyncio.run(path(times))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    if os.waitpid(pid, 0)[1]:
        sys.exit("a path of the guard failed; the lines above say why")
    return pid


def main(names: list[str]) -> None:
    """Run the named paths and the reference loop, or all paths."""
    logging.disable()
    steady_clock()
    chosen = {name: path for name, path in paths().items() if not names or name in {REFERENCE, *names}}
    for path in chosen.values():
        asyncio.run(path(WARM))
    gc.collect()
    gc.freeze()
    for name, path in chosen.items():
        for times in (COUNT, 2 * COUNT):
            print(name, times, forked(path, times), sep="\t", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
