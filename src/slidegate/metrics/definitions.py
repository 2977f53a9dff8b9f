"""The metrics of one limiter in this process: names, units, attributes, and when each is counted or read.

What became of requests is counted at their outcome, events as they happen. The other values are those of the store and
the lists, which are read every few seconds.

The names follow the conventions of OpenTelemetry; those for Prometheus are made of them as its exporters do it: dots
become underscores, and the unit stands at the end. Attributes have values that the operator has written or that stand
in this package: the names of rules, the templates of routes, outcomes, kinds of events. A client can choose none, and
of rules and routes no more than `MAX_SERIES` have values of their own.
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
"""The values of the attributes of a metric, in their order."""
Together: TypeAlias = Literal["mostrecent", "livesum", "livemin"]
"""What the gauges of several processes make: the last one that was read, the sum or the least of those that run."""

PREFIX: Final = "slidegate"
BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The upper bounds of the buckets of all histograms, in seconds: those of OpenTelemetry's durations of requests."""
_COUNTED_ELSEWHERE: Final = frozenset({"refused", "shadow_refused"})
"""Kinds of events that come with requests, whose outcomes are counted."""
_US_PER_S: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: The name for OpenTelemetry, without ``slidegate.``.
        kind: A counter only grows; a histogram measures seconds.
        unit: In the notation of UCUM; words in braces are names of things.
        attributes: The names of the attributes, in the order in which values have them; the last one is ``store``.
        help: A sentence for people.
        together: What the gauges of several processes make.
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
    "Requests by route and outcome; each is counted once.",
)
RULE_REQUESTS: Final = Metric(
    "rule.requests",
    "counter",
    "{request}",
    ("rule", "outcome", "store"),
    "Requests by the rules that counted or refused them; once for each rule.",
)
DURATION: Final = Metric(
    "request.duration",
    "histogram",
    "s",
    ("route", "store"),
    "The time to the last byte of the answer, of admitted requests.",
)
TIME_IN_QUEUE: Final = Metric(
    "request.time_in_queue",
    "histogram",
    "s",
    ("outcome", "store"),
    "The time that requests waited for room.",
)
EVENTS: Final = Metric("events", "counter", "{event}", ("kind", "store"), "Events by kind.")

Values: TypeAlias = Mapping[Labels, int]
Read: TypeAlias = Callable[[Limiter], Values]
READ: Final[dict[Metric, Read]] = {}
"""What is read now and then: values by the attributes but ``store``; none where a limiter has none."""


def read(
    name: str, kind: Kind, unit: str, *attributes: str, together: Together = "mostrecent"
) -> Callable[[Read], Read]:
    """Return a decorator that makes a metric of a function; the first paragraph of its docstring is the help."""

    def add(function: Read) -> Read:
        text = " ".join((function.__doc__ or "").split())
        READ[Metric(name, kind, unit, (*attributes, "store"), text, together)] = function
        return function

    return add


@read("queued_requests", "gauge", "{request}", together="livesum")
def _queued(limiter: Limiter) -> Values:
    """Requests that are waiting for room."""
    return {(): limiter.engine.queues.waiting}


@read("active_permits", "gauge", "{permit}", together="livesum")
def _permits(limiter: Limiter) -> Values:
    """Permits of concurrency limits in use."""
    held = limiter.store.permits_held()
    return {} if held is None else {(): held}


@read("active_bans", "gauge", "{ban}")
def _bans(limiter: Limiter) -> Values:
    """Bans in force, as far as this process knows them."""
    count = limiter.store.bans.count()
    return {} if count is None else {(): count}


@read("keys", "gauge", "{key}", together="livesum")
def _keys(limiter: Limiter) -> Values:
    """Windows in a memory store."""
    store = limiter.store
    return {(): store.stats().keys} if isinstance(store, MemoryStore) else {}


@read("shared_hits", "counter", "{hit}")
def _shared_hits(limiter: Limiter) -> Values:
    """Hits counted in shared cells, because a memory store was full."""
    store = limiter.store
    return {(): store.stats().shared_hits} if isinstance(store, MemoryStore) else {}


@read("store.failures", "counter", "{question}")
def _failures(limiter: Limiter) -> Values:
    """Questions that the store answered with an error, or not in time."""
    failover = limiter.engine.failover
    return {(): 0 if failover is None else failover.failures}


@read("store.up", "gauge", "1", together="livemin")
def _store_up(limiter: Limiter) -> Values:
    """1 if the store answered its last question, 0 if not."""
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
    """Always 1; the attributes are the version, and whether the core is compiled."""
    root = sys.modules["slidegate"]  # it hands names on, and nobody imports it
    return {(root.__version__, str(core.compiled).lower()): 1}


METRICS: Final = (REQUESTS, RULE_REQUESTS, DURATION, TIME_IN_QUEUE, EVENTS, *READ)
"""All metrics, in the order of the page that describes them."""


class LimiterMetrics(Observer):
    """Counts what becomes of the requests of one limiter, and reads the values of its store and lists.

    A subclass provides `_add` and `_record`, makes its counters and histograms, and then calls `_begin`.

    Args:
        limiter: The limiter.

    Raises:
        ConfigurationError: `limiter` is no limiter.
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
        """Count from now on."""
        for kind in KINDS:  # so that the first of a kind is a rise
            if kind not in _COUNTED_ELSEWHERE:
                self._add(EVENTS, (kind, self._store), 0)
        self._subscription = self._limiter.observe(self)

    def close(self) -> None:
        """Count nothing more."""
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
        """Return the values of a metric that is read; none where this limiter has none, or its store is away."""
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
    """Return what became of a request; nothing where its client left while it waited for room."""
    if outcome.allowed:
        return "passed"
    if outcome.ended != "refused":
        return ""
    return str(outcome.reason) if outcome.reason in SHUT_OUT else "refused"


def _store_name(limiter: Limiter) -> str:
    """Return the name of the kind of store: ``memory``, ``lmdb`` or ``redis``; else that of its class."""
    kind = type(limiter.store)
    parts = kind.__module__.split(".")
    return parts[2] if parts[:2] == ["slidegate", "stores"] else kind.__name__.lower()
