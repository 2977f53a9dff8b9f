"""Strikes, summed up and sent ten times a second: a flood of one client costs a command for each key and pause.

Where a sum could be enough for a ban, it is sent at once, and waited for. A sum that Redis did not answer is not sent
again: it may have been counted, and a ban on fewer strikes than it takes would be worse than a late one. Strikes that
were not sent when a process ends are lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Final, NamedTuple, TypeAlias

from ...core.bans.ban import Ban
from ...core.bans.policy import BanPolicy
from ...core.errors import StoreError
from ...core.memo import MEMO_SIZE
from .link import store_error

PAUSE_S: Final = 0.1


class Strike(NamedTuple):
    """A strike without its weight."""

    policy: BanPolicy
    key: str
    reason: str
    prefix: str


Send: TypeAlias = Callable[[Strike, int], Awaitable[tuple[Ban | None, int]]]


class _Sum:
    """Strikes of a key that were not sent yet.

    Attributes:
        strike: The last of them.
        weight: How many there are.
        waiting: Gets the ban that they make, or an error, for those who wait.
        missing: How many are missing for the next ban, as Redis has said last.
        next_s: When further ones are sent.
        busy: Whether some are on their way.
        timer: Sends these.
    """

    __slots__ = ("busy", "missing", "next_s", "strike", "timer", "waiting", "weight")

    def __init__(self, strike: Strike) -> None:
        self.strike = strike
        self.weight = 0
        self.waiting: list[asyncio.Future[Ban | None]] = []
        self.missing = 1
        self.next_s = 0.0
        self.busy = False
        self.timer: asyncio.TimerHandle | None = None

    def take(self) -> tuple[int, list[asyncio.Future[Ban | None]]]:
        """Return how many strikes there are, and who waits for them; go on with none."""
        taken = self.weight, self.waiting
        self.weight, self.waiting = 0, []
        return taken


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
        """Count strikes now or later; return the ban that they made, if they were sent now.

        Raises:
            StoreError: They were sent and not answered.
        """
        name = id(loop), strike.policy.name, strike.key
        known = self._sums.get(name)
        if known is None:
            if len(self._sums) >= MEMO_SIZE:
                for quiet in [name for name, it in self._sums.copy().items() if not (it.weight or it.busy)]:
                    self._sums.pop(quiet, None)  # another event loop may be faster
            known = self._sums[name] = _Sum(strike)
        known.strike = strike
        known.weight += weight
        is_due = not known.busy and monotonic() >= known.next_s
        if not is_due and known.weight < known.missing:
            self._send_later(loop, known)
            return None
        answer: asyncio.Future[Ban | None] = loop.create_future()
        known.waiting.append(answer)
        if not known.busy:
            self._start(loop, known)
        return await answer

    def forget(self, key: str) -> bool:
        """Forget the strikes of a key that were not sent yet; False if there were none."""
        of_key = [known for (_, _, struck), known in self._sums.copy().items() if struck == key]
        were_any = any(known.busy or known.weight for known in of_key)
        for known in of_key:
            _, waiting = known.take()
            _tell(waiting, None)
        return were_any

    async def _send_all(self, known: _Sum) -> None:
        """Send what there is, and what could be enough for a ban meanwhile."""
        while known.weight:
            weight, waiting = known.take()
            known.next_s = monotonic() + PAUSE_S
            try:
                ban, known.missing = await self._send(known.strike, weight)
            except BaseException as error:
                known.missing = 1  # these may have been counted
                _, later = known.take()
                _tell([*waiting, *later], None, store_error(error))
                raise
            _tell(waiting, ban)
            if known.weight < known.missing and not known.waiting:
                return

    def _start(self, loop: asyncio.AbstractEventLoop, known: _Sum) -> None:
        known.busy = True
        task = loop.create_task(self._send_all(known))
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            known.busy = False
            if known.weight:
                self._send_later(loop, known)
            if not task.cancelled() and not isinstance(task.exception(), StoreError):
                task.result()

        task.add_done_callback(ended)

    def _send_later(self, loop: asyncio.AbstractEventLoop, known: _Sum) -> None:
        if known.busy or known.timer is not None:
            return
        known.timer = loop.call_later(max(known.next_s - monotonic(), 0.0), self._due, loop, known)

    def _due(self, loop: asyncio.AbstractEventLoop, known: _Sum) -> None:
        known.timer = None
        if known.weight and not known.busy:
            self._start(loop, known)


def _tell(waiting: list[asyncio.Future[Ban | None]], ban: Ban | None, error: StoreError | None = None) -> None:
    for future in waiting:
        if future.done():
            continue
        if error is None:
            future.set_result(ban)
        else:
            future.set_exception(error)
