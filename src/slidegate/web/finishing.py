"""Work that is finished even if its request is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Final, TypeVar

import anyio

from ..core.decision import Decision
from ..core.logs import logger
from ..limiter import Limiter

T = TypeVar("T")


_running: Final[set[asyncio.Future[Any]]] = set()
"""The tasks under way: an event loop itself does not hold its tasks."""


async def to_the_end(work: Awaitable[T]) -> T:
    """Do some work to its end: a cancellation of the caller stops the waiting, and not the work.

    anyio's shield does not do under asyncio: a task that is cancelled by other means than anyio's is cancelled in it.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # trio knows no other cancellation than that of scopes
        with anyio.CancelScope(shield=True):
            return await work
    task = asyncio.ensure_future(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_say)
        raise


async def hand_back(parts: Sequence[tuple[Limiter, Decision]]) -> None:
    """Hand back all units of some decisions."""
    if all(limiter.internals.per_process for limiter, _ in parts):
        await _refund(parts)  # there is nothing to wait for, so nothing to cancel
    else:
        await to_the_end(_refund(parts))


async def _refund(parts: Sequence[tuple[Limiter, Decision]]) -> None:
    for limiter, decision in parts:
        await limiter.refund(decision)


def _say(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("work for a request that was cancelled failed: %r", error)
