"""limits: its three strategies, in memory. slowapi and Flask-Limiter are based on them."""

from __future__ import annotations

import time
from functools import partial

from limits import parse
from limits.storage import MemoryStorage
from limits.strategies import STRATEGIES

from slidegate.testing import FakeClock

from ..asking import CLIENT, Answer
from ..attacks import Make


class Strategy:
    """An application that uses one strategy, with a `Retry-After` from its window stats.

    Args:
        name: The name of the strategy in `limits`.
        limits: The limits, checked in this order until one refuses.
    """

    def __init__(self, name: str, *limits: str) -> None:
        self.limiter = STRATEGIES[name](MemoryStorage())
        self.items = [parse(limit) for limit in limits]

    def ask(self, path: str = "/", client: str = CLIENT, headers: dict[str, str] | None = None) -> Answer:
        """Send one request now."""
        for item in self.items:
            if not self.limiter.hit(item, client):
                reset_s = self.limiter.get_window_stats(item, client).reset_time
                return Answer(429, round(reset_s - time.time(), 2))
        return Answer(200)


def made(name: str, *limits: str) -> Make:
    """Return a function that creates a system with a strategy."""
    return partial(strategy, name, limits)


def strategy(name: str, limits: tuple[str, ...], clock: FakeClock) -> Strategy:
    """Return a system with a strategy."""
    return Strategy(name, *limits)
