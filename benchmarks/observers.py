"""The time that those who watch a gate add to a request: observers of events, and a log.

An observer in a thread of its own shares the processor with the request that made the event, so its time is in there.
No event is dropped unless the observer is slower than the gate, and then the gate pays only for the dropping.
"""

from __future__ import annotations

import asyncio
import logging
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from slidegate import Limiter, MemoryStore, RateLimitMiddleware
from slidegate.events import Event

from .measure import asgi, compared, rounds
from .report.tables import Table

PACKAGES = ("starlette",)

PLENTY = 2_000_000_000
ALONE = "slidegate"


async def page(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hi")


def hear(event: Event) -> None:
    """Do the least that an observer can do."""


def watched(amount: int, watch: Callable[[Limiter], object]) -> ASGIApp:
    """Return a small application behind a gate that somebody watches."""
    limiter = Limiter(MemoryStore())
    app = Starlette(routes=[Route("/", page)])
    app.add_middleware(RateLimitMiddleware, limits=f"{amount}/hour", limiter=limiter)
    watch(limiter)
    return app


def log(limiter: Limiter) -> None:
    """Write the events to a logger that keeps nothing."""
    logger = logging.Logger("benchmark")
    logger.addHandler(logging.NullHandler())
    limiter.log_events(logger=logger)


WATCHES: dict[str, Callable[[Limiter], object]] = {
    ALONE: lambda limiter: None,
    "an observer of bans": lambda limiter: limiter.observe(hear, kinds=["banned"]),
    "an observer of all kinds": lambda limiter: limiter.observe(hear),
    "the same, inline": lambda limiter: limiter.observe(hear, inline=True),
    "log_events()": log,
}


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--requests", type=int, default=2_000, help="in each round of each candidate")


async def outcome(name: str, amount: int, status: int, options: Namespace) -> Table:
    """Measure one request with one outcome."""
    apps = {watch: watched(amount, begin) for watch, begin in WATCHES.items()}
    for app in apps.values():  # the one request that a refusing gate admits
        await asgi(app, 1, 200)()
    candidates = {watch: asgi(app, options.requests, status) for watch, app in apps.items()}
    taken = await rounds(candidates, options.rounds)
    return compared(f"One request, {name}", taken, {watch: ALONE for watch in WATCHES if watch != ALONE})


def tables(options: Namespace) -> Iterator[Table]:
    """Measure both outcomes."""
    for name, amount, status in (("admitted", PLENTY, 200), ("refused", 1, 429)):
        yield asyncio.run(outcome(name, amount, status, options))
