"""Counts what a replay decided, and measures the busiest moments of each client.

`Simulated` counts requests, refusals and clients by rule. `Measured` keeps the times of all requests by rule and
client, eight bytes a request. From them it computes the busiest ten seconds, minute and hour of each client, and what a
limit would have refused, by the same arithmetic as a limiter.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from typing import Any, Final, NamedTuple

from starlette.routing import compile_path
from starlette.types import ASGIApp

from ... import ConfigurationError, Limit, RateLimitMiddleware, Rule
from ...core import Reason
from ...events import Outcome
from .logs import AccessRecord
from .replay import Played, Replay, checks_of, nothing

MAX_CLIENTS: Final = 500_000
MAX_REQUESTS: Final = 20_000_000
"""The most times that `Measured` keeps: 160 megabytes."""
MAX_REFUSED: Final = 10
WINDOWS: Final = {"10s": 10_000_000, "1m": 60_000_000, "1h": 3_600_000_000}
QUANTILES: Final = (0.5, 0.95, 0.99, 0.999)
HEADROOM: Final = 2
"""Suggested limits are this many times what 99.9 % of the clients do not exceed."""
MAX_TRIED: Final = 7
_ROUND: Final = (0, *(digit * 10**power for power in range(8) for digit in (1, 2, 5)))
_BAR: Final = 40
_BOUNDLESS: Final = Limit(2**31 - 1, "1s")
_ALL: Final = "all"
_PER_ROUTE: Final = "per-route "
_PARAMETER: Final = re.compile(r"\{(\w+)\}")
Json = dict[str, Any]


@dataclass
class Row:
    """The counts of one rule, or of what refuses without counting.

    Attributes:
        requests: The requests that it counted; None for what counts none by itself.
        refused: The requests that it refused, or would have refused in shadow.
        clients: The keys that it counted; for a ban policy, those that it banned.
        refused_clients: The keys that it refused.
    """

    requests: int | None = None
    refused: int = 0
    clients: set[str] = field(default_factory=set)
    refused_clients: set[str] = field(default_factory=set)

    def refuse(self, key: str) -> None:
        """Count a refused request of a key."""
        self.refused += 1
        self.refused_clients.add(key)


class Simulated:
    """Replays records, and counts the results.

    Args:
        replay: The replay, whose rules have rows even if no request meets them.

    Attributes:
        requests: The number of HTTP requests.
        no_requests: The number of records that are no HTTP requests, so they would not reach an application.
        passed: The number of requests that nothing refused.
        clients: The number of requests of each client.
        refused: For each refused client how many of its requests were refused, and when and by what the first was.
        rows: The counts by kind and name: ``limit``, ``shadow`` and ``block`` rules, ``ban`` and ``shadow ban``
            policies, and the ``list``.
    """

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self.requests = self.no_requests = self.passed = self.first_us = 0
        self.clients: dict[str, int] = {}
        self.refused: dict[str, Json] = {}
        self.rows: dict[tuple[str, str], Row] = {}
        for rule in [rule for middleware in replay.middlewares for rule in middleware.rules if not rule.exempt]:
            self._row(rule.action, rule.label)

    async def add(self, record: AccessRecord) -> None:
        """Replay one record and count the result.

        Raises:
            ConfigurationError: The log has too many clients.
        """
        if not record.method:
            self.no_requests += 1
            return
        played = await self._replay.play(record)
        self.requests += 1
        self.first_us = self.first_us or self._replay.now_us
        self.clients[played.client] = self.clients.get(played.client, 0) + 1
        check_clients(len(self.clients))
        self.passed += played.allowed
        for outcome in played.outcomes:
            self._count(played, outcome, record)
        for event in played.events:
            key = str(event.details.get("key"))
            if event.kind == "shadow_refused":
                self._row("shadow", event.details["rule"]).refuse(key)
            elif event.kind == "banned":
                self._row("ban", event.details["by"]).clients.add(key)
            elif event.kind == "shadow_banned":
                self._row("shadow ban", event.details["policy"]).clients.add(key)

    def _count(self, played: Played, outcome: Outcome, record: AccessRecord) -> None:
        keys = {bucket.label: key for bucket, key, _ in checks_of(outcome)}
        for label, key in keys.items():
            row = self._row("limit", label)
            row.requests = (row.requests or 0) + 1
            row.clients.add(key)
        if outcome.allowed:
            return
        kind, names = _refused_by(outcome)
        for name in names:
            self._row(kind, name).refuse(keys.get(name, played.client))
        request = f"{record.method} {record.path.partition('?')[0]}"[:200]
        first = {"at": self._replay.now_us / 1_000_000, "request": request, "rule": ", ".join(names)}
        seen = self.refused.setdefault(played.client, {"client": played.client, "refused": 0, **first})
        seen["refused"] += 1

    def _row(self, kind: str, name: object) -> Row:
        return self.rows.setdefault((kind, str(name)), Row(0 if kind == "limit" else None))

    def value(self) -> Json:
        """Return all results, ready for JSON; of the refused clients those with the most refused requests."""
        worst = sorted(self.refused.values(), key=lambda seen: (-seen["refused"], seen["client"]))
        return {
            "requests": self.requests,
            "no_requests": self.no_requests,
            "clients": len(self.clients),
            "passed": self.passed,
            "refused": self.requests - self.passed,
            "refused_clients": len(self.refused),
            "from": self.first_us / 1_000_000,
            "until": self._replay.now_us / 1_000_000,
            "rules": [
                {
                    "rule": name,
                    "kind": kind,
                    "requests": row.requests,
                    "refused": row.refused,
                    "clients": None if row.requests is None and not row.clients else len(row.clients),
                    "refused_clients": len(row.refused_clients),
                }
                for (kind, name), row in self.rows.items()
            ],
            "most_refused": worst[:MAX_REFUSED],
        }


def _refused_by(outcome: Outcome) -> tuple[str, Sequence[str]]:
    """Return what refused a request: the kind of its rows, and their names."""
    if outcome.reason is Reason.BANNED:
        return "ban", [outcome.decisions[-1].by]
    if outcome.reason is Reason.BLOCKED:
        return ("block", outcome.rules) if outcome.rules else ("list", ["blocklist"])
    return "limit", outcome.rules


def check_clients(clients: int) -> None:
    """Raise if a log has more clients than are counted in memory.

    Raises:
        ConfigurationError: It has.
    """
    if clients > MAX_CLIENTS:
        raise ConfigurationError(f"the log has more than {MAX_CLIENTS:,} clients; pass a shorter part of it")


# -- the busiest moments -----------------------------------------------------------------------------------------------


class Subject(NamedTuple):
    """What is measured: all requests, or those of one rule or route."""

    label: str
    paths: tuple[str, ...]
    """The paths of a rule for it; empty if they are unknown."""
    methods: tuple[str, ...] = ()
    """Empty for all."""
    has_key: bool = False
    """Whether it is counted by a key of its own."""


class Measured:
    """Measures how busy the clients of a log were, over all requests and under each of several rules or routes.

    Args:
        middleware: A middleware whose `client` and rules are used; the limits are ignored. Requests that it exempts or
            blocks are not measured.
        app: An application whose routes are measured instead of the rules. It is not called.

    Attributes:
        requests: The number of HTTP requests.
        no_requests: The number of records that are no HTTP requests.
    """

    def __init__(self, middleware: RateLimitMiddleware | None = None, app: ASGIApp | None = None) -> None:
        rules = () if middleware is None else middleware.rules
        counted = [] if app is not None else [rule for rule in rules if rule.counts and not _is_everything(rule)]
        named = {f"r{number}": rule for number, rule in enumerate(counted)}
        self.requests = self.no_requests = self._kept = 0
        self._times_us: dict[str, dict[str, array[int]]] = {name: {} for name in (_ALL, *named)}
        self._deepest: dict[str, str] = {}
        self._subjects = {
            name: Subject(rule.label, rule.paths, tuple(sorted(rule.methods or ())), rule.key is not None)
            for name, rule in named.items()
        }
        measuring = RateLimitMiddleware(
            nothing if app is None else app,
            rules=[
                *(rule for rule in rules if not rule.counts),
                Rule("*", _BOUNDLESS, name=_ALL),
                *(_boundless(rule, name) for name, rule in named.items()),
            ],
            default_limits=None if app is None else _BOUNDLESS,
            client=None if middleware is None else middleware.client,
        )
        self._replay = Replay([measuring])

    async def add(self, record: AccessRecord) -> None:
        """Measure one record.

        Raises:
            ConfigurationError: The log has too many clients or requests.
        """
        if not record.method:
            self.no_requests += 1
            return
        played = await self._replay.play(record)
        self.requests += 1
        for bucket, key, _ in [check for outcome in played.outcomes for check in checks_of(outcome)]:
            clients = self._times_us.setdefault(bucket.label, {})
            if key not in clients:
                clients[key] = array("q")
                check_clients(len(clients))
            clients[key].append(self._replay.now_us)
            self._kept += 1
            if record.path.count("/") > self._deepest.get(bucket.label, "").count("/"):
                self._deepest[bucket.label] = record.path.partition("?")[0]
        if self._kept > MAX_REQUESTS:
            raise ConfigurationError(f"the log has more than {MAX_REQUESTS:,} requests; pass a shorter part of it")

    @property
    def clients(self) -> Mapping[str, Sequence[int]]:
        """The times of the requests of each client, in microseconds, ascending."""
        return self._times_us[_ALL]

    def measures(self) -> list[Measure]:
        """Return the measures of the rules or routes that counted requests, beginning with that of all requests."""
        subjects = {_ALL: Subject(_ALL, ("*",)), **self._subjects}
        return [
            Measure(subjects.get(name) or _route_of(name, self._deepest.get(name, "")), clients)
            for name, clients in self._times_us.items()
            if clients
        ]


class Measure:
    """The busiest moments of the clients under one rule or route.

    Args:
        subject: The rule or route.
        times_us: The times of the requests of each client, ascending.

    Attributes:
        subject: The rule or route.
        requests: The number of requests.
        clients: The number of clients.
        peaks: The most requests of each client within each of `WINDOWS`, sorted.
    """

    def __init__(self, subject: Subject, times_us: Mapping[str, Sequence[int]]) -> None:
        self.subject = subject
        self.requests = sum(map(len, times_us.values()))
        self.clients = len(times_us)
        self.peaks = {name: sorted(peak(times, us) for times in times_us.values()) for name, us in WINDOWS.items()}
        # Slices let a window reach back by two slices more, so twice the window contains all that it can count.
        self._busiest = [(times, {us: peak(times, 2 * us) for us in WINDOWS.values()}) for times in times_us.values()]

    def value(self) -> Json:
        """Return all results, ready for JSON."""
        low, most = quantile(self.peaks["1m"], 0.95) / 2.5, self.peaks["1m"][-1]
        tried = [amount for below, amount in pairwise(_ROUND) if low < amount and below < most]
        return {
            "rule": self.subject.label,
            "paths": self.subject.paths,
            "methods": self.subject.methods,
            "requests": self.requests,
            "clients": self.clients,
            "busiest": [
                {
                    "window": window,
                    **{f"{100 * share:g}%": quantile(peaks, share) for share in QUANTILES},
                    "most": peaks[-1],
                }
                for window, peaks in self.peaks.items()
            ],
            "would_refuse": [self.refused_by([Limit(amount, "1m")]) for amount in tried[:MAX_TRIED]],
            "suggested": self.refused_by(self.suggested()),
        }

    def suggested(self) -> list[Limit]:
        """Return a limit for each window, without those that a longer window implies."""
        amounts = [HEADROOM * quantile(peaks, QUANTILES[-1]) for peaks in self.peaks.values()]
        limits = [Limit(amount, window) for amount, window in zip(amounts, WINDOWS, strict=True)]
        return [limit for index, limit in enumerate(limits) if limit.amount < min(amounts[index + 1 :], default=2**31)]

    def refused_by(self, limits: Sequence[Limit]) -> Json:
        """Return how many clients and requests limits over `WINDOWS` would have refused, exactly as a limiter does."""
        refused = [
            refusals(times, limits)
            for times, busiest in self._busiest
            if any(busiest[limit.window_us] > limit.amount for limit in limits)
        ]
        clients = sum(1 for requests in refused if requests)
        return {"limits": "; ".join(map(str, limits)), "clients": clients, "requests": sum(refused)}

    def bars(self) -> list[Json]:
        """Return the rows of a bar chart: how many clients made how many requests in their busiest minute."""
        steps = [0] * self.peaks["1m"][-1].bit_length()
        for count in self.peaks["1m"]:
            steps[count.bit_length() - 1] += 1
        bars = ["#" * ceil(_BAR * clients / max(steps)) for clients in steps]
        return [
            {"requests": f"{1 << power:,} to {(2 << power) - 1:,}", "clients": clients, "": bar}
            for power, (clients, bar) in enumerate(zip(steps, bars, strict=True))
        ]


def peak(times_us: Sequence[int], window_us: int) -> int:
    """Return the most of these times, in ascending order, within any window."""
    most = first = 0
    for index, time_us in enumerate(times_us):
        while times_us[first] <= time_us - window_us:
            first += 1
        most = max(most, index + 1 - first)
    return most


def quantile(values: Sequence[int], share: float) -> int:
    """Return the smallest of sorted values that at least a share of them do not exceed."""
    return values[max(ceil(round(share * len(values), 6)) - 1, 0)]


def refusals(times_us: Sequence[int], limits: Sequence[Limit]) -> int:
    """Return how many requests of one client, at ascending times, limits refuse: all are charged, or none."""
    rings = [b""] * len(limits)
    refused = 0
    for now_us in times_us:
        answers = [limit.counter.spend(ring, now_us, 1) for limit, ring in zip(limits, rings, strict=True)]
        if any(wait_us for _, (_, _, _, wait_us) in answers):
            refused += 1
        else:
            rings = [ring for ring, _ in answers]
    return refused


def _is_everything(rule: Rule) -> bool:
    return rule.paths == ("*",) and rule.methods is None and rule.when is None and rule.key is None


def _route_of(label: str, deepest: str) -> Subject:
    """Return the route of a limit for each route, from its label ``per-route GET /items/{id}``.

    Args:
        label: The label, in which parameters have no types.
        deepest: The requested path with the most slashes, which tells which parameter contains slashes.
    """
    methods, _, template = label.removeprefix(_PER_ROUTE).partition(" ")
    if not template:
        return Subject("(no route)", ())
    typed = [template, *(template.replace(f"{{{name}}}", f"{{{name}:path}}") for name in _PARAMETER.findall(template))]
    paths = [path for path in typed if compile_path(path)[0].match(deepest)]  # none if the label is cut
    return Subject(f"{methods} {template}", tuple(paths[:1]), () if methods == "*" else tuple(methods.split(",")))


def _boundless(rule: Rule, name: str) -> Rule:
    """Return a rule for the same requests that counts them by the same key and refuses none."""
    return Rule(
        rule.paths,
        _BOUNDLESS,
        methods=rule.methods,
        connection=rule.connection,
        when=rule.when,
        key=rule.key,
        name=name,
        final=rule.final,
    )
