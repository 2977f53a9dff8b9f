"""Strikes, batched for 100 ms: a flood of one client costs one command for each key and batch.

A batch that could trigger a ban is sent immediately, and awaited. A batch without an answer is resent for
`AGAIN_FOR_S`; Redis recognises it by its id and counts it once. So are strikes during an outage, while Redis is not
asked. Strikes that have not been sent when a process ends are lost.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Final, NamedTuple, TypeAlias

from ...core.bans.ban import Ban
from ...core.bans.policy import BanPolicy
from ...core.errors import StoreError
from ...core.memo import MEMO_SIZE
from .errors import store_error

PAUSE_S: Final = 0.1
AGAIN_S: Final = 0.5
"""How soon strikes are sent again that were not answered ..."""
AGAIN_FOR_S: Final = 10.0
"""... and for how long: they count from when they arrive, so they must not arrive much later."""
KNOWN_US: Final = 30_000_000
"""How long Redis knows what it has counted."""
MAX_UNHEARD: Final = 10_000
"""Unanswered strikes of more keys than this are lost."""


class Strike(NamedTuple):
    """A strike without its weight."""

    policy: BanPolicy
    key: str
    reason: str


def new_name() -> str:
    """Return a name that no other strikes have."""
    return os.urandom(8).hex()


class _Batch:
    """Strikes that are sent together.

    Attributes:
        name: What Redis knows them by.
        weight: How many there are.
        sent_s: When they were sent first; 0.0 if they were not.
        waiting: Gets the ban that they made, or an error, for those who wait.
    """

    __slots__ = ("name", "sent_s", "waiting", "weight")

    def __init__(self) -> None:
        self.name = new_name()
        self.weight = 0
        self.sent_s = 0.0
        self.waiting: list[asyncio.Future[Ban | None]] = []

    def tell(self, ban: Ban | None, error: StoreError | None = None) -> None:
        waiting, self.waiting = self.waiting, []
        for future in waiting:
            if future.done():
                continue
            if error is None:
                future.set_result(ban)
            else:
                future.set_exception(error)


Send: TypeAlias = Callable[[Strike, int, str], Awaitable[tuple[Ban | None, int]]]


class _Sum:
    """Strikes of a key: those on their way, and those to be sent next.

    Attributes:
        strike: The last one.
        sent: Those that were sent, and not answered yet.
        next: Those to be sent next.
        missing: How many the next ban took when Redis answered last.
        next_s: When to send again, if nobody waits for that.
        sends: Whether Redis is being asked; if not, those that were sent were not answered.
        task: Sends as long as anything is owed.
        hurry: Ends the pause before `next_s`.
    """

    __slots__ = ("hurry", "missing", "next", "next_s", "sends", "sent", "strike", "task")

    def __init__(self, strike: Strike) -> None:
        self.strike = strike
        self.sent: _Batch | None = None
        self.next = _Batch()
        self.missing = 1
        self.next_s = 0.0
        self.sends = False
        self.task: asyncio.Task[None] | None = None
        self.hurry = asyncio.Event()

    @property
    def owed(self) -> bool:
        """Whether there is anything to send."""
        return self.sent is not None or self.next.weight > 0

    def may_wait(self) -> bool:
        """Return whether no ban can come of what is owed, and others were sent a moment ago, or are being sent."""
        if self.sent is not None and not self.sends:
            return False
        unanswered = self.next.weight + (0 if self.sent is None else self.sent.weight)
        return unanswered < self.missing and (self.sends or monotonic() < self.next_s)

    async def pause(self) -> None:
        """Come back at `next_s`, or when there is hurry."""
        self.hurry.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.next_s - monotonic()):
                await self.hurry.wait()


class StrikeSums:
    """Sums of strikes.

    Args:
        send: Counts strikes in Redis once under a name; returns the ban that was made, and how many are missing for the
            next.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._sums: dict[tuple[asyncio.AbstractEventLoop, str, str], _Sum] = {}

    async def strike(self, loop: asyncio.AbstractEventLoop, strike: Strike, weight: int) -> Ban | None:
        """Count strikes now or later; return the ban that they made, if they were sent now.

        Raises:
            StoreError: They were sent and not answered; they are sent again.
        """
        known = self._noted(loop, strike, weight)
        if known.may_wait():
            return None
        answer: asyncio.Future[Ban | None] = loop.create_future()
        known.next.waiting.append(answer)
        known.hurry.set()
        return await answer

    def add(self, loop: asyncio.AbstractEventLoop, strike: Strike, weight: int) -> bool:
        """Count strikes later: Redis has just not answered, so it is left alone for a while; False for no room."""
        if len(self._sums) >= MAX_UNHEARD and (loop, strike.policy.name, strike.key) not in self._sums:
            return False
        known = self._noted(loop, strike, weight)
        known.next_s = max(known.next_s, monotonic() + AGAIN_S)
        return True

    def forget(self, key: str) -> bool:
        """Forget the strikes of a key that were not sent yet; False if there were none."""
        forgotten = [_forget(known) for (_, _, struck), known in self._sums.copy().items() if struck == key]
        return any(forgotten)

    def _noted(self, loop: asyncio.AbstractEventLoop, strike: Strike, weight: int) -> _Sum:
        """Add strikes to those that are sent next, and return the sum."""
        name = loop, strike.policy.name, strike.key
        known = self._sums.get(name)
        if known is None:
            if len(self._sums) >= MEMO_SIZE:
                self._tidy()
            known = self._sums[name] = _Sum(strike)
        known.strike = strike
        known.next.weight += weight
        if known.task is None:
            known.task = loop.create_task(self._send_owed(known))
        return known

    def _tidy(self) -> None:
        """Let go of sums of which nothing is owed, and of those of event loops that have ended."""
        for name, known in self._sums.copy().items():
            if name[0].is_closed() or known.task is None:
                self._sums.pop(name, None)  # another event loop may be faster

    async def _send_owed(self, known: _Sum) -> None:
        try:
            while known.owed:
                if known.next.waiting or monotonic() >= known.next_s:
                    await self._flush(known)
                else:
                    await known.pause()
        finally:
            known.task = None

    async def _flush(self, known: _Sum) -> None:
        """Send a sum; where an earlier one was not answered, that one."""
        if known.sent is None:
            known.sent, known.next = known.next, _Batch()
            known.sent.sent_s = monotonic()
        batch, known.sends = known.sent, True
        known.next_s = monotonic() + PAUSE_S
        try:
            ban, known.missing = await self._send(known.strike, batch.weight, batch.name)
        except BaseException as error:
            known.next_s = monotonic() + AGAIN_S
            if monotonic() - batch.sent_s >= AGAIN_FOR_S or len(self._sums) >= MAX_UNHEARD:
                known.sent = None
            failed = store_error(error)
            batch.tell(None, failed)
            known.next.tell(None, failed)
            if failed is not error:
                raise
        else:
            known.sent = None
            batch.tell(ban)
            if known.next.weight >= known.missing:
                known.next_s = 0.0  # a ban may come of them
        finally:
            known.sends = False


def _forget(known: _Sum) -> bool:
    """Forget strikes that were not counted yet, as far as is known; False if there were none."""
    owed = known.owed
    known.next.weight = 0
    known.next.tell(None)
    if not known.sends:
        known.sent = None
    return owed
