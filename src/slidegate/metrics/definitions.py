"""The metrics of one limiter in this process: names, units, attributes, and how each is counted or read.

Requests are counted when they end, events as they happen. All other values are read from the store and the lists,
every few seconds.

The names follow the conventions of OpenTelemetry. Those for Prometheus are derived from them: dots become underscores
and the unit is the suffix. Clients cannot choose attribute values, which are names of rules, templates of routes,
outcomes and kinds of events; beyond `MAX_SERIES`, rules and routes share one value.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from .. import core
from ..core.errors import ConfigurationError, StoreError, quoted
from ..core.store import Event
from ..limiter import Limiter
from ..limiter.observers import KINDS, SHUT_OUT, Observer, Outcome
from ..stats.recorder import MAX_SERIES, OTHER
from ..stores.memory.store import MemoryStore
from ..web.lists import files_of
from ..web.middleware import RateLimitMiddleware

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Labels: TypeAlias = tuple[str, ...]
"""The attribute values of a metric, in the order of its attributes."""
Values: TypeAlias = Mapping[Labels, int]
Read: TypeAlias = Callable[[Limiter], Values]
Together: TypeAlias = Literal["mostrecent", "livesum", "livemin"]
"""How a gauge is aggregated over processes: the latest value, or the sum or minimum over live processes."""

PREFIX: Final = "slidegate"
STORE: Final = "store"
"""The attribute that every metric has, after its own."""
BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The upper bounds of all histogram buckets in seconds, as in OpenTelemetry's HTTP conventions."""
COUNTED_KINDS: Final = tuple(kind for kind in KINDS if kind not in ("refused", "shadow_refused"))
"""The kinds of events that are counted; the others are counted as outcomes of requests."""
_US_PER_S: Final = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric.

    Attributes:
        name: The name for OpenTelemetry, without ``slidegate.``.
        kind: A counter, a gauge, or a histogram of seconds.
        unit: The unit in UCUM notation; annotations are in braces.
        attributes: The names of its attributes besides ``store``, in the order of their values.
        help: The description that exporters show.
        read: Returns its values by attribute values; None if requests and events are counted.
        together: How a gauge is aggregated over processes.
    """

    name: str
    kind: Kind
    unit: str
    attributes: tuple[str, ...]
    help: str
    read: Read | None = None
    together: Together = "mostrecent"

    @property
    def prometheus(self) -> str:
        """The name for Prometheus."""
        plain = f"{PREFIX}.{self.name}".replace(".", "_")
        return plain + {"counter": "_total", "histogram": "_seconds"}.get(self.kind, "")


def _queued(limiter: Limiter) -> Values:
    return {(): limiter.engine.queues.waiting}


def _permits(limiter: Limiter) -> Values:
    held = limiter.store.permits_held()
    return {} if held is None else {(): held}


def _bans(limiter: Limiter) -> Values:
    count = limiter.store.bans.count()
    return {} if count is None else {(): count}


def _keys(limiter: Limiter) -> Values:
    store = limiter.store
    return {(): store.stats().keys} if isinstance(store, MemoryStore) else {}


def _shared_hits(limiter: Limiter) -> Values:
    store = limiter.store
    return {(): store.stats().shared_hits} if isinstance(store, MemoryStore) else {}


def _failures(limiter: Limiter) -> Values:
    failover = limiter.engine.failover
    return {(): 0 if failover is None else failover.failures}


def _store_up(limiter: Limiter) -> Values:
    failover = limiter.engine.failover
    return {(): 0 if failover is not None and failover.away else 1}


def _list_entries(limiter: Limiter) -> Values:
    entries: dict[Labels, int] = {}
    for caller in limiter.engine.callers.listed():
        lists = caller.lists if isinstance(caller, RateLimitMiddleware) else {}
        for kind, given in lists.items():
            files = files_of(given)
            if files is not None:
                entries |= {(state.name, kind): state.entries for state in files.states}
            elif given is not None:
                entries[kind, kind] = len(given)
    return entries


def _build_info(limiter: Limiter) -> Values:
    root = sys.modules["slidegate"]  # no module imports the root package, which only re-exports names
    return {(root.__version__, str(core.compiled).lower()): 1}


REQUESTS: Final = Metric(
    "requests", "counter", "{request}", ("route", "outcome"), "Requests by route and outcome; each counts once."
)
RULE_REQUESTS: Final = Metric(
    "rule.requests",
    "counter",
    "{request}",
    ("rule", "outcome"),
    "Requests by rule and outcome; each counts once for every rule that counted or refused it.",
)
DURATION: Final = Metric(
    "request.duration",
    "histogram",
    "s",
    ("route",),
    "The time to the last byte of the response, for admitted requests.",
)
TIME_IN_QUEUE: Final = Metric(
    "request.time_in_queue", "histogram", "s", ("outcome",), "The time that requests were queued."
)
EVENTS: Final = Metric("events", "counter", "{event}", ("kind",), "Events by kind.")

METRICS: Final = (
    REQUESTS,
    RULE_REQUESTS,
    DURATION,
    TIME_IN_QUEUE,
    EVENTS,
    Metric("queued_requests", "gauge", "{request}", (), "Requests that are queued.", _queued, "livesum"),
    Metric("active_permits", "gauge", "{permit}", (), "Permits of concurrency limits in use.", _permits, "livesum"),
    Metric("active_bans", "gauge", "{ban}", (), "Active bans that this process knows.", _bans),
    Metric("keys", "gauge", "{key}", (), "Windows in a memory store.", _keys, "livesum"),
    Metric(
        "shared_hits",
        "counter",
        "{hit}",
        (),
        "Hits counted in shared cells because a memory store was full.",
        _shared_hits,
    ),
    Metric("store.failures", "counter", "{question}", (), "Store calls that failed or timed out.", _failures),
    Metric("store.up", "gauge", "1", (), "1 if the last store call succeeded, 0 if not.", _store_up, "livemin"),
    Metric(
        "list.entries", "gauge", "{entry}", ("list", "kind"), "Entries of each blocklist and allowlist.", _list_entries
    ),
    Metric(
        "build_info",
        "gauge",
        "1",
        ("version", "compiled"),
        "Always 1; the attributes are the version and whether the core is compiled.",
        _build_info,
    ),
)
"""All metrics, in the order of their documentation."""


class LimiterMetrics(Observer):
    """Counts the requests of one limiter by outcome, and reads the values of its store and lists.

    A subclass implements `_add` and `_record`, creates its counters and histograms, and then calls `_begin`.

    Args:
        limiter: The limiter.

    Raises:
        ConfigurationError: `limiter` is not a `Limiter`.
    """

    def __init__(self, limiter: Limiter) -> None:
        if not isinstance(limiter, Limiter):
            raise ConfigurationError(f"limiter: expected a Limiter, for example Limiter(), not {quoted(limiter)}")
        self._limiter = limiter
        self._store = _store_name(limiter)
        self._known: dict[str, dict[str, None]] = {"rule": {}, "route": {}}

    @abstractmethod
    def _add(self, metric: Metric, labels: Labels, amount: int) -> None:
        """Add to a counter."""

    @abstractmethod
    def _record(self, metric: Metric, labels: Labels, value_s: float) -> None:
        """Record a time in a histogram."""

    def _begin(self) -> None:
        """Start counting."""
        self._count_from_zero()
        self._subscription = self._limiter.observe(self, kinds=COUNTED_KINDS)

    def _count_from_zero(self) -> None:
        """Export all kinds of events, so that the first event of a kind shows as an increase."""
        for kind in COUNTED_KINDS:
            self._add(EVENTS, (kind,), 0)

    def close(self) -> None:
        """Stop counting."""
        self._subscription.remove()

    def request(self, outcome: Outcome, /) -> None:
        """Count a request."""
        if outcome.route is None:
            return
        route, became = self._bounded("route", outcome.route), _became(outcome)
        if became:
            self._add(REQUESTS, (route, became), 1)
            for rule in dict.fromkeys(outcome.rules):
                self._add(RULE_REQUESTS, (self._bounded("rule", rule), became), 1)
        for rule in outcome.shadow_rules:
            self._add(RULE_REQUESTS, (self._bounded("rule", rule), "shadow_refused"), 1)
        if outcome.allowed:
            self._record(DURATION, (route,), outcome.duration_us / _US_PER_S)
        if outcome.waited_us is not None:
            waited = "passed" if outcome.allowed else "refused" if became else "left"
            self._record(TIME_IN_QUEUE, (waited,), outcome.waited_us / _US_PER_S)

    def event(self, event: Event, /) -> None:
        """Count an event."""
        self._add(EVENTS, (event.kind,), 1)

    def _read(self, read: Read) -> Values:
        """Return the values of a metric; an empty dict if this limiter has none, or its store does not answer."""
        try:
            return read(self._limiter)
        except StoreError:
            return {}

    def _bounded(self, attribute: str, value: str) -> str:
        """Return the value of an attribute, or `OTHER` beyond `MAX_SERIES`."""
        known = self._known[attribute]
        if value not in known:
            if len(known) >= MAX_SERIES:
                return OTHER
            known[value] = None
        return value


def _became(outcome: Outcome) -> str:
    """Return the value of ``outcome``; an empty string if the client disconnected while the request was queued."""
    if outcome.allowed:
        return "passed"
    if outcome.ended != "refused":
        return ""
    return str(outcome.reason) if outcome.reason in SHUT_OUT else "refused"


def _store_name(limiter: Limiter) -> str:
    """Return ``memory``, ``lmdb`` or ``redis``; for other stores, the lower-case name of the class."""
    kind = type(limiter.store)
    parts = kind.__module__.split(".")
    return parts[2] if parts[:2] == ["slidegate", "stores"] else kind.__name__.lower()
