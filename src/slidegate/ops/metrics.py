"""The metrics of one limiter in this process: names, units and labels, and how each is counted or read.

The names follow the conventions of OpenTelemetry. Those for Prometheus are derived from them: dots become underscores
and the unit is the suffix. Clients cannot choose the value of a label: it is the name of a rule, the template of a
route, or a reason; beyond `MAX_NAMES`, rules and routes share one value.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from threading import Lock
from typing import Final, Literal, NamedTuple, TypeAlias

from ..core import Reason
from ..core.errors import ConfigurationError, StoreError, quoted
from ..events import Event, Observer, Outcome
from ..limiter import Limiter

PREFIX: Final = "slidegate"
STORE: Final = "store"
"""The label that every metric has, after its own."""
MAX_NAMES: Final = 200
OTHER: Final = "(other)"
BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The upper bounds of the histogram's buckets in seconds, as in OpenTelemetry's HTTP conventions."""
UNKNOWN: Final = float("nan")
_MAX_PREPARED: Final = 4_096
REASONS: Final = (Reason.LIMITED, Reason.TOO_LARGE, Reason.BANNED, Reason.BLOCKED, Reason.UNAVAILABLE)
"""The reasons of refusals that are exported from 0, so that the first refusal shows as an increase."""
_OWN_OUTCOMES: Final = {Reason.BANNED, Reason.BLOCKED, Reason.UNAVAILABLE}

Add: TypeAlias = Callable[[float], object]
"""Adds to a labelled counter, or records a time in seconds in a labelled histogram."""


class Metric(NamedTuple):
    """A metric.

    Attributes:
        name: Its name for OpenTelemetry, without ``slidegate.``.
        unit: Its unit in UCUM notation; annotations are in braces.
        labels: Its labels besides ``store``.
        help: The description that exporters show.
        read: Returns the value of a gauge; None if that is unknown.
        together: How the values of a gauge in several processes are aggregated.
    """

    name: str
    unit: str
    labels: tuple[str, ...]
    help: str
    read: Callable[[Limiter], float | None] = lambda _: None
    together: Literal["livesum", "mostrecent", "livemin"] = "livesum"


_BY_RULE: Final = "Requests by rule and outcome; each counts once for every rule that counted or refused it."
_TO_LAST_BYTE: Final = "The time to the last byte of the response, for admitted requests."
RULE_REQUESTS: Final = Metric("rule.requests", "{request}", ("rule", "outcome"), _BY_RULE)
REFUSALS: Final = Metric("refusals", "{request}", ("reason",), "Refused requests by reason; each counts once.")
BANS: Final = Metric("bans", "{ban}", (), "Bans that this process has made.")
FAILURES: Final = Metric("store.failures", "{question}", (), "Store calls that failed or timed out.")
DURATION: Final = Metric("request.duration", "s", ("route",), _TO_LAST_BYTE)
COUNTERS: Final = (RULE_REQUESTS, REFUSALS, BANS, FAILURES)


def _queued(limiter: Limiter) -> float | None:
    return limiter.queued


def _permits(limiter: Limiter) -> float | None:
    return limiter.store.permits_held()


def _bans(limiter: Limiter) -> float | None:
    return limiter.store.bans.count()


def _store_up(limiter: Limiter) -> float | None:
    return not limiter.is_failing


GAUGES: Final = (
    Metric("queued_requests", "{request}", (), "Requests that are queued.", _queued),
    Metric("active_permits", "{permit}", (), "Permits of concurrency limits in use.", _permits),
    Metric("active_bans", "{ban}", (), "Active bans that this process knows.", _bans, "mostrecent"),
    Metric("store.up", "1", (), "1 if the last store call succeeded, 0 if not.", _store_up, "livemin"),
)


class LimiterMetrics(Observer):
    """Counts the requests of one limiter by outcome; a subscription begins with `_begin`.

    Args:
        limiter: The limiter.

    Raises:
        ConfigurationError: `limiter` is not a `Limiter`.
    """

    refused_events = False

    def __init__(self, limiter: Limiter) -> None:
        if not isinstance(limiter, Limiter):
            raise ConfigurationError(f"limiter: expected a Limiter, for example Limiter(), not {quoted(limiter)}")
        self._limiter = limiter
        parts = type(limiter.store).__module__.split(".")
        is_ours = parts[:2] == ["slidegate", "stores"]
        self._store = parts[2] if is_ours else type(limiter.store).__name__.lower()
        self._names: dict[str, set[str]] = {"rule": set(), "route": set()}
        self._prepared: dict[object, tuple[list[Add], Add | None]] = {}
        self._failures = limiter.failures
        self._counting = Lock()

    @abstractmethod
    def _child(self, metric: Metric, *labels: str) -> Add:
        """Return the function that adds to a counter, or records in the histogram, under these labels."""

    def _begin(self) -> None:
        """Export from 0 what has few labels, and start counting."""
        self._bans, self._failed = self._child(BANS), self._child(FAILURES)
        for add in (self._bans, self._failed, *(self._child(REFUSALS, str(reason)) for reason in REASONS)):
            add(0)
        self._subscription = self._limiter.observe(self)

    def close(self) -> None:
        """Stop counting. A second call does nothing."""
        self._subscription.remove()

    def event(self, event: Event, /) -> None:
        """Count a ban."""
        if event.kind == "banned":
            self._bans(1)

    def request(self, outcome: Outcome, /) -> None:
        """Count a request."""
        if self._limiter.failures != self._failures:
            self._count_failures()
        if outcome.route is None:
            return
        kind = outcome.rules, outcome.shadow_rules, outcome.route, outcome.allowed, outcome.reason, outcome.ended
        prepared = self._prepared.get(kind)
        if prepared is None:
            if len(self._prepared) >= _MAX_PREPARED:
                self._prepared.clear()
            prepared = self._prepared[kind] = self._children(outcome)
        counters, record = prepared
        for add in counters:
            add(1)
        if record is not None:
            record(outcome.duration_us / 1_000_000)

    def _children(self, outcome: Outcome) -> tuple[list[Add], Add | None]:
        """Return what counts the requests with this outcome, and what records their durations."""
        reason, counters = str(outcome.reason), []
        is_refused = outcome.ended == "refused"
        became = "passed" if outcome.allowed else reason if outcome.reason in _OWN_OUTCOMES else "refused"
        if outcome.allowed or is_refused:
            named = [(rule, became) for rule in dict.fromkeys(outcome.rules)]
            counters += [self._child(RULE_REQUESTS, self._bounded("rule", rule), became) for rule, became in named]
        for rule in outcome.shadow_rules:
            counters.append(self._child(RULE_REQUESTS, self._bounded("rule", rule), "shadow_refused"))
        if is_refused:
            counters.append(self._child(REFUSALS, reason))
        if not outcome.allowed:
            return counters, None
        return counters, self._child(DURATION, self._bounded("route", outcome.route or ""))

    def _count_failures(self) -> None:
        with self._counting:
            failures = self._limiter.failures
            added, self._failures = failures - self._failures, failures
        self._failed(added)

    def _read(self, gauge: Metric) -> float:
        """Return the value of a gauge; not a number if the store does not know it, or does not answer."""
        try:
            value = gauge.read(self._limiter)
        except StoreError:
            return UNKNOWN
        return UNKNOWN if value is None else float(value)

    def _bounded(self, label: str, value: str) -> str:
        """Return the value of a label, or `OTHER` beyond `MAX_NAMES`."""
        names = self._names[label]
        if value not in names and len(names) >= MAX_NAMES:
            return OTHER
        names.add(value)
        return value
