"""The metrics of one limiter in this process: names, units, attributes, and how each is read.

Nothing is counted for a metric when a request comes. The statistics of the limiter, its store and its lists know the
values, and are asked when somebody wants to see them. Only events are heard as they happen, and those are rare; the
kinds that would come with each refused request are left out, because the statistics have them already.

The names follow the conventions of OpenTelemetry; those for Prometheus are made of them as its exporters do it: dots
become underscores, and the unit stands at the end. Attributes have values that the operator has written or that stand
in this package: the names of rules, the templates of routes, outcomes, kinds of events. A client can choose none.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Final, Literal, NamedTuple, TypeAlias

from .. import core
from ..core.arguments import check_flag
from ..core.errors import ConfigurationError, StoreError
from ..core.statistics.histogram import EXPORTED_BOUNDS_US, ResponseTimes
from ..core.statistics.series import Series
from ..core.statistics.slices import Slice
from ..core.store import Event
from ..limiter import Limiter
from ..limiter.events import KINDS
from ..limiter.stats import NO_ROUTE_AT_ALL
from ..stores.memory.store import MemoryStore
from ..web.lists import files_of
from ..web.middleware import RateLimitMiddleware

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Labels: TypeAlias = tuple[str, ...]
"""The values of the attributes of a metric, in their order."""

PREFIX: Final = "slidegate"
BOUNDS_S: Final = tuple(bound_us / 1_000_000 for bound_us in EXPORTED_BOUNDS_US)
"""The upper bounds of the buckets of all histograms, in seconds."""
REFUSED_OTHERWISE: Final = ("banned", "blocked", "unavailable")
"""What became of requests that were refused, and not by a limit."""
SHADOW_REFUSED: Final = "shadow_refused"
"""The outcome under a rule that would have refused a request, but only looks on."""
_COUNTED_ELSEWHERE: Final = frozenset({"refused", "shadow_refused"})


class Times(NamedTuple):
    """The value of a histogram.

    Attributes:
        counts: How many times lie in each bucket of `BOUNDS_S`, the last one being of all longer times.
        sum_us: The sum of all times in microseconds.
    """

    counts: tuple[int, ...]
    sum_us: int

    @classmethod
    def of(cls, times: ResponseTimes) -> Times:
        """Return times as they are exported."""
        return cls(times.exported(), times.sum_us)


Value: TypeAlias = int | Times
Values: TypeAlias = dict[Labels, Value]
Read: TypeAlias = Callable[["LimiterMetrics"], Mapping[Labels, Value]]


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric.

    Attributes:
        name: The name for OpenTelemetry.
        kind: A counter only grows; a histogram is of seconds.
        unit: In the notation of UCUM; words in braces are names of things.
        attributes: The names of the attributes, in the order in which values have them; the last one is ``store``.
        help: A sentence for people.
        read: Returns the values by the attributes but ``store``; none where a limiter has none.
    """

    name: str
    kind: Kind
    unit: str
    attributes: tuple[str, ...]
    help: str
    read: Read

    @property
    def prometheus(self) -> str:
        """The name for Prometheus."""
        plain = self.name.replace(".", "_")
        return plain + {"counter": "_total", "histogram": "_seconds"}.get(self.kind, "")

    def named(self, labels: Labels) -> dict[str, str]:
        """Return the attributes for OpenTelemetry."""
        return {f"{PREFIX}.{name}": value for name, value in zip(self.attributes, labels, strict=True)}


METRICS: Final[dict[str, Metric]] = {}
"""All metrics by their names, in the order of the page that describes them."""


def metric(name: str, kind: Kind, unit: str, *attributes: str) -> Callable[[Read], Read]:
    """Return a decorator that makes a metric of a method; the first paragraph of its docstring is the help."""

    def add(read: Read) -> Read:
        text = " ".join((read.__doc__ or "").split())
        METRICS[name] = Metric(f"{PREFIX}.{name}", kind, unit, (*attributes, "store"), text, read)
        return read

    return add


class LimiterMetrics:
    """Reads the metrics of one limiter.

    Args:
        limiter: The limiter.
        near_limit: Whether the event ``near_limit`` is counted, for which every decision is looked at.

    Attributes:
        store: The value of the attribute ``store``.

    Raises:
        ConfigurationError: `limiter` is no limiter.
    """

    def __init__(self, limiter: Limiter, *, near_limit: bool) -> None:
        if not isinstance(limiter, Limiter):
            raise ConfigurationError(f"limiter: expected a Limiter, for example Limiter(), not {limiter!r}")
        self._limiter = limiter
        self._engine = limiter.engine
        self.store: Final = _store_name(limiter)
        unheard = _COUNTED_ELSEWHERE if check_flag("near_limit", near_limit) else _COUNTED_ELSEWHERE | {"near_limit"}
        self._lock = Lock()
        self._heard: dict[str, int] = {kind: 0 for kind in KINDS if kind not in unheard}
        self._subscription = limiter.observe(self._hear, kinds=[*self._heard], inline=True)

    def close(self) -> None:
        """Hear no more events."""
        self._subscription.remove()

    def read(self, metric: Metric) -> Values:
        """Return the values of a metric by their labels; none where this limiter has none, or its store is away."""
        try:
            return {(*labels, self.store): value for labels, value in metric.read(self).items()}
        except StoreError:
            return {}

    def read_all(self) -> dict[Metric, Values]:
        """Return the values of all metrics."""
        return {metric: self.read(metric) for metric in METRICS.values()}

    def _hear(self, event: Event) -> None:
        with self._lock:
            self._heard[event.kind] += 1

    def _ever(self) -> Iterator[tuple[Series, Slice]]:
        return ((series, series.ever()) for series in self._engine.statistics.listed())

    def _of_routes(self) -> Iterator[tuple[str, Slice]]:
        """Yield (route, stats); stats of rules that look on stand beside those of requests."""
        return ((series.route, totals) for series, totals in self._ever() if series.route != NO_ROUTE_AT_ALL)

    @metric("requests", "counter", "{request}", "route", "outcome")
    def _requests(self) -> Mapping[Labels, Value]:
        """Requests by the template of their route and by their outcome. Each request is counted once."""
        counts: Counter[Labels] = Counter()
        for route, totals in self._of_routes():
            for outcome, count in _outcomes(totals).items():
                counts[route, outcome] += count
        return counts

    @metric("rule.requests", "counter", "{request}", "rule", "outcome")
    def _rule_requests(self) -> Mapping[Labels, Value]:
        """Requests by the rules that counted or refused them. A request under several rules is counted for each."""
        counts: Counter[Labels] = Counter()
        for series, totals in self._ever():
            outcomes = {**_outcomes(totals), SHADOW_REFUSED: totals.events.get(SHADOW_REFUSED, 0)}
            for rule in dict.fromkeys(series.rules):
                for outcome, count in outcomes.items():
                    counts[rule, outcome] += count
        return counts

    @metric("request.duration", "histogram", "s", "route")
    def _durations(self) -> Mapping[Labels, Value]:
        """The time from the middleware to the last byte of the answer, of requests that were let through."""
        by_route: dict[str, ResponseTimes] = defaultdict(ResponseTimes)
        for route, totals in self._of_routes():
            by_route[route].add(totals.rt)
        return {(route,): Times.of(times) for route, times in by_route.items()}

    @metric("request.time_in_queue", "histogram", "s", "outcome")
    def _times_in_queue(self) -> Mapping[Labels, Value]:
        """The time that requests have waited for their turn, of those that a rule made wait."""
        return {(outcome,): Times.of(times) for outcome, times in self._engine.waits.ever().items()}

    @metric("queued_requests", "gauge", "{request}")
    def _queued(self) -> Mapping[Labels, Value]:
        """Requests that wait for their turn now."""
        return {(): self._engine.waits.waiting}

    @metric("active_permits", "gauge", "{permit}")
    def _permits(self) -> Mapping[Labels, Value]:
        """Permits of concurrency limits that requests hold now."""
        held = self._limiter.store.permits_held()
        return {} if held is None else {(): held}

    @metric("active_bans", "gauge", "{ban}")
    def _bans(self) -> Mapping[Labels, Value]:
        """Bans in force, as far as this process knows them."""
        count = self._limiter.store.bans.count()
        return {} if count is None else {(): count}

    @metric("keys", "gauge", "{key}")
    def _keys(self) -> Mapping[Labels, Value]:
        """Windows that a store in memory holds now."""
        store = self._limiter.store
        return {(): store.stats().keys} if isinstance(store, MemoryStore) else {}

    @metric("shared_hits", "counter", "{hit}")
    def _shared_hits(self) -> Mapping[Labels, Value]:
        """Hits that a store in memory has counted in shared cells, because it was full."""
        store = self._limiter.store
        return {(): store.stats().shared_hits} if isinstance(store, MemoryStore) else {}

    @metric("events", "counter", "{event}", "kind")
    def _events(self) -> Mapping[Labels, Value]:
        """Events by their kind."""
        with self._lock:
            return {(kind,): count for kind, count in self._heard.items()}

    @metric("dropped_events", "counter", "{event}")
    def _dropped_events(self) -> Mapping[Labels, Value]:
        """Events that were dropped, because observers were too slow."""
        return {(): self._limiter.event_stats().dropped}

    @metric("store.failures", "counter", "{question}")
    def _failures(self) -> Mapping[Labels, Value]:
        """Questions that the store did not answer in time, or answered with an error."""
        failover = self._engine.failover
        return {(): 0 if failover is None else failover.failures}

    @metric("store.up", "gauge", "1")
    def _store_up(self) -> Mapping[Labels, Value]:
        """Whether the store answered when it was asked last: 1 if it did, 0 if not."""
        failover = self._engine.failover
        return {(): 0 if failover is not None and failover.away else 1}

    @metric("list.entries", "gauge", "{entry}", "list", "kind")
    def _list_entries(self) -> Mapping[Labels, Value]:
        """Entries of each blocklist and allowlist."""
        entries: dict[Labels, Value] = {}
        for caller in self._engine.callers.listed():
            lists = caller.lists if isinstance(caller, RateLimitMiddleware) else {}
            for kind, given in lists.items():
                files = files_of(given)
                if files is not None:
                    entries |= {(state.name, kind): state.entries for state in files.states}
                elif given is not None:
                    entries[kind, kind] = len(given)
        return entries

    @metric("build_info", "gauge", "1", "version", "compiled")
    def _build_info(self) -> Mapping[Labels, Value]:
        """Always 1; the attributes tell the version, and whether the core is compiled."""
        root = sys.modules["slidegate"]  # it hands names on, and nobody imports it
        return {(root.__version__, str(core.compiled).lower()): 1}


def _outcomes(totals: Slice) -> dict[str, int]:
    """Return how many requests had each outcome; a block that nobody else accounts for is by a limit."""
    events = totals.events
    others = {outcome: events.get(outcome, 0) for outcome in REFUSED_OTHERWISE}
    return {"passed": events.get("pass", 0), "refused": events.get("block", 0) - sum(others.values()), **others}


def _store_name(limiter: Limiter) -> str:
    """Return the name of the kind of store: ``memory``, ``lmdb`` or ``redis``; else that of its class."""
    kind = type(limiter.store)
    parts = kind.__module__.split(".")
    return parts[2] if parts[:2] == ["slidegate", "stores"] else kind.__name__.lower()
