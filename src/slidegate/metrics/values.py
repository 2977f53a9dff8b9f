"""The values of the metrics of one limiter in this process.

Nothing is counted for a metric when a request comes. The statistics of the limiter, its store and its lists know the
values, and are asked when somebody wants to see them. Only events are heard as they happen, and those are rare; the
kinds that would come with each refused request are left out, because the statistics have them already.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from typing import Final, NamedTuple, TypeAlias

from .. import core
from ..core.arguments import check_flag
from ..core.errors import ConfigurationError, StoreError
from ..core.networks import Networks
from ..core.statistics.series import Series
from ..core.statistics.slices import Slice
from ..core.store import Event
from ..limiter import Limiter
from ..limiter.events import KINDS
from ..limiter.stats import NO_ROUTE_AT_ALL
from ..stores.memory.store import MemoryStore
from ..web.middleware import RateLimitMiddleware
from ..web.network_files import NetworkFiles
from ..web.reload import ReloadingMiddleware
from . import catalogue
from .catalogue import CATALOGUE, OUTCOMES, SHADOW_REFUSED, Metric

Labels: TypeAlias = tuple[str, ...]
"""The values of the attributes of a metric, in their order."""


class Times(NamedTuple):
    """The value of a histogram.

    Attributes:
        counts: How many times lie in each bucket of `BOUNDS_S`, the last one being of all longer times.
        sum_us: The sum of all times in microseconds.
    """

    counts: tuple[int, ...]
    sum_us: int


Value: TypeAlias = int | Times
Values: TypeAlias = dict[Labels, Value]

_SHUT: Final = OUTCOMES[2:]


def together(values: Iterable[Value]) -> Value:
    """Return the sum of counts, or of histograms."""
    listed = list(values)
    times = [value for value in listed if isinstance(value, Times)]
    if not times:
        return sum(value for value in listed if isinstance(value, int))
    counts = tuple(map(sum, zip(*(value.counts for value in times), strict=True)))
    return Times(counts, sum(value.sum_us for value in times))


class EventCounts:
    """Counts events by their kind, in the thread where they happen."""

    inline = True

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[str, int] = defaultdict(int)

    def __call__(self, event: Event) -> None:
        """Count an event."""
        with self._lock:
            self._counts[event.kind] += 1

    def counts(self) -> dict[str, int]:
        """Return how many events of each kind came so far."""
        with self._lock:
            return dict(self._counts)


class ValuesOfLimiter:
    """Reads the metrics of one limiter.

    Args:
        limiter: The limiter.
        near_limit: Whether the event ``near_limit`` is counted, for which every decision is looked at.

    Raises:
        ConfigurationError: `limiter` is no limiter.
    """

    def __init__(self, limiter: Limiter, *, near_limit: bool) -> None:
        if not isinstance(limiter, Limiter):
            raise ConfigurationError(f"limiter: expected a Limiter, for example Limiter(), not {limiter!r}")
        self._limiter = limiter
        self._engine = limiter.engine
        self.store: Final = _named(limiter)
        """The value of the attribute ``store``."""
        self._heard = EventCounts()
        unheard = _COUNTED_ELSEWHERE if check_flag("near_limit", near_limit) else _COUNTED_ELSEWHERE | {"near_limit"}
        kinds = [kind for kind in KINDS if kind not in unheard]
        self._kinds: Final = kinds
        self._subscription = limiter.observe(self._heard, kinds=kinds, inline=True)
        self._readers: Final[Mapping[Metric, Callable[[], Values]]] = {
            catalogue.REQUESTS: self._requests,
            catalogue.RULE_REQUESTS: self._rule_requests,
            catalogue.DURATION: self._durations,
            catalogue.TIME_IN_QUEUE: self._times_in_queue,
            catalogue.QUEUED: lambda: self._one(self._engine.waits.waiting),
            catalogue.PLACES: self._places,
            catalogue.BANS: self._bans,
            catalogue.KEYS: self._keys,
            catalogue.SHARED_HITS: self._shared_hits,
            catalogue.EVENTS: self._events,
            catalogue.DROPPED_EVENTS: lambda: self._one(limiter.event_stats().dropped),
            catalogue.FAILURES: self._failures,
            catalogue.STORE_UP: self._store_up,
            catalogue.LIST_ENTRIES: self._list_entries,
            catalogue.BUILD_INFO: self._build_info,
        }

    def close(self) -> None:
        """Hear no more events."""
        self._subscription.remove()

    def read(self, metric: Metric) -> Values:
        """Return the values of a metric by their labels; none where this limiter has none, or its store is away."""
        try:
            return self._readers[metric]()
        except StoreError:
            return {}

    def read_all(self) -> dict[Metric, Values]:
        """Return the values of all metrics."""
        return {metric: self.read(metric) for metric in CATALOGUE}

    def _one(self, value: int) -> Values:
        return {(self.store,): value}

    def _ever(self) -> list[tuple[Series, Slice]]:
        return [(series, series.ever()) for series in self._engine.statistics.listed()]

    def _requests(self) -> Values:
        by_route: dict[Labels, list[Value]] = defaultdict(list)
        for series, totals in self._ever():
            if series.route != NO_ROUTE_AT_ALL:  # figures of rules that look on stand beside those of requests
                for outcome, count in _outcomes(totals).items():
                    by_route[series.route, outcome, self.store].append(count)
        return {labels: together(counts) for labels, counts in by_route.items()}

    def _rule_requests(self) -> Values:
        by_rule: dict[Labels, list[Value]] = defaultdict(list)
        for series, totals in self._ever():
            for rule in dict.fromkeys(series.rules):
                for outcome, count in _outcomes(totals).items():
                    by_rule[rule, outcome, self.store].append(count)
                by_rule[rule, SHADOW_REFUSED, self.store].append(totals.events.get(SHADOW_REFUSED, 0))
        return {labels: together(counts) for labels, counts in by_rule.items()}

    def _durations(self) -> Values:
        by_route: dict[Labels, list[Value]] = defaultdict(list)
        for series, totals in self._ever():
            if series.route != NO_ROUTE_AT_ALL:
                by_route[series.route, self.store].append(Times(totals.rt.exported(), totals.rt.sum_us))
        return {labels: together(times) for labels, times in by_route.items()}

    def _times_in_queue(self) -> Values:
        ever = self._engine.waits.ever()
        return {(outcome, self.store): Times(times.exported(), times.sum_us) for outcome, times in ever.items()}

    def _places(self) -> Values:
        held = self._limiter.store.permits_held()
        return {} if held is None else self._one(held)

    def _bans(self) -> Values:
        count = self._limiter.store.bans.count()
        return {} if count is None else self._one(count)

    def _keys(self) -> Values:
        store = self._limiter.store
        return self._one(store.stats().keys) if isinstance(store, MemoryStore) else {}

    def _shared_hits(self) -> Values:
        store = self._limiter.store
        return self._one(store.stats().shared_hits) if isinstance(store, MemoryStore) else {}

    def _events(self) -> Values:
        counts = self._heard.counts()
        return {(kind, self.store): counts.get(kind, 0) for kind in self._kinds}

    def _failures(self) -> Values:
        failover = self._engine.failover
        return self._one(0 if failover is None else failover.failures)

    def _store_up(self) -> Values:
        failover = self._engine.failover
        return self._one(0 if failover is not None and failover.away else 1)

    def _list_entries(self) -> Values:
        found: Values = {}
        for caller in self._engine.callers.listed():
            at_work = caller.app if isinstance(caller, ReloadingMiddleware) else caller
            if not isinstance(at_work, RateLimitMiddleware):
                continue
            for kind, given in at_work.lists.items():
                if isinstance(given, NetworkFiles):
                    found |= {(name, kind, self.store): count for name, count in given.counts.items()}
                elif isinstance(given, Networks):
                    found[kind, kind, self.store] = len(given)
        return found

    def _build_info(self) -> Values:
        root = sys.modules["slidegate"]  # it hands names on, and nobody imports it
        return {(root.__version__, str(core.compiled).lower(), self.store): 1}


_COUNTED_ELSEWHERE: Final = frozenset({"refused", "shadow_refused"})


def _outcomes(totals: Slice) -> dict[str, int]:
    """Return how many requests had each outcome; a block that nobody else accounts for is by a limit."""
    events = totals.events
    shut = {outcome: events.get(outcome, 0) for outcome in _SHUT}
    return {"passed": events.get("pass", 0), "refused": events.get("block", 0) - sum(shut.values()), **shut}


def _named(limiter: Limiter) -> str:
    """Return the name of the kind of store: ``memory``, ``lmdb`` or ``redis``; else that of its class."""
    kind = type(limiter.store)
    parts = kind.__module__.split(".")
    return parts[2] if parts[:2] == ["slidegate", "stores"] else kind.__name__.lower()
