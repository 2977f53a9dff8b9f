"""Aggregates a replay by requests, clients, rules, routes and bans. Memory grows with the number of clients."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ..core.store import Event
from ..logs import AccessRecord
from .clients import Clients, ClientTally
from .replay import BANNED, BLOCKED, PASSED, REFUSED, Replay
from .routes import RouteGuesser

MAX_FIRST: Final = 20
Row: TypeAlias = dict[str, Any]


@dataclass
class Refusals:
    """The refusals of a rule, or of a shadow rule.

    Attributes:
        requests: The number of refused requests.
        keys: The keys that they were counted by, one for each client.
    """

    requests: int = 0
    keys: set[str] = field(default_factory=set)


class Simulated:
    """Aggregates the results of a replay.

    Args:
        replay: Replays the records.
        clients: Counts requests by client, as the middleware of the replay determines it.

    Attributes:
        clients: The clients.
        outcomes: The number of requests by outcome.
        no_requests: The number of records that are not HTTP requests, so they would not reach an application.
        rules: The refusals of each rule.
        shadows: The refusals of each shadow rule.
        routes: Requests and refusals of each guessed route.
        bans: The number of bans of each policy.
        shadow_bans: The number of bans that each shadow policy would have made.
        banned: The time of the first ban of each banned client, in microseconds of Unix time.
        first: The first refusal by a limit of each of the first refused clients, at most 20.
    """

    def __init__(self, replay: Replay, clients: Clients) -> None:
        self.clients = clients
        clients.client = replay.client
        self.outcomes: Counter[str] = Counter()
        self.no_requests = 0
        self.rules: dict[str, Refusals] = {}
        self.shadows: dict[str, Refusals] = {}
        self.routes: dict[str, Counter[str]] = {}
        self.bans: Counter[str] = Counter()
        self.shadow_bans: Counter[str] = Counter()
        self.banned: dict[str, int] = {}
        self.first: list[Row] = []
        self._replay = replay
        self._guesser = RouteGuesser()

    def add(self, record: AccessRecord) -> None:
        """Replay one record and count the result."""
        if not record.method:
            self.no_requests += 1
            return
        played = self._replay.play(record)
        self.outcomes[played.outcome] += 1
        name, client = self.clients.add(record)
        route = self.routes.setdefault(self._guesser.of(record.path, record.status), Counter())
        route["requests"] += 1
        if played.outcome != PASSED:
            route[played.outcome] += 1
        client.banned += played.outcome == BANNED
        for event in played.events:
            self._count(event, record, name, client)

    def _count(self, event: Event, record: AccessRecord, name: str, client: ClientTally) -> None:
        details = event.details
        if event.kind == "banned":
            self.bans[str(details["by"])] += 1
            self.banned.setdefault(str(details["key"]), self._replay.now_us)
        elif event.kind == "shadow_banned":
            self.shadow_bans[str(details["policy"])] += 1
        elif event.kind == "shadow_refused":
            _add(self.shadows, event)
        elif details["reason"] not in ("banned", "blocked"):
            _add(self.rules, event)
            client.refused += 1
            if client.refused == 1 and len(self.first) < MAX_FIRST:
                request = f"{record.method} {record.path.partition('?')[0]}"[:200]
                refused_by = {"rule": str(details["rule"]), "limit": str(details["limit"])}
                at_s = self._replay.now_us / 1_000_000
                self.first.append({"at": at_s, "client": name, "request": request, **refused_by})

    def totals(self) -> Row:
        """Return the totals; shares are of clients."""
        clients = self.clients.tallies.values()
        kinds = Counter(client.classify().kind for client in clients if client.refused)
        touched = kinds.total()
        return {
            "requests": self.clients.requests,
            "clients": len(clients),
            "passed": self.outcomes[PASSED],
            "refused": self.outcomes[REFUSED],
            "refused_by_bans": self.outcomes[BANNED],
            "blocked": self.outcomes[BLOCKED],
            "no_requests": self.no_requests,
            "clients_touched": touched,
            "touched_share": round(touched / len(clients), 6) if clients else 0.0,
            "touched_people": kinds["person"],
            "touched_scanners": kinds["scanner"],
            "touched_crawlers": kinds["crawler"],
            "touched_programs": kinds["program"],
            "bans": self.bans.total(),
            "clients_banned": len(self.banned),
        }

    def tables(self) -> dict[str, list[Row]]:
        """Return the rows about rules, routes and clients; those with the most requests or refusals are first."""
        routes = sorted(self.routes.items(), key=lambda pair: (-pair[1]["requests"], pair[0]))
        banned = sorted(self.banned.items(), key=lambda pair: (pair[1], pair[0]))
        touched = [pair for pair in self.clients.tallies.items() if pair[1].refused]
        touched.sort(key=lambda pair: (-pair[1].refused, pair[0]))
        return {
            "rules": _by_rule(self.rules),
            "shadow_rules": _by_rule(self.shadows),
            "routes": [{"route": route, **counts} for route, counts in routes],
            "first": self.first,
            "touched": [_of_client(name, client) for name, client in touched],
            "banned": [{"client": client, "at": at_us / 1_000_000} for client, at_us in banned],
        }


def _add(rules: dict[str, Refusals], event: Event) -> None:
    refusals = rules.setdefault(str(event.details["rule"]), Refusals())
    refusals.requests += 1
    refusals.keys.add(str(event.details["key"]))


def _by_rule(rules: dict[str, Refusals]) -> list[Row]:
    most_first = sorted(rules.items(), key=lambda pair: -pair[1].requests)
    return [{"rule": rule, "requests": one.requests, "clients": len(one.keys)} for rule, one in most_first]


def _of_client(name: str, client: ClientTally) -> Row:
    counts = {"requests": client.requests, "refused": client.refused, "banned": client.banned}
    return {"client": name, **counts, **client.classify()._asdict()}
