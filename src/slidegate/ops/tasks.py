"""Work at the same time, where an event loop may run or not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any


async def together(*work: Awaitable[Any]) -> list[Any]:
    """Return the results of some work, in which the store is asked at the same time; raise the first failure."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # no event loop of asyncio runs in this thread
        results = [await _result_of(part) for part in work]
    else:
        results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


async def _result_of(part: Awaitable[Any]) -> Any:
    try:
        return await part
    except Exception as error:  # so that all work ends before the first failure is raised
        return error
