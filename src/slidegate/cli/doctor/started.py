"""Starts an application as a server does, without serving it, and finds the gates in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from starlette.types import ASGIApp, Message

from ...core.errors import ConfigurationError
from ...web.middleware import RateLimitMiddleware
from ...web.reload import ReloadingMiddleware

PATIENCE_S: Final = 60.0
"""How long the start of an application may take."""
_DEPTH: Final = 32


@asynccontextmanager
async def started(app: ASGIApp, patience_s: float = PATIENCE_S) -> AsyncIterator[None]:
    """Run the lifespan of an application around a block; one that knows no lifespan is taken as it is.

    Raises:
        ConfigurationError: The start fails, or takes too long.
    """
    told: asyncio.Queue[Message] = asyncio.Queue()
    asked: asyncio.Queue[Message] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
    running = asyncio.ensure_future(app(scope, asked.get, told.put))
    try:
        asked.put_nowait({"type": "lifespan.startup"})
        await _answer(told, running, patience_s, "start")
        yield
        asked.put_nowait({"type": "lifespan.shutdown"})
        await _answer(told, running, patience_s, "end")
    finally:
        running.cancel()
        with suppress(BaseException):
            await running


async def _answer(told: asyncio.Queue[Message], running: asyncio.Future[None], patience_s: float, what: str) -> None:
    asking = asyncio.ensure_future(told.get())
    await asyncio.wait((asking, running), timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
    message = asking.result() if asking.done() else None
    asking.cancel()
    if message is None and not running.done():
        raise ConfigurationError(f"application: its {what} took longer than {patience_s:g} s")
    if message is not None and message["type"].endswith(".failed"):
        raise ConfigurationError(f"application: its {what} failed: {message.get('message', '')}")


def gates_in(app: Any) -> Iterator[RateLimitMiddleware]:
    """Yield the gates of an application that was started: around it, around its routers, and around its routes."""
    yield from _gates(app, set(), 0)


def _gates(thing: Any, seen: set[int], depth: int) -> Iterator[RateLimitMiddleware]:
    if thing is None or id(thing) in seen or depth > _DEPTH:
        return
    seen.add(id(thing))
    if isinstance(thing, RateLimitMiddleware):
        yield thing
    elif isinstance(thing, ReloadingMiddleware):
        yield from _gates(thing.app, seen, depth + 1)
        return
    for name in ("middleware_stack", "app"):
        yield from _gates(getattr(thing, name, None), seen, depth + 1)
    routes = getattr(thing, "routes", None)
    for route in routes if isinstance(routes, (list, tuple)) else ():
        yield from _gates(route, seen, depth + 1)
