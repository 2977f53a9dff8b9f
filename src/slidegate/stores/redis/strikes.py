"""Strikes, batched for 100 ms: a flood of one client costs one command for each key and batch.

A batch that could trigger a ban is sent immediately, and awaited. A batch without an answer is resent for
`AGAIN_FOR_S`; Redis recognises it by its name and counts it once. Strikes for which Redis is not asked during an
outage, and those that are unsent when a process ends, are lost.
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
"""The pause before a batch without an answer is resent."""
AGAIN_FOR_S: Final = 10.0
"""How long a batch is resent. It counts from its arrival, so it must not arrive much later."""
KNOWN_US: Final = 30_000_000
"""How long Redis remembers the names of counted batches."""
MAX_UNHEARD: Final = 10_000
"""The most keys with unanswered strikes; those of further keys are lost."""


class Strike(NamedTuple):
    """A strike without its weight."""

    policy: BanPolicy
    key: str
    reason: str


def new_name() -> str:
    """Return a unique name for a batch."""
    return os.urandom(8).hex()


class _Batch:
    """Strikes that are sent together.

    Attributes:
        name: The name by which Redis recognises the batch.
        weight: The number of strikes.
        sent_s: When the batch was first sent (monotonic); 0.0 if it was not.
        waiting: The futures of callers, which receive the ban that the batch caused, or an error.
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
    """The unanswered strikes of a key under a policy.

    Attributes:
        strike: The most recent strike.
        sent: The batch that was sent and is not answered yet.
        next: The batch to be sent next.
        missing: How many strikes a ban lacked at the last answer of Redis.
        next_s: When to send next (monotonic), if no caller waits.
        sends: Whether a call is in flight; if not, `sent` got no answer.
        task: The task that sends until nothing is owed.
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
        """Return whether the owed strikes cannot trigger a ban, and the last batch is recent or in flight."""
        if self.sent is not None and not self.sends:
            return False
        unanswered = self.next.weight + (0 if self.sent is None else self.sent.weight)
        return unanswered < self.missing and (self.sends or monotonic() < self.next_s)

    async def pause(self) -> None:
        """Sleep until `next_s`, or until `hurry` is set."""
        self.hurry.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.next_s - monotonic()):
                await self.hurry.wait()


class StrikeSums:
    """The unanswered strikes of all keys and policies.

    Args:
        send: Counts a batch in Redis, once per name; returns the ban that it caused, and how many strikes the next ban
            lacks.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._sums: dict[tuple[asyncio.AbstractEventLoop, str, str], _Sum] = {}

    async def strike(self, loop: asyncio.AbstractEventLoop, strike: Strike, weight: int) -> Ban | None:
        """Count strikes now or later; return the ban that they caused, if they were sent now.

        Raises:
            StoreError: No answer came; they will be resent.
        """
        known = self._noted(loop, strike, weight)
        if known.may_wait():
            return None
        answer: asyncio.Future[Ban | None] = loop.create_future()
        known.next.waiting.append(answer)
        known.hurry.set()
        return await answer

    def forget(self, key: str) -> bool:
        """Discard the unsent strikes of a key; False if there were none."""
        forgotten = [_forget(known) for (_, _, struck), known in self._sums.copy().items() if struck == key]
        return any(forgotten)

    def _noted(self, loop: asyncio.AbstractEventLoop, strike: Strike, weight: int) -> _Sum:
        """Add strikes to the next batch of their key."""
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
        """Drop the entries of keys that owe nothing, and of closed event loops."""
        for name, known in self._sums.copy().items():
            if name[0].is_closed() or known.task is None:
                self._sums.pop(name, None)  # another thread may be faster

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
        """Send the next batch, or resend the one that was not answered."""
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
                known.next_s = 0.0  # they may trigger a ban
        finally:
            known.sends = False


def _forget(known: _Sum) -> bool:
    """Discard strikes that are not known to be counted; False if there were none."""
    owed = known.owed
    known.next.weight = 0
    known.next.tell(None)
    if not known.sends:
        known.sent = None
    return owed
