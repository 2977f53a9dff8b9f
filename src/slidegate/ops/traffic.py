"""The counts of requests and the latest events, and how they are written in the rows of a store.

Rows are objects of JSON, read by name: a worker of a later version may write further fields. A *series* is the requests
that the same rules counted or refused on one route; or the requests of one client.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from heapq import nlargest
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

from .. import everyone
from ..core import Reason
from ..core.logs import escaped, written
from ..events import Event, Outcome
from ..windows import ResponseTimes

MAX_CLIENTS: Final = 1_000
MAX_MESSAGE: Final = 256
MAX_DETAIL: Final = 128
MAX_DETAILS: Final = 8

SeriesName: TypeAlias = tuple[tuple[str, ...], str]
"""The rules that counted or refused some requests, and their route: empty for refusals before a route was found."""
Entry: TypeAlias = dict[str, Any]
"""The kind, message, time and details of an event, by the names of `LoggedEvent`."""


@dataclass(slots=True)
class Traffic:
    """The counts of the requests of one rule, route or step.

    Attributes:
        passed: Admitted requests.
        refused: Requests refused: by a limit, a ban, a list, or because the store does not answer.
        banned: Requests refused by a ban; also counted in `refused`.
        blocked: Requests refused by a list or a blocking rule; also counted in `refused`.
        unavailable: Requests refused because the store did not answer; also counted in `refused`.
        shadow_refused: Requests that a shadow rule would have refused; counted for that rule and in total.
        exceptions: Admitted requests that ended in an exception of the application.
        cancelled: Requests whose client disconnected before the response was complete.
        times: The durations of admitted requests until the last byte of the response.
    """

    passed: int = 0
    refused: int = 0
    banned: int = 0
    blocked: int = 0
    shadow_refused: int = 0
    exceptions: int = 0
    cancelled: int = 0
    unavailable: int = 0
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

    def count(self, outcome: Outcome, passed: bool) -> None:
        """Count a request, apart from its duration; `passed` says whether it was admitted."""
        self.passed += passed
        ended = outcome.ended
        if ended == "refused":
            self.refused += 1
            self.banned += outcome.reason == Reason.BANNED
            self.blocked += outcome.reason == Reason.BLOCKED
            self.unavailable += outcome.reason == Reason.UNAVAILABLE
        elif ended != "success":
            self.exceptions += ended == "exception"
            self.cancelled += ended == "cancelled"

    def add(self, other: Traffic) -> None:
        """Add the counts and durations of another group."""
        self.passed += other.passed
        self.refused += other.refused
        self.banned += other.banned
        self.blocked += other.blocked
        self.shadow_refused += other.shadow_refused
        self.exceptions += other.exceptions
        self.cancelled += other.cancelled
        self.unavailable += other.unavailable
        self.times.add(other.times)


COUNTS: Final = tuple(one.name for one in fields(Traffic) if one.name != "times")
"""The names of the counts, which are those in rows as well: of those that are 0 there is none in a row."""


class Series(dict[SeriesName, Traffic]):
    """The counts of several series by name."""

    def of(self, name: SeriesName) -> Traffic:
        """Return the counts of a name, which are added if they are missing."""
        return self.get(name) or self.setdefault(name, Traffic())

    def busiest(self, most: int) -> Series:
        """Return those of the most requests, the busiest first."""
        return Series(nlargest(most, self.items(), key=_requests))

    def without_rare(self) -> Series:
        """Return the series without those of the fewest requests if there are too many, which only clients can be."""
        if len(self) <= MAX_CLIENTS:
            return self
        return Series(sorted(self.items(), key=_requests, reverse=True)[: MAX_CLIENTS // 2])  # faster than `nlargest`

    def packed(self) -> bytes:
        """Return the row of a slice."""
        lines: list[Any] = []
        for (rules, route), one in self.items():
            times = one.times
            line = {name: getattr(one, name) for name in COUNTS if getattr(one, name)}
            line |= {"rules": rules, "route": route}
            line |= {"sum_us": times.sum_us, "min_us": times.min_us, "buckets": list(times.buckets.items())}
            lines.append(line)
        return encoded(lines)

    @staticmethod
    def unpacked(row: bytes) -> Iterator[tuple[SeriesName, Traffic]]:
        """Return the counts in the row of a slice."""
        for line in decoded(row):
            traffic = Traffic(**{name: line[name] for name in COUNTS if name in line})
            traffic.times = ResponseTimes(line["sum_us"], line["min_us"], dict(line["buckets"]))
            yield (tuple(line["rules"]), line["route"]), traffic


def _requests(entry: tuple[SeriesName, Traffic]) -> int:
    return entry[1].passed + entry[1].refused


class Worker(NamedTuple):
    """A process that records statistics.

    Attributes:
        name: A unique name: ``"host:pid:1f3a9c02"``.
        host: The name of its host.
        pid: Its process ID.
        age_s: The time since it last wrote to the store, in seconds; an idle worker writes nothing.
    """

    name: str
    host: str
    pid: int
    age_s: float


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
    """

    step_us: int
    start_us: int
    total: Traffic
    rules: dict[str, Traffic]
    routes: dict[str, Traffic]
    steps: list[Traffic]
    workers: list[Worker]

    def add(self, step: int, name: SeriesName, traffic: Traffic) -> None:
        """Add the counts of a series in one step."""
        rules, route = name
        sums = [self.total, self.steps[step], *(self.rules.setdefault(rule, Traffic()) for rule in rules)]
        if route:
            sums.append(self.routes.setdefault(route, Traffic()))
        for one in sums:
            one.add(traffic)


class ClientTraffic(NamedTuple):
    """The requests of one of the busiest clients in five minutes.

    Attributes:
        key: The key under which its requests are counted.
        requests: Its requests, refused ones included.
        refused: Its refused requests.
        banned: Its requests that a ban refused; also counted in `refused`.
    """

    key: str
    requests: int
    refused: int
    banned: int


class LoggedEvent(NamedTuple):
    """An event of one worker.

    Attributes:
        kind: The kind, for example ``"banned"``; ``"refused"`` for a refused request.
        message: One line for people, printable, at most 256 characters.
        time_us: When it happened, in microseconds of Unix time.
        details: The subjects of the message by name, not escaped, at most 128 characters each.
        worker: The name of the worker.
    """

    kind: str
    message: str
    time_us: int
    details: Mapping[str, str]
    worker: str


def entry_of(event: Event | Outcome) -> Entry:
    """Return an event, or the refusal of a request, with its texts cut, and the message escaped."""
    if isinstance(event, Event):
        return _entry(event.kind, event.message, event.time_us, event.details)
    decision = next((one for one in reversed(event.decisions) if not one.allowed), None)
    state, ban, by = (decision.binding, decision.ban, decision.by) if decision is not None else (None, None, "")
    banned = "" if ban is None else ban.key
    counted = [] if decision is None else [key for _, key, _ in decision.checks if key != everyone.identity]
    key = banned and next(iter(counted), banned)  # the client, which the ban of its network has refused
    if state is not None:
        key = state.key
    rule = ", ".join(event.rules)
    source = f" under {rule!r}" if rule else f" by {by}" if by else ""
    message = f"{key or 'a client'} was refused: {event.reason}{source}"
    details = {"key": key, "rule": rule, "by": by, "reason": event.reason, "route": event.route, "status": event.status}
    if banned:
        details["ban"] = banned
    return _entry("refused", message, event.began_us + event.duration_us, details)


def _entry(kind: str, message: str, time_us: int, details: Mapping[str, object]) -> Entry:
    texts = {name: written(value, str)[:MAX_DETAIL] for name, value in islice(details.items(), MAX_DETAILS)}
    return {"kind": kind, "message": escaped(message, MAX_MESSAGE), "time_us": time_us, "details": texts}


def encoded(value: object) -> bytes:
    """Return the row for a value of JSON."""
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 1)


def decoded(row: bytes) -> Any:
    """Return the value in a row."""
    return json.loads(zlib.decompress(row))
