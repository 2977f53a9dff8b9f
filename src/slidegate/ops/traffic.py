"""The results of statistics, and the rows in which workers keep them for each other.

A row has the identity of its worker and a compressed line of JSON for each series. Readers skip what they cannot
decode: workers of two versions may share a store.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from anyio.lowlevel import checkpoint

from ..core import Reason
from ..core.logs import escaped, written
from ..core.windows.histogram import BUCKETS, ResponseTimes
from ..events import Event, Outcome

MAX_MESSAGE: Final = 256
MAX_DETAIL: Final = 128
PART: Final = 128
"""How many outcomes are counted, and series encoded, in one step, which takes less than a millisecond."""
IDENTITY_BYTES: Final = 8

_MAX_DETAILS: Final = 8
_MAX_NAME: Final = 32
_MAX_ROW_BYTES: Final = 8 << 20

SeriesName: TypeAlias = tuple[tuple[str, ...], str]
"""The rules that counted or refused some requests, and their route: empty for refusals before a route was found."""
Entry: TypeAlias = tuple[str, str, int, dict[str, str]]
"""The kind, message, time and details of an event."""


@dataclass(slots=True)
class Traffic:
    """The counts of a group of requests, such as those of one rule or of one step.

    Attributes:
        passed: Admitted requests.
        refused: Requests refused: by a limit, a ban, a list, or because the store does not answer.
        banned: Requests refused by a ban; also counted in `refused`.
        blocked: Requests refused by a list or a blocking rule; also counted in `refused`.
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

    def count(self, outcome: Outcome, requests: int) -> None:
        """Count requests with the same outcome, apart from their durations."""
        ended, reason = outcome.ended, outcome.reason
        if outcome.allowed:
            self.passed += requests
        if ended == "exception":
            self.exceptions += requests
        elif ended == "cancelled":
            self.cancelled += requests
        elif ended == "refused":
            self.refused += requests
            self.banned += requests if reason == Reason.BANNED else 0
            self.blocked += requests if reason == Reason.BLOCKED else 0

    def add(self, other: Traffic) -> None:
        """Add the counts and durations of another group."""
        self.passed += other.passed
        self.refused += other.refused
        self.banned += other.banned
        self.blocked += other.blocked
        self.shadow_refused += other.shadow_refused
        self.exceptions += other.exceptions
        self.cancelled += other.cancelled
        self.times.add(other.times)


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
        rule_steps: For each rule (passed, refused) of each step.
        route_steps: For each route (passed, refused) of each step.
    """

    step_us: int
    start_us: int
    total: Traffic
    rules: dict[str, Traffic]
    routes: dict[str, Traffic]
    steps: list[Traffic]
    workers: list[Worker]
    rule_steps: dict[str, list[tuple[int, int]]]
    route_steps: dict[str, list[tuple[int, int]]]


class ClientTraffic(NamedTuple):
    """The requests of one client in the last five minutes, as far as it was among the busiest of a worker.

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
    """An event of one worker. All text is printable, and at most 256 characters.

    Attributes:
        kind: The kind, for example ``"banned"``; ``"refused"`` for a refused request.
        message: One line for people.
        time_us: When it happened, in microseconds of Unix time.
        details: The subjects of the message by name.
        worker: The name of the worker.
    """

    kind: str
    message: str
    time_us: int
    details: Mapping[str, str]
    worker: str


_COUNTS: Final = ("passed", "refused", "banned", "blocked", "shadow_refused", "exceptions", "cancelled")
_counts: Final = attrgetter(*_COUNTS)


def traffic_of(series: dict[SeriesName, Traffic], name: SeriesName) -> Traffic:
    """Return the counts of a name, which are added if they are missing."""
    return series.get(name) or series.setdefault(name, Traffic())


def include(stats: Stats, step: int, name: SeriesName, traffic: Traffic) -> None:
    """Add a series of one step to the sums."""
    rules, route = name
    stats.total.add(traffic)
    stats.steps[step].add(traffic)
    sums = [(stats.rules, stats.rule_steps, rule) for rule in dict.fromkeys(rules)]
    for by_name, steps_by_name, one in sums if not route else [*sums, (stats.routes, stats.route_steps, route)]:
        by_name.setdefault(one, Traffic()).add(traffic)
        steps = steps_by_name.setdefault(one, [(0, 0)] * len(stats.steps))
        steps[step] = steps[step][0] + traffic.passed, steps[step][1] + traffic.refused


def entry_of(event: Event | Outcome) -> Entry:
    """Return an event, or the refusal of a request, with its texts escaped and cut."""
    if isinstance(event, Event):
        details = {escaped(name, _MAX_NAME): value for name, value in list(event.details.items())[:_MAX_DETAILS]}
        return _entry(event.kind, event.message, event.time_us, details)
    refusal = next((decision for decision in reversed(event.decisions) if not decision.allowed), None)
    state, ban, by = (refusal.binding, refusal.ban, refusal.by) if refusal is not None else (None, None, "")
    key = state.key if state is not None else ban.key if ban is not None else ""
    rule = ", ".join(event.rules)
    by = "" if rule else by
    source = f" under {rule!r}" if rule else f" by {by}" if by else ""
    message = f"{key or 'a client'} was refused: {event.reason}{source}"
    details = {"key": key, "rule": rule, "by": by, "reason": event.reason, "route": event.route, "status": event.status}
    return _entry("refused", message, event.began_us + event.duration_us, details)


def _entry(kind: str, message: str, time_us: int, details: dict[str, object]) -> Entry:
    return kind, _text(message, MAX_MESSAGE), time_us, {name: _text(one, MAX_DETAIL) for name, one in details.items()}


def _text(value: object, max_chars: int) -> str:
    return escaped(written(value, str), max_chars)


async def packed(identity: bytes, series: Iterable[tuple[SeriesName, Traffic]]) -> bytes:
    """Return a row: the identity of the worker, and a compressed line of JSON for each series."""
    compressor, row = zlib.compressobj(1), bytearray(identity)
    for at, ((rules, route), traffic) in enumerate(list(series), 1):
        times = traffic.times
        line = rules, route, _counts(traffic), times.sum_us, times.min_us, list(times.buckets.items())
        row += compressor.compress(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        if not at % PART:
            await checkpoint()
    return bytes(row + compressor.flush())


def unpacked(row: bytes) -> Iterator[tuple[SeriesName, Traffic]]:
    """Yield the series of a row, up to the first line that cannot be decoded."""
    with suppress(Exception):  # not a row of this version
        for line in decompressed(row[IDENTITY_BYTES:]).splitlines():
            rules, route, counts, sum_us, min_us, buckets = json.loads(line)
            times = {int(bucket): int(count) for bucket, count in buckets if 0 <= bucket < BUCKETS}
            durations = ResponseTimes(int(sum_us), None if min_us is None else int(min_us), times)
            counted: dict[str, int] = dict(zip(_COUNTS, map(int, counts), strict=True))
            yield (tuple(map(str, rules)), str(route)), Traffic(times=durations, **counted)


def decompressed(row: bytes) -> bytes:
    """Return the content of a row, at most 8 MiB."""
    return zlib.decompressobj().decompress(row, _MAX_ROW_BYTES)
