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
Together: TypeAlias = Literal["mostrecent", "livesum", "livemin"]
"""How a gauge is aggregated over processes: the latest value, or the sum or minimum over live processes."""

PREFIX: Final = "slidegate"
BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The upper bounds of all histogram buckets in seconds, as in OpenTelemetry's HTTP conventions."""
_COUNTED_ELSEWHERE: Final = frozenset({"refused", "shadow_refused"})
"""Kinds of events that are counted as outcomes of requests instead."""
_US_PER_S: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: The name for OpenTelemetry, without ``slidegate.``.
        kind: A counter, a gauge, or a histogram of seconds.
        unit: The unit in UCUM notation; annotations are in braces.
        attributes: The names of the attributes, in the order of their values; the last one is ``store``.
        help: The description that exporters show.
        together: How a gauge is aggregated over processes.
    """

    name: str
    kind: Kind
    unit: str
    attributes: tuple[str, ...]
    help: str
    together: Together = "mostrecent"

    @property
    def prometheus(self) -> str:
        """The name for Prometheus."""
        plain = f"{PREFIX}.{self.name}".replace(".", "_")
        return plain + {"counter": "_total", "histogram": "_seconds"}.get(self.kind, "")

    def named(self, labels: Labels) -> dict[str, str]:
        """Return the attributes for OpenTelemetry."""
        return {f"{PREFIX}.{name}": value for name, value in zip(self.attributes, labels, strict=True)}


REQUESTS: Final = Metric(
    "requests",
    "counter",
    "{request}",
    ("route", "outcome", "store"),
    "Requests by route and outcome; each counts once.",
)
RULE_REQUESTS: Final = Metric(
    "rule.requests",
    "counter",
    "{request}",
    ("rule", "outcome", "store"),
    "Requests by rule and outcome; each counts once for every rule that counted or refused it.",
)
DURATION: Final = Metric(
    "request.duration",
    "histogram",
    "s",
    ("route", "store"),
    "The time to the last byte of the response, for admitted requests.",
)
TIME_IN_QUEUE: Final = Metric(
    "request.time_in_queue",
    "histogram",
    "s",
    ("outcome", "store"),
    "The time that requests were queued.",
)
EVENTS: Final = Metric("events", "counter", "{event}", ("kind", "store"), "Events by kind.")

Values: TypeAlias = Mapping[Labels, int]
Read: TypeAlias = Callable[[Limiter], Values]
READ: Final[dict[Metric, Read]] = {}
"""The functions that read metrics: they return values by attribute values, without ``store``."""


def read(
    name: str, kind: Kind, unit: str, *attributes: str, together: Together = "mostrecent"
) -> Callable[[Read], Read]:
    """Return a decorator that registers a function as a metric; the docstring of the function is the help."""

    def add(function: Read) -> Read:
        text = " ".join((function.__doc__ or "").split())
        READ[Metric(name, kind, unit, (*attributes, "store"), text, together)] = function
        return function

    return add


@read("queued_requests", "gauge", "{request}", together="livesum")
def _queued(limiter: Limiter) -> Values:
    """Requests that are queued."""
    return {(): limiter.engine.queues.waiting}


@read("active_permits", "gauge", "{permit}", together="livesum")
def _permits(limiter: Limiter) -> Values:
    """Permits of concurrency limits in use."""
    held = limiter.store.permits_held()
    return {} if held is None else {(): held}


@read("active_bans", "gauge", "{ban}")
def _bans(limiter: Limiter) -> Values:
    """Active bans that this process knows."""
    count = limiter.store.bans.count()
    return {} if count is None else {(): count}


@read("keys", "gauge", "{key}", together="livesum")
def _keys(limiter: Limiter) -> Values:
    """Windows in a memory store."""
    store = limiter.store
    return {(): store.stats().keys} if isinstance(store, MemoryStore) else {}


@read("shared_hits", "counter", "{hit}")
def _shared_hits(limiter: Limiter) -> Values:
    """Hits counted in shared cells because a memory store was full."""
    store = limiter.store
    return {(): store.stats().shared_hits} if isinstance(store, MemoryStore) else {}


@read("store.failures", "counter", "{question}")
def _failures(limiter: Limiter) -> Values:
    """Store calls that failed or timed out."""
    failover = limiter.engine.failover
    return {(): 0 if failover is None else failover.failures}


@read("store.up", "gauge", "1", together="livemin")
def _store_up(limiter: Limiter) -> Values:
    """1 if the last store call succeeded, 0 if not."""
    failover = limiter.engine.failover
    return {(): 0 if failover is not None and failover.away else 1}


@read("list.entries", "gauge", "{entry}", "list", "kind")
def _list_entries(limiter: Limiter) -> Values:
    """Entries of each blocklist and allowlist."""
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


@read("build_info", "gauge", "1", "version", "compiled")
def _build_info(limiter: Limiter) -> Values:
    """Always 1; the attributes are the version and whether the core is compiled."""
    root = sys.modules["slidegate"]  # no module imports the root package, which only re-exports names
    return {(root.__version__, str(core.compiled).lower()): 1}


METRICS: Final = (REQUESTS, RULE_REQUESTS, DURATION, TIME_IN_QUEUE, EVENTS, *READ)
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
        for kind in KINDS:  # start at 0, so that the first event of a kind shows as an increase
            if kind not in _COUNTED_ELSEWHERE:
                self._add(EVENTS, (kind, self._store), 0)
        self._subscription = self._limiter.observe(self)

    def close(self) -> None:
        """Stop counting."""
        self._subscription.remove()

    def request(self, outcome: Outcome, /) -> None:
        """Count a request."""
        if outcome.route is None:
            return
        add, record, store = self._add, self._record, self._store
        route, became = self._bounded("route", outcome.route), _became(outcome)
        if became:
            add(REQUESTS, (route, became, store), 1)
            for rule in dict.fromkeys(outcome.rules):
                add(RULE_REQUESTS, (self._bounded("rule", rule), became, store), 1)
        for rule in outcome.shadow_rules:
            add(RULE_REQUESTS, (self._bounded("rule", rule), "shadow_refused", store), 1)
        if outcome.allowed:
            record(DURATION, (route, store), outcome.duration_us / _US_PER_S)
        if outcome.waited_us is not None:
            waited = "passed" if outcome.allowed else "refused" if became else "left"
            record(TIME_IN_QUEUE, (waited, store), outcome.waited_us / _US_PER_S)

    def event(self, event: Event, /) -> None:
        """Count an event."""
        if event.kind not in _COUNTED_ELSEWHERE:
            self._add(EVENTS, (event.kind, self._store), 1)

    def _read(self, metric: Metric) -> Values:
        """Read the values of a metric; an empty dict if this limiter has none, or its store does not answer."""
        try:
            return {(*labels, self._store): value for labels, value in READ[metric](self._limiter).items()}
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
