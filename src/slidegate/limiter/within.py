"""Waiting for a store, and no longer than that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable
from inspect import isawaitable
from typing import Any, Final, TypeVar

from ..core.errors import StoreTimeout

COMMAND_DEADLINE_S: Final = 30.0
"""How long a store may take over what people ask for, such as a ban or a list of them."""

STEP: Final = 200
"""How many bans are gone through in one turn of the loop: at 5 us each, a millisecond."""

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


async def in_turns(many: Iterable[T]) -> AsyncIterator[T]:
    """Yield each of many, and let others go on after every `STEP` of them."""
    for number, one in enumerate(many, start=1):
        yield one
        if not number % STEP:
            await asyncio.sleep(0)


class Deadline:
    """Gives up futures that take too long: one timer for all that are watched in one turn of an event loop.

    `asyncio.timeout` needs a timer for each, which takes a third of a hit on a store that answers many at once.

    Args:
        span_s: How long a future may take.
    """

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._turns: dict[asyncio.AbstractEventLoop, list[asyncio.Future[Any]]] = {}

    def watch(self, future: asyncio.Future[Any]) -> None:
        """See that `future` is done in time: with a StoreTimeout, if with nothing else."""
        loop = future.get_loop()
        turn = self._turns.get(loop)
        if turn is None:
            turn = self._turns[loop] = []
            loop.call_soon(self._turns.pop, loop, None)
            loop.call_later(self._span_s, self._give_up, turn)
        turn.append(future)

    def _give_up(self, turn: list[asyncio.Future[Any]]) -> None:
        for future in turn:
            if not future.done():
                future.set_exception(StoreTimeout(f"no answer within {self._span_s:g} s"))
