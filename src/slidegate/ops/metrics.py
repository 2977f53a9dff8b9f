"""The metrics of one limiter in this process: names, units and labels, and how each is counted or read.

The names follow the conventions of OpenTelemetry. Those for Prometheus are derived from them: dots become underscores
and the unit is the suffix. Clients cannot choose the value of a label: it is the name of a rule, the template of a
route, or a reason; beyond `MAX_NAMES`, rules and routes share one value.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, Literal, TypeAlias

from ..core import CountsPermits, Reason
from ..core.errors import StoreError
from ..events import Event, Observer, Outcome, Passed
from ..limiter import Limiter

PREFIX: Final = "slidegate"
STORE: Final = "store"
"""The label that every metric has, after its own."""
PART: Final = 64
"""How many requests are counted in one step, in less than a millisecond if admitted, and in 1 to 4 if refused."""
MAX_NAMES: Final = 200
OTHER: Final = "(other)"
BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The upper bounds of the histogram's buckets in seconds, as in OpenTelemetry's HTTP conventions."""
_OWN_OUTCOMES: Final = (Reason.BANNED, Reason.BLOCKED, Reason.UNAVAILABLE)
REASONS: Final = (Reason.LIMITED, Reason.TOO_LARGE, *_OWN_OUTCOMES)

Add: TypeAlias = Callable[[float], object]
Groups: TypeAlias = dict[Any, tuple[list[str], list[int], list[Passed]]]
"""Clients and times of admitted requests, and again those with other keys than the client's, by what they have in
common: route, status, and the buckets that counted them."""


@dataclass(frozen=True, eq=False)
class Metric:
    """A metric.

    Attributes:
        name: Its name for OpenTelemetry.
        unit: Its unit in UCUM notation; annotations are in braces.
        labels: Its labels besides ``store``.
        help: The description that exporters show.
        read: Returns the value of a gauge; None if that is unknown.
        aggregation: How the values of a gauge in several processes are aggregated.
    """

    name: str
    unit: str
    labels: tuple[str, ...]
    help: str
    read: Callable[[Limiter], float | None] = lambda _: None
    aggregation: Literal["livesum", "mostrecent", "livemin"] = "livesum"


RULE_REQUESTS: Final = Metric(
    "slidegate.rule.requests",
    "{request}",
    ("rule", "outcome"),
    "Requests by rule and outcome: an admitted one for each rule that counted it, "
    "a refused one for each that refused it.",
)
REFUSALS: Final = Metric(
    "slidegate.refusals", "{request}", ("reason",), "Refused requests by reason; each counts once."
)
BANS: Final = Metric("slidegate.bans", "{ban}", (), "Bans that this process has made.")
FAILURES: Final = Metric("slidegate.store.failures", "{question}", (), "Store calls that failed or timed out.")
DURATION: Final = Metric(
    "slidegate.request.duration",
    "s",
    ("route", "status"),
    "The time to the last byte of the response, for admitted requests.",
)
COUNTERS: Final = (RULE_REQUESTS, REFUSALS, BANS, FAILURES)
_BY_THEMSELVES: Final = (401, 403, 404, 429)
"""The statuses that tell of guesses, scans and limits."""


GAUGES: Final = (
    Metric("slidegate.queued_requests", "{request}", (), "Requests that are queued.", lambda limiter: limiter.queued),
    Metric(
        "slidegate.active_permits",
        "{permit}",
        (),
        "Permits of concurrency limits in use.",
        lambda limiter: limiter.store.permits_held() if isinstance(limiter.store, CountsPermits) else None,
    ),
    Metric(
        "slidegate.active_bans",
        "{ban}",
        (),
        "Active bans that this process knows.",
        lambda limiter: limiter.store.bans.count(),
        "mostrecent",
    ),
    Metric(
        "slidegate.store.up",
        "1",
        (),
        "0 during an outage of the store, else 1.",
        lambda limiter: not limiter.is_failing,
        "livemin",
    ),
)


def status_name(status: object) -> str:
    """Return under which name an answer counts: ``401``, ``4xx`` for others, ``0xx`` if there was none."""
    if status in _BY_THEMSELVES:
        return str(status)
    return f"{str(status)[0]}xx"


class LimiterMetrics(Observer):
    """Counts the requests of one limiter by outcome; a subscription begins with `_begin`."""

    refused_events = False
    takes_passed = True

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._store = type(limiter.store).__name__.removesuffix("Store").lower()
        self._rules = set[str]()
        self._routes = set[str]()
        self._adders: dict[tuple[Metric, tuple[str, ...]], Add] = {}
        self._failures = limiter.failures
        self._counting = Lock()

    @abstractmethod
    def _make_adder(self, metric: Metric, *labels: str) -> Add:
        """Make what `_adder` returns."""

    def _begin(self) -> None:
        """Export counters from 0 where their labels are known, so that the first refusal is an increase; and start."""
        self._adder(BANS)(0)
        self._adder(FAILURES)(0)
        for reason in REASONS:
            self._adder(REFUSALS, reason)(0)
        self._subscription = self._limiter.observe(self)

    def close(self) -> None:
        """Stop counting. A second call does nothing."""
        self._subscription.remove()

    def event(self, event: Event, /) -> None:
        """Count a ban, and the failures of the store that happened outside of requests."""
        if event.kind == "banned":
            self._adder(BANS)(1)
        self._count_failures()

    def request(self, request: Passed | Outcome, /) -> None:
        """Count a request."""
        self._count([request])

    def _count(self, requests: Sequence[Passed | Outcome]) -> None:
        """Count requests, admitted ones of the same buckets and route together."""
        self._count_failures()
        for request in requests:
            if isinstance(request, Outcome):
                self._count_outcome(request)
        for group, (_, times_us, _) in grouped(requests).items():
            route, status, *buckets = group
            for rule in dict.fromkeys(bucket.label for bucket in buckets):  # each once, as `Outcome.rules` has them
                self._count_rule(rule, "passed", len(times_us))
            record = self._adder(DURATION, _bounded(self._routes, route), status_name(status))
            for time_us in times_us:
                record(time_us / 1_000_000)

    def _count_failures(self) -> None:
        """Count the failures of the store since the last call."""
        if self._limiter.failures != self._failures:
            with self._counting:
                before = self._failures
                self._failures = self._limiter.failures
                self._adder(FAILURES)(self._failures - before)

    def _count_outcome(self, outcome: Outcome) -> None:
        """Count what only an outcome tells of a request: its refusal, and shadow rules."""
        for rule in outcome.shadow_rules:
            self._count_rule(rule, "shadow_refused")
        if outcome.refusal is None:
            return
        self._adder(REFUSALS, outcome.reason)(1)
        result = "refused"
        if outcome.reason in _OWN_OUTCOMES:
            result = outcome.reason
        for rule in outcome.rules:
            self._count_rule(rule, result)

    def _count_rule(self, rule: str, result: str, requests: int = 1) -> None:
        self._adder(RULE_REQUESTS, _bounded(self._rules, rule), result)(requests)

    def _adder(self, metric: Metric, *labels: str) -> Add:
        """Return what adds to a counter, or records a time in seconds in the histogram, under these labels."""
        add = self._adders.get((metric, labels))
        if add is None:
            add = self._adders[metric, labels] = self._make_adder(metric, *labels)
        return add

    def _read(self, gauge: Metric) -> float:
        """Return the value of a gauge; not a number if the store does not know it, or does not answer."""
        with suppress(StoreError):
            value = gauge.read(self._limiter)
            if value is not None:
                return float(value)
        return float("nan")


def _bounded(names: set[str], name: str) -> str:
    """Return the value of a label, or `OTHER` beyond `MAX_NAMES`."""
    if name not in names and len(names) >= MAX_NAMES:
        return OTHER
    names.add(name)
    return name


def grouped(requests: Iterable[Passed | Outcome]) -> Groups:
    """Return the admitted requests by group."""
    groups: Groups = defaultdict(lambda: ([], [], []))
    for request in requests:
        if isinstance(request, Outcome):
            if request.refusal is not None:
                continue
            counted = [check for decision in request.decisions for check in decision.checks]
            request = request.client, counted, request.route, request.duration_us, request.status
        client, checks, route, time_us, status = request
        group: Any = (route, status)
        has_keys = False
        for bucket, key, _ in checks:
            group += (bucket,)
            if key != client:
                has_keys = True
        clients, times_us, keyed = groups[group]
        clients.append(client)
        times_us.append(time_us)
        if has_keys:
            keyed.append(request)
    return groups
