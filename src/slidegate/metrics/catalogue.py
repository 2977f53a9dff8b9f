"""The metrics, in one table: names, units and attributes.

The names follow the conventions of OpenTelemetry; those for Prometheus are made of them as its exporters do it: dots
become underscores, and the unit stands at the end. Attributes have values that the operator has written or that stand
in this package: the names of rules, the templates of routes, outcomes, kinds of events. A client can choose none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from ..core.statistics.histogram import EXPORTED_BOUNDS_US

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]

PREFIX: Final = "slidegate"
BOUNDS_S: Final = tuple(bound_us / 1_000_000 for bound_us in EXPORTED_BOUNDS_US)
"""The upper bounds of the buckets of all histograms, in seconds."""
OUTCOMES: Final = ("passed", "refused", "banned", "blocked", "shed", "unavailable")
"""What became of a request; ``refused`` is by a limit."""
SHADOW_REFUSED: Final = "shadow_refused"
"""The outcome under a rule that would have refused a request, but only looks on."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: The name for OpenTelemetry.
        kind: A counter only grows; a histogram is of seconds.
        unit: In the notation of UCUM; words in braces are names of things.
        attributes: The names of the attributes, in the order in which values have them; the last one of each
            metric is ``store``.
        help: A sentence for people.
    """

    name: str
    kind: Kind
    unit: str
    attributes: tuple[str, ...]
    help: str

    @property
    def prometheus(self) -> str:
        """The name for Prometheus."""
        plain = self.name.replace(".", "_")
        return plain + {"counter": "_total", "histogram": "_seconds"}.get(self.kind, "")

    def attribute(self, label: str) -> str:
        """Return the name for OpenTelemetry of an attribute."""
        return f"{PREFIX}.{label}"


REQUESTS: Final = Metric(
    "slidegate.requests",
    "counter",
    "{request}",
    ("route", "outcome", "store"),
    "Requests by the template of their route and by their outcome. Each request is counted once.",
)
RULE_REQUESTS: Final = Metric(
    "slidegate.rule.requests",
    "counter",
    "{request}",
    ("rule", "outcome", "store"),
    "Requests by the rules that counted or refused them. A request under several rules is counted for each.",
)
DURATION: Final = Metric(
    "slidegate.request.duration",
    "histogram",
    "s",
    ("route", "store"),
    "The time from the gate to the last byte of the answer, of requests that were let through.",
)
TIME_IN_QUEUE: Final = Metric(
    "slidegate.request.time_in_queue",
    "histogram",
    "s",
    ("outcome", "store"),
    "The time that requests have waited for their turn, of those that a rule made wait.",
)
QUEUED: Final = Metric(
    "slidegate.queued_requests",
    "gauge",
    "{request}",
    ("store",),
    "Requests that wait for their turn now.",
)
PLACES: Final = Metric(
    "slidegate.active_places",
    "gauge",
    "{place}",
    ("store",),
    "Places of concurrency limits that requests hold now.",
)
BANS: Final = Metric(
    "slidegate.active_bans",
    "gauge",
    "{ban}",
    ("store",),
    "Bans in force, as far as this process knows them.",
)
KEYS: Final = Metric(
    "slidegate.keys",
    "gauge",
    "{key}",
    ("store",),
    "Windows that a store in memory holds now.",
)
SHARED_HITS: Final = Metric(
    "slidegate.shared_hits",
    "counter",
    "{hit}",
    ("store",),
    "Hits that a store in memory has counted in shared cells, because it was full.",
)
EVENTS: Final = Metric(
    "slidegate.events",
    "counter",
    "{event}",
    ("kind", "store"),
    "Events by their kind.",
)
DROPPED_EVENTS: Final = Metric(
    "slidegate.dropped_events",
    "counter",
    "{event}",
    ("store",),
    "Events that were dropped, because observers were too slow.",
)
FAILURES: Final = Metric(
    "slidegate.store.failures",
    "counter",
    "{question}",
    ("store",),
    "Questions that the store did not answer in time, or answered with an error.",
)
STORE_UP: Final = Metric(
    "slidegate.store.up",
    "gauge",
    "1",
    ("store",),
    "Whether the store answered when it was asked last: 1 if it did, 0 if not.",
)
LIST_ENTRIES: Final = Metric(
    "slidegate.list.entries",
    "gauge",
    "{entry}",
    ("list", "kind", "store"),
    "Entries of each blocklist and allowlist.",
)
BUILD_INFO: Final = Metric(
    "slidegate.build_info",
    "gauge",
    "1",
    ("version", "compiled", "store"),
    "Always 1; the attributes tell the version, and whether the core is compiled.",
)
CATALOGUE: Final = (
    REQUESTS,
    RULE_REQUESTS,
    DURATION,
    TIME_IN_QUEUE,
    QUEUED,
    PLACES,
    BANS,
    KEYS,
    SHARED_HITS,
    EVENTS,
    DROPPED_EVENTS,
    FAILURES,
    STORE_UP,
    LIST_ENTRIES,
    BUILD_INFO,
)
