"""Waiting for a store, and no longer than that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from inspect import isawaitable
from typing import Final, TypeVar

from ..core.errors import StoreTimeout

COMMAND_DEADLINE_S: Final = 30.0
"""How long a store may take over what people ask for, such as a ban or a list of them."""

T = TypeVar("T")


async def within(answer: Awaitable[T] | T, deadline_s: float = COMMAND_DEADLINE_S) -> T:
    """Wait for an answer, if it has to be waited for, no longer than `deadline_s`.

    Raises:
        StoreTimeout: It did not come in time.
    """
    if not isawaitable(answer):
        return answer
    try:
        async with asyncio.timeout(deadline_s):
            return await answer
    except TimeoutError:
        raise StoreTimeout(f"no answer within {deadline_s:g} s") from None
