"""Requests of this process that wait for a place, in the order in which they came.

A line has the requests of one rule and key. The first of a line asks again when a place of that key is handed back in
this process, and now and then, because other workers hand back too. Whoever leaves a line, with a place or without,
calls the next one. A request that comes while others wait goes behind them and is not asked about. So within a process
the first comes first; between processes it is whoever asks first.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio

from ...core.decision import Bucket, Check, Decision
from ...core.windows.theory import OPEN
from ..stand_ins import Behind

PAUSE_S: Final = 0.1
"""How long the first of a line waits before it asks again without having been called."""


class PlaceQueues:
    """The lines of one limiter, by rule and key."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], deque[_Waiter]] = {}

    def behind(self, checks: Sequence[Check]) -> Behind | None:
        """Return the refusal of a request for whose places others wait; None where nobody does."""
        if self._lines:
            for check in checks:
                if check[0].held and (check[0].rule, check[1]) in self._lines:
                    return Behind(check, checks)
        return None

    def freed(self, checks: Sequence[Check]) -> None:
        """Call those who wait for the places of some checks: one was handed back."""
        if self._lines:
            for bucket, key, _ in checks:
                line = self._lines.get((bucket.rule, key)) if bucket.held else None
                if line:
                    line[0].call()

    async def wait(self, refused: Decision, ask: Callable[[Sequence[Check]], Awaitable[Decision]]) -> Decision:
        """Wait for the places that a request lacks, as long as its rule allows.

        Args:
            refused: The refusal of the request.
            ask: Asks the store about the checks of the request.

        Returns:
            What the store answered at last, or `refused` where the request may not wait or its time is over.
        """
        found = lacking(refused)
        if found is None:
            return refused
        bucket, key = found
        line = self._lines.setdefault((bucket.rule, key), deque())
        if len(line) >= bucket.wait_max:
            return refused
        demand = refused.demand if isinstance(refused, Behind) else refused.checks
        waiter = _Waiter()
        line.append(waiter)
        try:
            return await self._stand(waiter, line, refused, lambda: ask(demand), bucket.wait_us / 1_000_000)
        finally:
            line.remove(waiter)
            if line:
                line[0].call()
            else:
                self._lines.pop((bucket.rule, key), None)

    async def _stand(
        self,
        waiter: _Waiter,
        line: deque[_Waiter],
        refused: Decision,
        ask: Callable[[], Awaitable[Decision]],
        wait_s: float,
    ) -> Decision:
        """Stand in a line until there is an answer, or the time is over."""
        until_s = anyio.current_time() + wait_s
        while True:
            left_s = until_s - anyio.current_time()
            await waiter.wait(min(left_s, PAUSE_S) if line[0] is waiter else left_s)
            if line[0] is waiter:
                decision = await ask()
                if lacking(decision) is None:
                    return decision
            if anyio.current_time() >= until_s:
                return refused


class _Waiter:
    """A request in a line."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._thread = threading.get_ident()

    def call(self) -> None:
        """End the wait. One in another thread is left to its pause, because its event is not ours to set."""
        if self._thread == threading.get_ident():
            self._event.set()

    async def wait(self, wait_s: float) -> None:
        """Wait to be called, for no longer than this."""
        with anyio.move_on_after(wait_s):
            await self._event.wait()
        self._event = anyio.Event()


def lacking(decision: Decision) -> tuple[Bucket, str] | None:
    """Return bucket and key of the first place that a refusal lacks; None if it lacks what nobody waits for."""
    found: tuple[Bucket, str] | None = None
    waits = iter(decision.readings)
    for bucket, key, _ in decision.checks if decision.readings and not decision.allowed else ():
        for _ in bucket.limits:
            wait_us = next(waits)[3]
            if wait_us and not (wait_us == OPEN and bucket.wait_us):
                return None
            if wait_us and found is None:
                found = bucket, key
    return found
