"""What statistics return: counts of requests, of clients, workers, events; each a value that a page can show."""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from ..core import Bucket, Decision, Reason
from ..events import Outcome
from ..windows import ResponseTimes

SeriesName: TypeAlias = tuple[tuple[str, ...], str]
"""The rules that counted or refused some requests, and their route: empty for refusals before a route was found."""

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
        shadow_counted: Requests that a shadow rule has counted; counted for that rule and in total.
        shadow_refused: Those of them that it would have refused.
        exceptions: Admitted requests that ended in an exception of the application.
        statuses: The answers to all requests, by class: ``2xx``; 401, 403, 404 and 429 are by themselves, and not in
            ``4xx``. ``0xx`` are the requests that ended without an answer.
        times: The durations of admitted requests until the last byte of the response.
    """

    shadow_counted: int = 0
    shadow_refused: int = 0
    exceptions: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
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
        self.statuses.update(other.statuses)
        self.times.add(other.times)


CLIENT_COUNTS: Final = ("passed", "refused", "banned", "blocked", "unavailable")
"""The names of the counts of a client."""
COUNTS: Final = (*CLIENT_COUNTS, "shadow_counted", "shadow_refused", "exceptions")
"""The names of the counts of a rule, a route or a step."""


class Worker(NamedTuple):
    """A process that records statistics.

    Attributes:
        name: A unique name: ``"host:pid:1f3a9c02"``.
        host: The name of its host.
        pid: Its process ID.
        age_s: The time since it last wrote to the store, in seconds; an idle worker writes nothing.
        counting_s: How long it has been counting, in seconds.
    """

    name: str
    host: str
    pid: int
    age_s: float
    counting_s: float = 0


class Stats(NamedTuple):
    """The counts of the recent requests of all workers.

    Attributes:
        step_us: The length of a step in microseconds: 5 seconds or five minutes.
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
        amounts: The limits by which rules counted it last, with the amounts that were in force: ``{"api": "5/1m"}``, of
            up to 8 rules, and of those in `refused_by`.
        refused_by: Its refused requests by what refused them, up to 8: each rule without room, a list, ``ban by ann``.
        counted_by: Its admitted requests by the rule that counted them, up to 8.
        routes: Its admitted requests by route, up to 8.
        others: Its requests by digests of the users, cookies and API keys with which it came, up to 8: with several it
            is the address of several people.
        keys: The keys of `others`, until `add` makes their digests.
        refused_min_ago: In which minute the last of its refusals was counted: 0 in the running one, 1 in that before.
    """

    key: str = ""
    amounts: dict[str, str] = field(default_factory=dict)
    refused_by: dict[str, int] = field(default_factory=dict)
    counted_by: dict[str, int] = field(default_factory=dict)
    routes: dict[str, int] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    refused_min_ago: int = 0

    @property
    def rule(self) -> str:
        """What refused most of its requests: a rule, a list or ``ban by ann``; without any, what counted most."""
        counts = self.refused_by or self.counted_by
        return max(sorted(counts), key=counts.__getitem__, default="")

    def add(self, other: ClientTraffic) -> None:
        """Add the counts of another slice or worker, a later one."""
        for key, requests in other.keys.items():
            add_to(self.others, f"{zlib.crc32(key.encode(errors='replace')):08x}", requests)
        if not other.requests:  # only its keys were noted
            return
        self.add_counts(other, CLIENT_COUNTS)
        for names in ("refused_by", "counted_by", "routes", "others"):
            for name, requests in getattr(other, names).items():
                add_to(getattr(self, names), name, requests)
        self._keep(other.amounts)

    def count_passed(self, route: str, amounts: dict[str, str], requests: int) -> None:
        """Count admitted requests to a route, by the rules that have these limits."""
        self.passed += requests
        add_to(self.routes, route, requests)
        for rule in amounts:
            add_to(self.counted_by, rule, requests)
        self._keep(amounts)

    def count_refused(self, refusal: Decision, names: Iterable[str]) -> None:
        """Count a request that some rules, a list or a ban refused, or that the store did not answer."""
        self.count_refusal(refusal.reason)
        if refusal.reason is not Reason.UNAVAILABLE:
            for name in names:
                add_to(self.refused_by, name, 1)
            self._keep(amounts_of(*[bucket for bucket, _, _ in refusal.checks]))

    def _keep(self, amounts: dict[str, str]) -> None:
        """Keep the limits of some rules; of one in `refused_by` always, as without any no limit has refused it."""
        for rule, texts in amounts.items():
            if rule in self.amounts or rule in self.refused_by or len(self.amounts) < MAX_NAMES:
                self.amounts[rule] = texts


def amounts_of(*buckets: Bucket) -> dict[str, str]:
    """Return the limits of some buckets by the labels of their rules; a rule has another bucket for its permits."""
    amounts = defaultdict[str, dict[str, None]](dict)
    for bucket in buckets:
        amounts[bucket.label].update(dict.fromkeys(map(str, bucket.limits)))
    return {label: "; ".join(texts) for label, texts in amounts.items()}


def limits_in(amounts: str) -> list[str]:
    """Return the limits of such a text without their names, which contain neither colon nor semicolon."""
    return [text.rpartition(": ")[2] for text in amounts.split("; ")]


def names_of(outcome: Outcome, refusal: Decision) -> Sequence[str]:
    """Return what refused a request: rules, a list, or a ban by somebody."""
    if refusal.ban is not None:
        return (f"ban by {refusal.by}",)
    return outcome.rules or (refusal.by,)


def add_to(counts: dict[str, int], name: str, requests: int) -> None:
    """Add to the counts of one name; of names beyond the first `MAX_NAMES` nothing is counted."""
    if name in counts:
        counts[name] += requests
    elif len(counts) < MAX_NAMES:
        counts[name] = requests


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
