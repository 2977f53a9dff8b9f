"""Asking several servers for what any of them can tell, when some may be dead."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from ....core.errors import StoreError, StoreUnavailable

T = TypeVar("T")


async def first_of(
    tries: Iterable[Callable[[], Awaitable[T]]],
    apart_s: float,
    nobody: str,
    let_go: Callable[[T], object] = lambda answer: None,
) -> T:
    """Return the first answer that comes.

    The next one is tried when one has failed, or has not answered for `apart_s`; a late answer still counts. As long as
    one has not answered, those that failed are tried again: they may know more by now, and nobody has to wait for a
    server that hangs.

    Args:
        tries: Each asks one server, and raises a StoreError if it fails.
        apart_s: How long to wait before the next is asked beside those before it.
        nobody: What to say where there is nobody to ask.
        let_go: Is given an answer that is not needed any more.

    Raises:
        StoreError: All failed; this is the last error.
    """
    left, again = deque(tries), deque[Callable[[], Awaitable[T]]]()
    running: dict[asyncio.Future[T], Callable[[], Awaitable[T]]] = {}
    failed: StoreError = StoreUnavailable(nobody)
    try:
        while left or running:
            if left:
                ask = left.popleft()
                running[asyncio.ensure_future(ask())] = ask
            done, _ = await asyncio.wait(
                running, timeout=apart_s if left or again else None, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                left, again = left or again, again if left else deque()
            for task in done:
                ask, error = running.pop(task), task.exception()
                if error is None:
                    return task.result()
                if not isinstance(error, StoreError):
                    raise error
                failed = error
                again.append(ask)
        raise failed
    finally:
        for task in running:
            task.cancel()
        for answer in await asyncio.gather(*running, return_exceptions=True):
            if not isinstance(answer, BaseException):
                let_go(answer)
