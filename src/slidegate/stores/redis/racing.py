"""Asking several servers for what any of them can tell, when some may be dead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from ...core.errors import StoreError, StoreUnavailable

T = TypeVar("T")


async def first_of(tries: Iterable[Callable[[], Awaitable[T]]], apart_s: float, nobody: str) -> T:
    """Return the first answer that comes.

    The next one is tried when one has failed, or has not answered for `apart_s`; a late answer still counts.

    Args:
        tries: Each asks one server. What fails raises a StoreError.
        apart_s: How long to wait before the next is asked beside those before it.
        nobody: What to say where there is nobody to ask.

    Raises:
        StoreError: All failed; this is the last error.
    """
    left = iter(tries)
    running: set[asyncio.Future[T]] = set()
    failed: StoreError = StoreUnavailable(nobody)
    try:
        while True:
            ask = next(left, None)
            if ask is not None:
                running.add(asyncio.ensure_future(ask()))
            elif not running:
                raise failed
            done, running = await asyncio.wait(
                running, timeout=None if ask is None else apart_s, return_when=asyncio.FIRST_COMPLETED
            )
            errors = [task.exception() for task in done]
            for task, error in zip(done, errors, strict=True):
                if error is None:
                    return task.result()
                if not isinstance(error, StoreError):
                    raise error
                failed = error
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
