"""Adds up a replay: requests, clients, rules, routes and times, in memory that grows with clients."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, NamedTuple

from ..core.limits import Limit
from ..core.store import Event
from ..logs import AccessRecord
from .clients import MINUTE_US, Clients, ClientTally
from .replay import BANNED, BLOCKED, NO_REQUEST, PASSED, REFUSED, Played, Replay
from .routes import RouteGuesser

MAX_SHOWN: Final = 20
MAX_RULES: Final = 1_000
STEPS: Final = 288
"""At most so many steps of time in a chart."""
_FIRST_STEP_US: Final = 1_000_000


class FirstRefusal(NamedTuple):
    """The first request of a client that a limit refused."""

    at: float
    client: str
    request: str
    rule: str
    limit: str


class Timeline:
    """Requests and refusals over time, in at most 288 steps, whose length doubles when the log is longer."""

    def __init__(self) -> None:
        self.step_us = _FIRST_STEP_US
        self.steps: dict[int, list[int]] = {}

    def add(self, time_us: int, refused: bool) -> None:
        """Count one request."""
        number = time_us // self.step_us
        step = self.steps.get(number)
        if step is None:
            step = self.steps[number] = [0, 0]
            while max(self.steps) - min(self.steps) >= STEPS:
                self._double()
            step = self.steps[time_us // self.step_us]
        step[0] += 1
        step[1] += refused

    def _double(self) -> None:
        self.step_us *= 2
        merged: dict[int, list[int]] = {}
        for number, (requests, refused) in self.steps.items():
            step = merged.setdefault(number // 2, [0, 0])
            step[0] += requests
            step[1] += refused
        self.steps = merged

    def points(self) -> list[tuple[int, int, int]]:
        """Return (start in Unix microseconds, requests, refused) of each step that has requests, in order."""
        return [(number * self.step_us, *self.steps[number]) for number in sorted(self.steps)]  # type: ignore[misc]


class Simulated:
    """Adds up the fates of records.

    Args:
        replay: Plays the records.
        clients: Counts by client.

    Attributes:
        clients: The clients.
        outcomes: How many requests passed, were refused, banned or blocked; and lines that were no request.
        rules: How many requests each rule refused.
        shadows: How many requests each shadow rule would have refused.
        routes: Requests and refusals of each guessed route.
        bans: How many bans each policy made.
        shadow_bans: How many each shadow policy would have made.
        banned: The clients that were banned, each with the time of its first ban.
        first: The first refusals, of as many clients, in order.
    """

    def __init__(self, replay: Replay, clients: Clients) -> None:
        self.clients = clients
        self.outcomes: Counter[str] = Counter({PASSED: 0, REFUSED: 0, BANNED: 0, BLOCKED: 0, NO_REQUEST: 0})
        self.rules: Counter[str] = Counter()
        self.shadows: Counter[str] = Counter()
        self.routes: dict[str, Counter[str]] = {}
        self.bans: Counter[str] = Counter()
        self.shadow_bans: Counter[str] = Counter()
        self.banned: dict[str, int] = {}
        self.timeline = Timeline()
        self.first: list[FirstRefusal] = []
        self._replay = replay
        self._guesser = RouteGuesser()

    def add(self, record: AccessRecord) -> Played:
        """Play one record, and count its fate."""
        played = self._replay.play(record)
        self.outcomes[played.outcome] += 1
        if played.outcome == NO_REQUEST:
            return played
        name, client = self.clients.add(record)
        route = self.routes.setdefault(self._guesser.of(record.path, record.status), Counter())
        route["requests"] += 1
        if played.outcome != PASSED:
            route[played.outcome] += 1
        client.banned += played.outcome == BANNED
        self.timeline.add(self._replay.now_us, played.outcome != PASSED)
        for event in played.events:
            self._hear(event, record, name, client)
        return played

    def _hear(self, event: Event, record: AccessRecord, name: str, client: ClientTally) -> None:
        details = event.details
        if event.kind == "shadow_refused":
            self.shadows[str(details["rule"])] += 1
        elif event.kind == "banned":
            self.bans[str(details["by"])] += 1
            self.banned.setdefault(str(details["key"]), self._replay.now_us)
        elif event.kind == "shadow_banned":
            self.shadow_bans[str(details["policy"])] += 1
        elif details["reason"] not in ("banned", "blocked"):
            rule, limit = str(details["rule"]), str(details["limit"])
            self.rules[rule if rule in self.rules or len(self.rules) < MAX_RULES else "(further rules)"] += 1
            client.refused += 1
            if client.refused == 1 and len(self.first) < MAX_SHOWN:
                request = f"{record.method} {record.path.partition('?')[0]}"[:200]
                self.first.append(FirstRefusal(self._replay.now_us / 1_000_000, name, request, rule, limit))

    def limits_a_minute(self) -> list[tuple[str, float]]:
        """Return the limits that clients met, each as text and as requests a minute."""
        limits: dict[str, float] = {}
        for rule in self._replay.middleware.rules:
            for limit in rule.limits:
                if isinstance(limit, Limit):
                    limits[str(limit)] = limit.amount * MINUTE_US / limit.window_us
        return list(limits.items())

    def touched(self) -> list[tuple[str, ClientTally]]:
        """Return the clients that a limit refused at least once, those with most refusals first."""
        touched = [(name, client) for name, client in self.clients.tallies.items() if client.refused]
        return sorted(touched, key=lambda pair: (-pair[1].refused, pair[0]))

    def busiest_routes(self) -> list[tuple[str, Counter[str]]]:
        """Return the routes, those with most requests first."""
        return sorted(self.routes.items(), key=lambda pair: (-pair[1]["requests"], pair[0]))

    def summary(self) -> dict[str, Any]:
        """Return the totals; shares are of clients."""
        touched, clients = self.touched(), len(self.clients.tallies)
        kinds = Counter(client.look().kind for _, client in touched)
        return {
            "requests": self.clients.requests,
            "clients": clients,
            "passed": self.outcomes[PASSED],
            "refused": self.outcomes[REFUSED],
            "refused_by_bans": self.outcomes[BANNED],
            "blocked": self.outcomes[BLOCKED],
            "no_requests": self.outcomes[NO_REQUEST],
            "clients_touched": len(touched),
            "touched_share": round(len(touched) / clients, 6) if clients else 0.0,
            "touched_people": kinds["person"],
            "touched_scanners": kinds["scanner"],
            "touched_crawlers": kinds["crawler"],
            "touched_programs": kinds["program"],
            "bans": self.bans.total(),
            "clients_banned": len(self.banned),
        }
