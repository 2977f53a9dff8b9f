"""Strikes, summed up and sent ten times a second: a flood of one client costs a command for each key and pause.

Where a sum could be enough for a ban, it is sent at once. Strikes that were not sent when a process ends are lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Final, NamedTuple, TypeAlias

from ....core.bans.in_force import Ban
from ....core.bans.policy import BanPolicy
from ....core.errors import StoreError
from ....core.memo import MEMO_SIZE

PAUSE_S: Final = 0.1


class Strike(NamedTuple):
    """A strike without its weight."""

    policy: BanPolicy
    key: str
    reason: str
    prefix: str


Send: TypeAlias = Callable[[Strike, int], Awaitable[tuple[Ban | None, int]]]


class _Sum:
    """Strikes of a key that were not sent yet."""

    __slots__ = ("busy", "missing", "next_s", "strike", "timer", "weight")

    def __init__(self, strike: Strike) -> None:
        self.strike = strike
        self.weight = 0
        self.missing = 1
        self.next_s = 0.0
        self.busy = False
        self.timer: asyncio.TimerHandle | None = None


class StrikeSums:
    """Sums of strikes.

    Args:
        send: Counts strikes in Redis; returns the ban that was made, and how many are missing for the next.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._sums: dict[tuple[int, str, str], _Sum] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def strike(self, loop: asyncio.AbstractEventLoop, strike: Strike, weight: int) -> Ban | None:
        """Count strikes now or later; return the ban that they made, if they were sent now."""
        name = id(loop), strike.policy.name, strike.key
        known = self._sums.get(name)
        if known is None:
            if len(self._sums) >= MEMO_SIZE:
                for quiet in [name for name, it in self._sums.copy().items() if not (it.weight or it.busy)]:
                    self._sums.pop(quiet, None)  # another event loop may be faster
            known = self._sums[name] = _Sum(strike)
        known.strike = strike
        known.weight += weight
        if not known.busy and (monotonic() >= known.next_s or known.weight >= known.missing):
            return await self._flush(loop, known)
        self._flush_later(loop, known)
        return None

    def forget(self, key: str) -> bool:
        """Forget the strikes of a key that were not sent yet; False if there were none."""
        unsent = [known for (_, _, struck), known in self._sums.copy().items() if struck == key and known.weight]
        for known in unsent:
            known.weight = 0
        return bool(unsent)

    def clear(self) -> None:
        """Forget all strikes that were not sent yet."""
        for known in self._sums.copy().values():
            known.weight = 0

    async def _flush(self, loop: asyncio.AbstractEventLoop, known: _Sum) -> Ban | None:
        weight, known.weight = known.weight, 0
        known.busy, known.next_s = True, monotonic() + PAUSE_S
        try:
            ban, known.missing = await self._send(known.strike, weight)
        finally:
            known.busy = False
            if known.weight:
                self._flush_later(loop, known)
        return ban

    def _flush_later(self, loop: asyncio.AbstractEventLoop, known: _Sum) -> None:
        pause_s = 0.0 if known.weight >= known.missing else max(known.next_s - monotonic(), 0.0)
        if not known.busy and (known.timer is None or pause_s == 0.0):
            if known.timer is not None:
                known.timer.cancel()
            known.timer = loop.call_later(pause_s, self._due, loop, known)

    def _due(self, loop: asyncio.AbstractEventLoop, known: _Sum) -> None:
        known.timer = None
        if known.weight and not known.busy:
            task = loop.create_task(self._flush(loop, known))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and not isinstance(task.exception(), StoreError):
            task.result()
