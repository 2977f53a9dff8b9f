"""Adds up a replay: requests, clients, rules, routes and times, in memory that grows with clients."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, NamedTuple

from ..core.limits import Limit
from ..core.store import Event
from ..logs import AccessRecord
from .clients import ClientTally
from .replay import BANNED, BLOCKED, NO_REQUEST, PASSED, REFUSED, Clients, Played, Replay
from .routes import RouteGuesser

MAX_SHOWN: Final = 20
MAX_RULES: Final = 1_000
STEPS: Final = 288
"""At most so many steps of time in a chart."""
_FIRST_STEP_US: Final = 1_000_000
MINUTE_US: Final = 60_000_000


class FirstRefusal(NamedTuple):
    """The first request of a client that a limit refused."""

    time_us: int
    client: str
    method: str
    path: str
    rule: str
    limit: str


class Timeline:
    """Requests and refusals over time, in at most 288 steps, whose length doubles when the log is longer."""

    def __init__(self) -> None:
        self.step_us = _FIRST_STEP_US
        self.steps: dict[int, list[int]] = {}

    def add(self, time_us: int, refused: bool) -> None:
        """Count one request."""
        place = time_us // self.step_us
        step = self.steps.get(place)
        if step is None:
            step = self.steps[place] = [0, 0]
            while max(self.steps) - min(self.steps) >= STEPS:
                self._double()
            step = self.steps[time_us // self.step_us]
        step[0] += 1
        step[1] += refused

    def _double(self) -> None:
        self.step_us *= 2
        merged: dict[int, list[int]] = {}
        for place, (requests, refused) in self.steps.items():
            step = merged.setdefault(place // 2, [0, 0])
            step[0] += requests
            step[1] += refused
        self.steps = merged

    def points(self) -> list[tuple[int, int, int]]:
        """Return (start in Unix microseconds, requests, refused) of each step that has requests, in order."""
        return [(place * self.step_us, *self.steps[place]) for place in sorted(self.steps)]  # type: ignore[misc]


class PeakMinute:
    """The most requests of a client in one minute of the clock: enough for a chart; `peaks` counts as rings do."""

    __slots__ = ("_count", "_minute", "most")

    def __init__(self) -> None:
        self._minute = self._count = self.most = 0

    def add(self, time_us: int) -> None:
        """Count one request."""
        minute = time_us // MINUTE_US
        self._count = self._count + 1 if minute == self._minute else 1
        self._minute = minute
        self.most = max(self.most, self._count)


class Simulated:
    """Adds up the fates of records.

    Args:
        replay: Plays the records.
        clients: Names the clients.

    Attributes:
        outcomes: How many requests passed, were refused, banned or blocked; and lines that were no request.
        clients: The tally of each client by its name.
        rules: How many requests each rule refused.
        shadows: How many requests each shadow rule would have refused.
        routes: Requests and refusals of each guessed route.
        bans: How many bans each policy made.
        banned: The clients that were banned, each with the time of its first ban.
        first: The first refusals, of as many clients, in order.
    """

    def __init__(self, replay: Replay, clients: Clients) -> None:
        self._replay = replay
        self._named = clients
        self._guesser = RouteGuesser()
        self.outcomes: Counter[str] = Counter({PASSED: 0, REFUSED: 0, BANNED: 0, BLOCKED: 0, NO_REQUEST: 0})
        self.clients: dict[str, ClientTally] = {}
        self.peaks: dict[str, PeakMinute] = {}
        self.rules: Counter[str] = Counter()
        self.shadows: Counter[str] = Counter()
        self.routes: dict[str, Counter[str]] = {}
        self.bans: Counter[str] = Counter()
        self.banned: dict[str, int] = {}
        self.shadow_bans: Counter[str] = Counter()
        self.timeline = Timeline()
        self.first: list[FirstRefusal] = []
        self.first_us = self.last_us = 0

    def add(self, record: AccessRecord) -> Played:
        """Play one record, and count its fate."""
        played = self._replay.play(record)
        self.outcomes[played.outcome] += 1
        if played.outcome == NO_REQUEST:
            return played
        time_us = self._replay.now_us
        name = self._named.name(record)
        client = self.clients.get(name)
        if client is None:
            client = self.clients[name] = ClientTally(time_us)
            self.peaks[name] = PeakMinute()
        client.add(record)
        self.peaks[name].add(time_us)
        self.first_us = self.first_us or time_us
        self.last_us = time_us
        route = self.routes.setdefault(self._guesser.of(record.path, record.status), Counter())
        route["requests"] += 1
        if played.outcome != PASSED:
            route[played.outcome] += 1
        self.timeline.add(time_us, played.outcome != PASSED)
        if played.outcome == BANNED:
            client.banned += 1
        for event in played.events:
            self._hear(event, record, name, client, time_us)
        return played

    def _hear(self, event: Event, record: AccessRecord, name: str, client: ClientTally, time_us: int) -> None:
        details = event.details
        if event.kind == "shadow_refused":
            self.shadows[str(details["rule"])] += 1
        elif event.kind == "banned":
            self.bans[str(details["by"])] += 1
            self.banned.setdefault(str(details["key"]), time_us)
        elif event.kind == "shadow_banned":
            self.shadow_bans[str(details["policy"])] += 1
        elif details["reason"] not in ("banned", "blocked"):
            rule = str(details["rule"])
            self.rules[rule if rule in self.rules or len(self.rules) < MAX_RULES else "(further rules)"] += 1
            client.refused += 1
            if client.first_refused_us is None:
                client.first_refused_us = time_us
                if len(self.first) < MAX_SHOWN:
                    path = record.path.partition("?")[0]
                    self.first.append(
                        FirstRefusal(time_us, name, record.method, path[:200], rule, str(details["limit"]))
                    )

    def limits_a_minute(self) -> list[tuple[str, float]]:
        """Return the limits that clients met, each as text and as requests a minute."""
        found: dict[str, float] = {}
        for rule in self._replay.middleware.rules:
            for limit in rule.limits:
                if isinstance(limit, Limit):
                    found[str(limit)] = limit.amount * MINUTE_US / limit.window_us
        return list(found.items())

    @property
    def requests(self) -> int:
        """How many records were requests."""
        return self.outcomes.total() - self.outcomes[NO_REQUEST]

    def touched(self) -> list[tuple[str, ClientTally]]:
        """Return the clients that a limit refused at least once, those with most refusals first."""
        found = [(name, client) for name, client in self.clients.items() if client.refused]
        return sorted(found, key=lambda pair: (-pair[1].refused, pair[0]))

    def summary(self) -> dict[str, Any]:
        """Return the totals; shares are of clients."""
        touched = self.touched()
        kinds = Counter(client.look().kind for _, client in touched)
        return {
            "requests": self.requests,
            "clients": len(self.clients),
            "passed": self.outcomes[PASSED],
            "refused": self.outcomes[REFUSED],
            "refused_by_bans": self.outcomes[BANNED],
            "blocked": self.outcomes[BLOCKED],
            "no_requests": self.outcomes[NO_REQUEST],
            "clients_touched": len(touched),
            "touched_share": round(len(touched) / len(self.clients), 6) if self.clients else 0.0,
            "touched_people": kinds["person"],
            "touched_scanners": kinds["scanner"],
            "touched_crawlers": kinds["crawler"],
            "touched_programs": kinds["program"],
            "bans": self.bans.total(),
            "clients_banned": len(self.banned),
        }
