"""What statistics return: counts of requests, of clients, workers, events; each a value that a page can show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ..core import Bucket, Check, Reason
from ..events import Outcome, Passed
from ..windows import ResponseTimes

MAX_NAMES: Final = 8
"""By how many rules, and by how many routes, the requests of one client are distinguished."""


@dataclass(slots=True)
class RequestCounts:
    """What is counted of every group of requests.

    Attributes:
        passed: Admitted requests.
        refused: Requests refused by a limit, a ban, a list or a blocking rule.
        banned: Requests refused by a ban; also counted in `refused`.
        blocked: Requests refused by a list or a blocking rule; also counted in `refused`.
        unavailable: Requests refused because the store did not answer; they are not among `refused`.
    """

    passed: int = 0
    refused: int = 0
    banned: int = 0
    blocked: int = 0
    unavailable: int = 0

    @property
    def requests(self) -> int:
        """All requests."""
        return self.passed + self.refused + self.unavailable

    @property
    def limited(self) -> int:
        """Requests refused by a limit."""
        return self.refused - self.banned - self.blocked

    def count_refusal(self, reason: Reason) -> None:
        """Count a refused request."""
        if reason is Reason.UNAVAILABLE:
            self.unavailable += 1
            return
        self.refused += 1
        if reason is Reason.BANNED:
            self.banned += 1
        elif reason is Reason.BLOCKED:
            self.blocked += 1

    def add_counts(self, other: RequestCounts, names: Iterable[str]) -> None:
        """Add the counts of another group."""
        for name in names:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class Traffic(RequestCounts):
    """The counts of the requests of one rule, route or step.

    Attributes:
        shadow_refused: Requests that a shadow rule would have refused; counted for that rule and in total.
        exceptions: Admitted requests that ended in an exception of the application.
        cancelled: Requests whose client disconnected before the response was complete.
        times: The durations of admitted requests until the last byte of the response.
    """

    shadow_refused: int = 0
    exceptions: int = 0
    cancelled: int = 0
    times: ResponseTimes = field(default_factory=ResponseTimes, repr=False)

    @property
    def p50_us(self) -> float | None:
        """The duration in microseconds that half of the admitted requests did not exceed; None without requests."""
        return self.times.quantile(0.5)

    @property
    def p95_us(self) -> float | None:
        """The duration in microseconds that 95 % of the admitted requests did not exceed; None without requests."""
        return self.times.quantile(0.95)

    @property
    def p99_us(self) -> float | None:
        """The duration in microseconds that 99 % of the admitted requests did not exceed; None without requests."""
        return self.times.quantile(0.99)

    def add(self, other: Traffic) -> None:
        """Add the counts and durations of another group."""
        self.add_counts(other, COUNTS)
        self.times.add(other.times)


CLIENT_COUNTS: Final = ("passed", "refused", "banned", "blocked", "unavailable")
"""The names of the counts of a client."""
COUNTS: Final = (*CLIENT_COUNTS, "shadow_refused", "exceptions", "cancelled")
"""The names of the counts of a rule, a route or a step."""


class Worker(NamedTuple):
    """A process that records statistics.

    Attributes:
        name: A unique name: ``"host:pid:1f3a9c02"``.
        host: The name of its host.
        pid: Its process ID.
        age_s: The time since it last wrote to the store, in seconds; an idle worker writes nothing.
        counting_s: How long it has been counting, in seconds; 0 if it does not say.
    """

    name: str
    host: str
    pid: int
    age_s: float
    counting_s: float = 0


class Stats(NamedTuple):
    """The counts of the recent requests of all workers.

    Attributes:
        step_us: The length of a step in microseconds: 5 seconds, a minute or five minutes.
        start_us: When the first step began, in microseconds of the store's time.
        total: The counts of all requests.
        rules: Counts by the name of the rule. A request that several rules counted appears under each; a refused
            request under the rules that refused it.
        routes: Counts by methods and template of the route, for example ``GET /items/{id}``. Requests that were refused
            before a route was found are not among them.
        steps: The counts of each step, oldest first; the last step is still running.
        workers: The workers that have written in the last five minutes.
        seen_us: How much of that time the counts cover: since the first of these workers or requests started.
    """

    step_us: int
    start_us: int
    total: Traffic
    rules: dict[str, Traffic]
    routes: dict[str, Traffic]
    steps: list[Traffic]
    workers: list[Worker]
    seen_us: int = 0

    def add(self, step: int, rules: Sequence[str], route: str, traffic: Traffic) -> None:
        """Add what was counted in one step for some rules and a route."""
        self.total.add(traffic)
        self.steps[step].add(traffic)
        for rule in rules:
            self.rules.setdefault(rule, Traffic()).add(traffic)
        if route:
            self.routes.setdefault(route, Traffic()).add(traffic)


@dataclass(slots=True)
class ClientTraffic(RequestCounts):
    """The requests of one client in five minutes; or of one key of another kind, such as a header's value.

    Attributes:
        key: The client as the middleware sees it, or the key.
        refused_by: Its refused requests by the rule, the list or the maker of the ban that refused them.
        refused_since_us: When the first of them ended, in microseconds of Unix time; 0 without any.
        refused_at_us: When the latest of them ended.
        rule: The rule of its latest refusal; of its latest request if none was refused.
        limits: The limits that this request met, with the amounts that were in force for it: ``"5/1m"``.
        route: The route of this request, for example ``GET /items/{id}``; ``(no route)`` if it was refused before.
        amounts: The limits by which rules counted it last, with the amounts that were in force: ``{"api": "5/1m"}``.
        counted_by: Its admitted requests by the rule that counted them, up to 8.
        routes: Its admitted requests by route, up to 8.
        others: Digests of the users, cookies and API keys with which it came, up to 8: with several it is the address
            of several people.
        latest: Its latest admitted request, until `name_latest` has named its rule and limits.
    """

    key: str = ""
    refused_by: dict[str, int] = field(default_factory=dict)
    refused_since_us: int = 0
    refused_at_us: int = 0
    rule: str = ""
    limits: str = ""
    route: str = ""
    amounts: dict[str, str] = field(default_factory=dict)
    counted_by: dict[str, int] = field(default_factory=dict)
    routes: dict[str, int] = field(default_factory=dict)
    others: list[int] = field(default_factory=list)
    latest: Passed | None = None

    def add(self, other: ClientTraffic) -> None:
        """Add the counts of another slice or worker, a later one."""
        # Its latest refusal is shown. Without any, both times are 0, and its latest request is.
        if other.refused_at_us >= self.refused_at_us:
            if other.rule:
                self.rule, self.limits, self.route = other.rule, other.limits, other.route
            self.refused_at_us = other.refused_at_us
        if other.refused_since_us:
            self.refused_since_us = min(self.refused_since_us or other.refused_since_us, other.refused_since_us)
        self.add_counts(other, CLIENT_COUNTS)
        for field_name in ("refused_by", "counted_by", "routes"):
            for name, requests in getattr(other, field_name).items():
                add_to(getattr(self, field_name), name, requests)
        for rule, limits in other.amounts.items():
            if rule in self.amounts or len(self.amounts) < MAX_NAMES:
                self.amounts[rule] = limits
        for digest in other.others:
            self.add_other(digest)
        self.latest = other.latest or self.latest

    def add_other(self, digest: int) -> None:
        """Note the digest of a user, a cookie or an API key."""
        if digest not in self.others and len(self.others) < MAX_NAMES:
            self.others.append(digest)

    def count_admitted(self, request: Passed, rules: Iterable[str]) -> None:
        """Count an admitted request, which some rules have counted."""
        self.passed += 1
        self.latest = request
        # As in `add_to`, whose calls would take as long as the rest.
        names, route = self.counted_by, request[2]
        for rule in rules:
            if rule in names or len(names) < MAX_NAMES:
                names[rule] = names.get(rule, 0) + 1
        names = self.routes
        if route in names or len(names) < MAX_NAMES:
            names[route] = names.get(route, 0) + 1

    def note_refusal(self, outcome: Outcome, by: str, limits: str) -> None:
        """Note the rule, list or ban that refused one of its requests, and its limits."""
        self.rule, self.limits, self.route = by, limits, outcome.route
        add_to(self.refused_by, by, 1)
        self.refused_at_us = outcome.began_us + outcome.duration_us
        self.refused_since_us = self.refused_since_us or self.refused_at_us

    def note_amounts(self, checks: Iterable[Check]) -> None:
        """Note the limits by which a decision counted it."""
        for bucket, key, _ in checks:
            if key == self.key and (bucket.label in self.amounts or len(self.amounts) < MAX_NAMES):
                self.amounts[bucket.label] = text_of(bucket)

    def name_latest(self) -> None:
        """Name the rule, limits and route of its latest admitted request. Only clients in rows need that.

        A refusal has named these when it was counted.
        """
        if self.latest is None:
            return
        _, checks, route, _ = self.latest
        self.latest = None
        self.note_amounts(checks)
        if self.refused or not checks:
            return
        bucket = next((bucket for bucket, key, _ in checks if key == self.key), checks[0][0])
        self.rule, self.limits, self.route = bucket.label, text_of(bucket), route


def add_to(counts: dict[str, int], name: str, requests: int) -> None:
    """Add to the counts of one name; of names beyond the first `MAX_NAMES` nothing is counted."""
    if name in counts:
        counts[name] += requests
    elif len(counts) < MAX_NAMES:
        counts[name] = requests


def text_of(bucket: Bucket) -> str:
    """Return the limits of a bucket, with the amounts that are in force."""
    return "; ".join(map(str, bucket.limits))


class Ranking(NamedTuple):
    """The clients that matter most, or the keys of other kinds that do.

    Attributes:
        busiest: Those with the most requests, the busiest first.
        refused: Those with the most refused requests, the one that was refused most first.
    """

    busiest: list[ClientTraffic]
    refused: list[ClientTraffic]

    def each(self) -> list[ClientTraffic]:
        """Return those of both lists, each once."""
        clients = {client.key: client for client in [*self.busiest, *self.refused]}
        return [*clients.values()]
