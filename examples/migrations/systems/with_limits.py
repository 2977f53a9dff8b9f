"""limits: its three strategies, in memory. slowapi and Flask-Limiter decide by them."""

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
    """An application that asks one strategy, and tells refused clients when the window is said to open.

    Args:
        name: The strategy, by the name that `limits` has for it.
        limits: Several are asked in this order until one refuses.
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
    """Return how to make a system with a strategy."""
    return partial(strategy, name, limits)


def strategy(name: str, limits: tuple[str, ...], clock: FakeClock) -> Strategy:
    """Return a system with a strategy."""
    return Strategy(name, *limits)
