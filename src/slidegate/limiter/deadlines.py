"""Deadlines for the answers of a store."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable
from inspect import isawaitable
from typing import Any, Final, TypeVar

from ..core.errors import ConfigurationError, StoreTimeout
from .running_loop import let_others_run, on_asyncio, on_loop

COMMAND_DEADLINE_S: Final = 30.0
"""How long a store may take over a command of a person, such as a ban or a list of bans."""

STEP: Final = 200
"""How many bans are listed in one turn of the event loop: at 5 us each, a millisecond."""

MOST_DONE: Final = 128
"""How many finished futures may be held, beyond as many as are unfinished: looking through them takes time, too."""

T = TypeVar("T")


async def within(answer: Awaitable[T] | T, deadline_s: float = COMMAND_DEADLINE_S) -> T:
    """Return an answer; if it is awaitable, wait no longer than `deadline_s`.

    In a thread without an event loop no timer can be set; there a store has kept the deadline before it answers.

    Raises:
        StoreTimeout: The answer did not come in time.
        ConfigurationError: Another event loop runs than one of asyncio.
    """
    if not isawaitable(answer):
        return answer
    if not on_loop():
        return await answer
    if not on_asyncio():
        if isinstance(answer, Coroutine):
            answer.close()
        raise ConfigurationError(
            "store: one that has to be awaited needs asyncio, and here runs trio; write MemoryStore(), for example"
        )
    try:
        async with asyncio.timeout(deadline_s):
            return await answer
    except TimeoutError:
        raise StoreTimeout(f"no answer within {deadline_s:g} s") from None


async def in_turns(many: Iterable[T]) -> AsyncIterator[T]:
    """Yield each item, and let other tasks run after every `STEP` items, if there is an event loop."""
    for number, one in enumerate(many, start=1):
        yield one
        if not number % STEP:
            await let_others_run()


class Deadline:
    """Gives up futures that take too long, with one timer for each event loop.

    `asyncio.timeout` sets a timer for each future, which takes a third of a hit on a store that answers many at once.
    Finished futures are dropped when there are more of them than of unfinished ones.

    Args:
        span_s: How long a future may take.
    """

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._lines: dict[asyncio.AbstractEventLoop, _Line] = {}
        self._turns: dict[asyncio.AbstractEventLoop, list[asyncio.Future[Any]]] = {}

    def watch(self, future: asyncio.Future[Any]) -> None:
        """Give `future` a StoreTimeout if it is not done in time."""
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
    """The futures of one event loop, grouped by the turn that made them, in the order in which they are due."""

    def __init__(self, loop: asyncio.AbstractEventLoop, span_s: float) -> None:
        self._loop = loop
        self._span_s = span_s
        self._turns: deque[tuple[float, list[asyncio.Future[Any]]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._held = 0
        self._full = MOST_DONE

    def add(self, turn: list[asyncio.Future[Any]], due_s: float) -> None:
        """Hold futures until they are due, or until there is need to drop finished ones."""
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
        """Give up the futures that are due."""
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
