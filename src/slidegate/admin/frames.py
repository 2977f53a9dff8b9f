"""Frames: everything that the page shows live, as one JSON text, which is made once for all open pages.

A frame is made when somebody asks and the last one is too old, so twenty open pages cost as much as one, and a page
that nobody looks at costs nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import anyio

from ..core.errors import StoreError
from ..core.logs import logger

WINDOWS: Final = ("1m", "5m", "10m", "30m", "1h", "3h", "6h", "12h", "24h")
SHORT: Final = frozenset({"1m", "5m", "10m"})
"""Windows in which two seconds can be seen."""
EVERY_S: Final = 2.0
SELDOM_S: Final = 10.0
"""How old a frame of a longer window may be, and the small lines of every window."""
MOST_LINES: Final = 12
"""How many rules, and how many routes, get a small line: the busiest."""
LINE_POINTS: Final = 60
NEAREST: Final = 12


class Figures(Protocol):
    """The part of the console that frames are made of; each method returns the answer of the API of that name."""

    async def stats(self, window: str) -> dict[str, Any]:
        """Return totals, by rule and by route."""

    async def history(self, window: str, rule: str | None = None, route: str | None = None) -> dict[str, Any]:
        """Return figures over time."""

    async def clients(self, sort: str, limit: int) -> dict[str, Any]:
        """Return the busiest clients."""


class Frames:
    """The newest frame of each window.

    Args:
        figures: Where the figures come from.
        now_s: A clock that never steps back, in seconds.
    """

    def __init__(self, figures: Figures, now_s: Callable[[], float] = time.monotonic) -> None:
        self._figures = figures
        self._now_s = now_s
        self._frames: dict[str, tuple[float, str]] = {}
        self._lines: dict[str, tuple[float, dict[str, Any]]] = {}
        self._making: dict[str, anyio.Lock] = {}

    async def latest(self, window: str) -> str:
        """Return the frame of a window as JSON on one line; a frame that is too old is made anew first.

        Args:
            window: One of `WINDOWS`.
        """
        # A question about one window must not wait for the figures of another.
        async with self._making.setdefault(window, anyio.Lock()):
            made_s, text = self._frames.get(window, (None, ""))
            if made_s is None or self._now_s() - made_s >= interval_s(window):
                text = json.dumps(await self._make(window), separators=(",", ":"))
                self._frames[window] = self._now_s(), text
            return text

    async def _make(self, window: str) -> dict[str, Any]:
        """Return a frame; without a store it says so in place of the figures."""
        try:
            stats = await self._figures.stats(window)
            return {
                "at": time.time(),
                "stats": stats,
                "history": await self._figures.history(window),
                "clients": (await self._figures.clients(sort="nearness", limit=NEAREST))["clients"],
                "sparks": await self._small_lines(window, stats),
            }
        except StoreError as error:
            logger.info("dashboard: no figures, because %s", error)
            detail = "The store does not answer, so there are no new figures."
            return {"at": time.time(), "problem": {"title": "Store away", "detail": detail}}

    async def _small_lines(self, window: str, stats: Mapping[str, Any]) -> dict[str, Any]:
        """Return the course of the busiest rules and routes; many questions, so these are asked seldom."""
        made_s, lines = self._lines.get(window, (None, {}))
        if made_s is None or self._now_s() - made_s >= SELDOM_S:
            history = self._figures.history
            rules = {name: thinned(await history(window, rule=name)) for name in busiest(stats["rules"])}
            routes = {name: thinned(await history(window, route=name)) for name in busiest(stats["routes"])}
            lines = {"rules": rules, "routes": routes}
            self._lines[window] = self._now_s(), lines
        return lines


def interval_s(window: str) -> float:
    """Return how many seconds a frame of a window is good for."""
    return EVERY_S if window in SHORT else SELDOM_S


def busiest(figures: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names with the most requests, at most `MOST_LINES`."""
    requests = {name: row["passed"] + row["refused"] for name, row in figures.items()}
    return sorted(requests, key=requests.__getitem__, reverse=True)[:MOST_LINES]


def thinned(history: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the requests that passed, and those that were refused, in at most `LINE_POINTS` points.

    The running step is left out, and each point adds up as many steps as the others: else the line would seem to fall
    at its end.
    """
    done = max(len(history["passed"]) - 1, 0)
    step = -(-done // LINE_POINTS) or 1
    return {
        name: [sum(history[name][start : start + step]) for start in range(done % step, done, step)]
        for name in ("passed", "refused")
    }
