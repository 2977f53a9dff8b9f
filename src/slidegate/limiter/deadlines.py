"""Waiting for a store, and no longer than that."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterable
from inspect import isawaitable
from typing import Any, Final, TypeVar

from anyio.lowlevel import checkpoint

from ..core.errors import StoreTimeout

COMMAND_DEADLINE_S: Final = 30.0
"""How long a store may take over what people ask for, such as a ban or a list of them."""

STEP: Final = 200
"""How many bans are gone through in one turn of the loop: at 5 us each, a millisecond."""

MOST_DONE: Final = 128
"""How many futures that are done may be held on to, beyond as many as are not: looking through them takes time, too."""

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
            await checkpoint()


class Deadline:
    """Gives up futures that take too long: one timer for each event loop.

    `asyncio.timeout` needs a timer for each, which takes a third of a hit on a store that answers many at once.
    Futures that are done are let go of when there are more of them than of those that are not.

    Args:
        span_s: How long a future may take.
    """

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._lines: dict[asyncio.AbstractEventLoop, _Line] = {}
        self._turns: dict[asyncio.AbstractEventLoop, list[asyncio.Future[Any]]] = {}

    def watch(self, future: asyncio.Future[Any]) -> None:
        """See that `future` is done in time: with a StoreTimeout, if with nothing else."""
        loop = future.get_loop()
        turn = self._turns.get(loop)
        if turn is None:
            turn = self._turns[loop] = []
            loop.call_soon(self._end_turn, loop, loop.time() + self._span_s)
        turn.append(future)

    def _end_turn(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        line = self._lines.get(loop)
        if line is None:
            for gone in [other for other in {*self._lines.copy(), *self._turns.copy()} if other.is_closed()]:
                self._lines.pop(gone, None)
                self._turns.pop(gone, None)
            line = self._lines[loop] = _Line(loop, self._span_s)
        line.add(self._turns.pop(loop), due_s)


class _Line:
    """Futures of one event loop, those of a turn together, in the order in which they are due."""

    def __init__(self, loop: asyncio.AbstractEventLoop, span_s: float) -> None:
        self._loop = loop
        self._span_s = span_s
        self._turns: deque[tuple[float, list[asyncio.Future[Any]]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._held = 0
        self._full = MOST_DONE

    def add(self, turn: list[asyncio.Future[Any]], due_s: float) -> None:
        """Hold futures until they are due, or done and in the way."""
        self._turns.append((due_s, turn))
        self._held += len(turn)
        if self._held >= self._full:
            waiting = [(due_s, [future for future in turn if not future.done()]) for due_s, turn in self._turns]
            self._turns = deque((due_s, turn) for due_s, turn in waiting if turn)
            self._held = sum(len(turn) for _, turn in self._turns)
            self._full = 2 * self._held + MOST_DONE
        if self._timer is None and self._turns:
            self._timer = self._loop.call_at(self._turns[0][0], self._look)

    def _look(self) -> None:
        """Give up what is due."""
        self._timer = None
        now_s = self._loop.time()
        while self._turns and self._turns[0][0] <= now_s:
            _, turn = self._turns.popleft()
            self._held -= len(turn)
            for future in turn:
                if not future.done():
                    future.set_exception(StoreTimeout(f"no answer within {self._span_s:g} s"))
        if self._turns:
            self._timer = self._loop.call_at(self._turns[0][0], self._look)
