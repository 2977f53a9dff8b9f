"""Work that is finished even if its caller is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final, TypeVar

import anyio

from ..core.logs import logger
from .running_loop import on_asyncio, on_loop

T = TypeVar("T")

_running: Final[set[asyncio.Future[Any]]] = set()
"""The tasks under way: an event loop itself does not hold its tasks."""


async def to_the_end(work: Awaitable[T]) -> T:
    """Do some work to its end: a cancellation of the caller stops the waiting, and not the work.

    anyio's shield does not do under asyncio: a task that is cancelled by other means than anyio's is cancelled in it.
    """
    if not on_asyncio():
        if not on_loop():  # nobody can cancel the caller
            return await work
        with anyio.CancelScope(shield=True):  # trio knows no other cancellation than that of scopes
            return await work
    task = asyncio.ensure_future(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_say)
        raise


def _say(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("work for a caller that was cancelled failed: %r", error)
