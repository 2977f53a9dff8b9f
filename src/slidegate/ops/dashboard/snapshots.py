"""What the dashboard reads of statistics, bans and events, as dictionaries that all viewers share for some seconds.

Names end in their unit: `_at` is Unix time in seconds, `_s` seconds, `_ms` milliseconds.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from math import ceil
from typing import Any, Final, TypeAlias

from ... import ConfigurationError, Limiter, StoreError
from ...core.errors import quoted
from ...limiter import Publication
from ..incident import Seen, Statement
from ..look import WINDOW, Outages, Recent, look, read_recent, seen_nothing
from ..rows import named, row_of_action, row_of_ban, row_of_change, row_of_window
from ..statements import statement_of
from ..statistics import LoggedEvent, Ranking, Statistics, Traffic
from ..traffic import COUNTS, ClientTraffic
from .shared import Shared

SHORT_S: Final = 2.0
LONG_S: Final = 10.0
"""How long a snapshot of a window above 5 minutes is shared, the rules of workers, and how many bans there are."""
WINDOWS: Final = (WINDOW, "1h", "6h", "24h")
MAX_POINTS: Final = 72
"""How many steps each window has at most; they have 60 or 72."""
MAX_CLIENTS: Final = 24
"""How many of the busiest clients, and of the most refused ones, are shown and compared with their limits."""
MAX_BANS: Final = 1_000
MAX_EVENTS: Final = 500
MAX_PARTS: Final = 32
"""Of how many rules and routes snapshots and their charts are kept."""
_S: Final = 1_000_000
_DETAILS: Final = ("key", "client", "rule", "reason", "by", "status", "policy", "ban")
"""The details of events that the page shows."""
_REQUESTS_OF: Final = ("passed", "refused", "unavailable")

Row: TypeAlias = dict[str, Any]
"""Something as JSON shows it."""


class Snapshots:
    """Reads the statistics of one limiter, its bans and its events.

    Args:
        limiter: The limiter.

    Attributes:
        recent: The counts of five minutes.
        clients: The busiest and the most refused clients and other keys.
        statement: The sentence about the last five minutes.
        events: The latest events.
        history: What operators and commands have done lately.
        changes: The changes of limits in force.
        published: The rules of all workers.
        client_minutes: The clients of each of the last five minutes.
        key_minutes: The keys of other kinds of each of them.
        bans: The newest bans.
        bans_total: How many bans there are.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._statistics = Statistics.of(limiter)
        self._outages = Outages(limiter)
        self._windows: dict[tuple[str, str, str], Shared[Row]] = {}
        minutes = self._statistics.minutes
        self.recent: Shared[Recent] = Shared(partial(read_recent, self._statistics), SHORT_S)
        self.clients: Shared[dict[str, list[Row]]] = Shared(self._clients, SHORT_S)
        self.statement: Shared[Statement] = Shared(self._statement, SHORT_S)
        self.events: Shared[list[Row]] = Shared(self._events, SHORT_S)
        self.history: Shared[list[Row]] = Shared(self._history, SHORT_S)
        self.changes: Shared[list[Row]] = Shared(self._changes, SHORT_S)
        self.client_minutes: Shared[list[list[ClientTraffic]]] = Shared(minutes, SHORT_S)
        self.key_minutes: Shared[list[list[ClientTraffic]]] = Shared(partial(minutes, of_keys=True), SHORT_S)
        self.published: Shared[list[Publication]] = Shared(limiter.published, LONG_S)
        self.bans: Shared[Row] = Shared(partial(self.bans_with, ""), SHORT_S)
        self.bans_total: Shared[int] = Shared(self._bans_total, LONG_S)

    def forget(self) -> None:
        """Read again for the next viewer, after a change."""
        shared = self.clients, self.statement, self.history, self.changes, self.bans, self.bans_total
        for one in shared:
            one.forget()

    async def statistics(self, window: str = WINDOW, rule: str = "", route: str = "") -> Row:
        """Return the counts of all workers in a window: in total, by rule, by route and by step.

        Args:
            window: One of `WINDOWS`.
            rule: The name of a rule, for the requests alone that it counted or refused.
            route: A route, for the requests alone to it.

        Raises:
            ConfigurationError: There is no such window.
        """
        if window not in WINDOWS:
            raise ConfigurationError(f"expected one of {', '.join(WINDOWS)}, not {quoted(window)}", "window")
        name = window, rule, route
        if name not in self._windows:
            if len(self._windows) >= MAX_PARTS:
                self._windows.clear()
            interval_s = LONG_S
            if window == WINDOW:
                interval_s = SHORT_S
            self._windows[name] = Shared(partial(self._read_statistics, window, rule, route), interval_s)
        return await self._windows[name].get()

    async def _read_statistics(self, window: str, rule: str, route: str) -> Row:
        if window == WINDOW and not rule and not route:
            stats = (await self.recent.get()).stats
        else:
            stats = await self._statistics.read(window, rule=rule or None, route=route or None)
        now_s = time.time()
        ahead_us = int(now_s * _S) - await self._limiter.now_us()  # of the store's clock
        window_us = stats.step_us * len(stats.steps)
        steps = _merged(stats.steps)
        return {
            "window_s": window_us / _S,
            "seen_s": stats.seen_us / _S,
            "step_s": window_us // len(steps) / _S,
            "start_at": (stats.start_us + ahead_us) / _S,
            "at": now_s,
            "workers": [worker._asdict() for worker in stats.workers],
            "total": _traffic(stats.total),
            "rules": _by_name(stats.rules),
            "routes": _by_name(stats.routes),
            "steps": [_traffic(step) for step in steps],
        }

    async def _statement(self) -> Statement:
        outage = self._outages.current()
        try:
            seen: Seen = await look(self._limiter, await self.recent.get(), await self.published.get(), outage)
        except StoreError:
            seen = seen_nothing(self._limiter, outage)
        return statement_of(seen)

    async def _clients(self) -> dict[str, list[Row]]:
        """Return the busiest and the most refused clients, and keys of other kinds, each with its nearest limit."""
        recent = await self.recent.get()
        return {"clients": await self._ranked(recent.clients), "keys": await self._ranked(recent.keys)}

    async def _ranked(self, ranking: Ranking) -> list[Row]:
        """Return the clients of both lists, each once, the busiest first."""
        first = Ranking(ranking.busiest[:MAX_CLIENTS], ranking.refused[:MAX_CLIENTS])
        found = []
        for client in sorted(first.each(), key=lambda one: -one.requests):
            row = asdict(client)
            row["requests"] = client.requests
            row["is_banned"] = await self._limiter.banned(client.key) is not None
            row["nearest"] = await self._nearest(client.key)
            found.append(row)
        return found

    async def _nearest(self, key: str) -> Row | None:
        """Return the window of a client of which the largest share is spent; None if nothing is spent of any."""
        view = await self._limiter.inspect(key)
        spent = []
        for window in view.windows:
            if window.used and not window.shadow:
                spent.append(row_of_window(window))
        return max(spent, key=fullness, default=None)

    async def _events(self) -> list[Row]:
        return [_event(event) for event in await self._statistics.events(limit=MAX_EVENTS)]

    async def _history(self) -> list[Row]:
        return [row_of_action(one) for one in await self._limiter.history()]

    async def _changes(self) -> list[Row]:
        return [row_of_change(one) for one in await self._limiter.overrides()]

    async def bans_with(self, text: str) -> Row:
        """Return the newest bans that contain a text, at most `MAX_BANS`, and how many there are."""
        sought = text.casefold()
        total = 0
        matching = []
        async for ban in self._limiter.bans():
            total += 1
            if any(sought in field.casefold() for field in (ban.key, ban.reason, ban.by)):
                matching.append(ban)
        newest = heapq.nsmallest(MAX_BANS, matching, key=lambda ban: (-ban.since_us, ban.key))
        return {"bans": [row_of_ban(ban) for ban in newest], "matching": len(matching), "total": total}

    async def _bans_total(self) -> int:
        total: int = (await self.bans.get())["total"]
        return total


def fullness(window: Mapping[str, Any]) -> float:
    """Return the share of a limit that is spent."""
    share: float = window["used"] / window["amount"]
    return share


def requests_of(traffic: Row) -> int:
    """Return all requests of some counts."""
    return sum(traffic[name] for name in _REQUESTS_OF)


def _merged(steps: Sequence[Traffic]) -> Sequence[Traffic]:
    """Return at most `MAX_POINTS` steps: some that follow each other together."""
    together = ceil(len(steps) / MAX_POINTS)
    if together == 1:
        return steps
    found = []
    for first in range(0, len(steps), together):
        merged = Traffic()
        for step in steps[first : first + together]:
            merged.add(step)
        found.append(merged)
    return found


def _by_name(traffic: dict[str, Traffic]) -> dict[str, Row]:
    return {name: _traffic(one) for name, one in traffic.items()}


def _traffic(traffic: Traffic) -> Row:
    return {
        **named(traffic, *COUNTS),
        "limited": traffic.refused - traffic.banned - traffic.blocked,
        "p50_ms": _ms(traffic.p50_us),
        "p95_ms": _ms(traffic.p95_us),
        "p99_ms": _ms(traffic.p99_us),
    }


def _ms(time_us: float | None) -> float | None:
    if time_us is None:
        return None
    return time_us / 1_000


def _event(event: LoggedEvent) -> Row:
    """Return an event, whose details have all that the page shows, empty if the event has none."""
    details = {**dict.fromkeys(_DETAILS, ""), **event.details}
    return {"at": event.time_us / _S, **named(event, "kind", "message", "worker"), "details": details}
