"""Turns: for each key the tasks of a process stand in one of the limiter's lines, first come, first served.

Only the first in line asks the limiter. If that refuses, the first sleeps until the moment that the refusal names, and
asks again: units of requests under way stay longer than a refusal can know, and other workers take units too.

A server that asks for a pause gets a ban of its key in the store, which ends by itself: so all workers pause, and
operators see it with `Limiter.bans` and end it with `Limiter.unban`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import anyio
import httpx

from ..core.bans.rules import PAUSED_BY
from ..core.decision import ceil_s
from ..core.durations import format_duration
from ..core.errors import SlidegateError, StoreError
from ..core.memo import remember
from ..core.store import Event
from ..limiter import Limiter
from ..limiter.waiting import LoopWaiter
from .units import Hold, Units

LOOK_AGAIN_S: Final = 1.0
"""The longest sleep between two questions: so a ban that is lifted by hand is noticed."""
SHARE_S: Final = 1.0
"""How long a store may take to learn of a pause."""


class TurnTimeout(SlidegateError, httpx.PoolTimeout):
    """A request was not sent, because its turn would not have come in time, or too many stood in line.

    It is an `httpx.PoolTimeout` too: for httpx as well as for this, nothing was sent, and a later request may succeed.

    Args:
        message: The reason, in words.
        key: The key whose turn did not come.
        retry_after_us: After how many microseconds there may be room; None if nobody knows.
    """

    def __init__(self, message: str, *, key: str, retry_after_us: int | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.retry_after_us = retry_after_us


class Turns:
    """The turns of one transport.

    Args:
        limiter: The limiter that counts, and holds the pauses.
        units: The units that there are turns for.
        longest_line: How many tasks may stand in line for one key.
    """

    def __init__(self, limiter: Limiter, units: Units, longest_line: int) -> None:
        self._limiter = limiter
        self._units = units
        self._longest_line = longest_line
        self._lines = limiter.engine.lines
        self._paused_here: dict[str, float] = {}

    async def take(self, key: str, until_s: float) -> Hold:
        """Wait for a turn, and return the unit that was charged for it.

        Args:
            key: The key.
            until_s: How long to wait, in the time of the event loop.

        Raises:
            TurnTimeout: The turn would not come in time, or too many stand in line.
        """
        waiter, name = LoopWaiter(), self._units.name(key)
        line, _ = self._lines.join(name, waiter, self._longest_line)
        if line is None:
            raise TurnTimeout(f"{self._longest_line} requests stand in line for {key!r} already", key=key)
        try:
            with anyio.CancelScope(deadline=until_s):
                if await line.turn(waiter, until_s):
                    return await self._take_first(key, until_s, waiter)
        finally:
            self._lines.leave(name, waiter)
        raise TurnTimeout(f"the turn of a request for {key!r} did not come in time", key=key)

    async def pause(self, key: str, pause_us: int, now_us: int, reason: str) -> None:
        """Send nothing under `key` for a while; a ban that ends later stays.

        Args:
            key: The key.
            pause_us: The length of the pause.
            now_us: The time of the store.
            reason: For the operator.
        """
        known = self._limiter.key_for(key)  # a ban's key is text that JSON can hold; a caller's need not be
        failure = f"no answer within {SHARE_S:g} s"
        try:
            with anyio.move_on_after(SHARE_S):
                ban = await self._limiter.banned(known)
                if ban is None or (ban.ends_us is not None and ban.ends_us < now_us + pause_us):
                    await self._limiter.ban(known, timedelta(microseconds=pause_us), reason=reason, by=PAUSED_BY)
                return
        except StoreError as error:
            failure = str(error)
        remember(self._paused_here, key, anyio.current_time() + pause_us / 1_000_000)
        message = f"only this process pauses requests to {key!r} for {format_duration(pause_us)}: {failure}"
        self._limiter.engine.emit(Event("pause_unshared", message, {"key": key, "pause_us": pause_us}))

    async def _take_first(self, key: str, until_s: float, waiter: LoopWaiter) -> Hold:
        while True:
            wait_us = self._pause_left_us(key)
            if wait_us == 0:
                decision = await self._units.take(key)
                if decision:
                    return Hold(self._units, key, decision)
                wait_us = decision.retry_after_us
            if wait_us is None or anyio.current_time() + wait_us / 1_000_000 > until_s:
                when = "never" if wait_us is None else f"in {ceil_s(wait_us)} s at the earliest"
                raise TurnTimeout(f"the next turn for {key!r} comes {when}", key=key, retry_after_us=wait_us)
            await waiter.wait(min(wait_us / 1_000_000, LOOK_AGAIN_S))

    def _pause_left_us(self, key: str) -> int | None:
        if not self._paused_here:
            return 0
        left_s = self._paused_here.get(key, 0.0) - anyio.current_time()
        if left_s <= 0:
            self._paused_here.pop(key, None)
        return max(round(left_s * 1_000_000), 0)
