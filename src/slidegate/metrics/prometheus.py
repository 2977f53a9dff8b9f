"""Metrics in the words of Prometheus: a collector that reads them when they are scraped.

Where workers share a store, each publishes its values there with its other stats, and whichever is asked shows those
of all. All of them show what was published, also of themselves, so that no counter falls because another worker was
asked. Each worker has a label of its own: its counters end with it, and Prometheus adds up the rates of the others.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

import anyio
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.utils import floatToGoString
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from ..core.errors import ConfigurationError, StoreError
from ..limiter import Limiter
from .definitions import BOUNDS_S, METRICS, LimiterMetrics, Metric, Times, Value, Values

SECTION: Final = "metrics"
WORKER: Final = "worker"
"""The label that tells workers apart, where they share a store."""
_METHODS: Final = ("GET", "HEAD")
_FAST: Final = 1
MAX_VALUES_BYTES: Final = 4 << 20
_LE: Final = tuple(floatToGoString(bound) for bound in (*BOUNDS_S, float("inf")))  # type: ignore[no-untyped-call]

_All: TypeAlias = Mapping[Metric, Values]


class PrometheusMetrics:
    """The metrics of one limiter for Prometheus.

    They are read when Prometheus asks, and nothing is counted for them when a request comes. Where the store is shared,
    whichever worker is asked shows the stats that all have published, each with the label ``worker``; else a worker
    shows its own.

    Args:
        limiter: The limiter; one for each registry.
        registry: Where the metrics are registered; by default the registry that all libraries share.
        near_limit: Whether events ``near_limit`` are counted. Every decision is looked at for them, and nothing else in
            the metrics costs a request anything.

    Attributes:
        registry: The registry.
        app: An ASGI application that answers Prometheus: ``app.mount("/metrics", metrics.app)``.

    Raises:
        ConfigurationError: A value cannot work, or the registry has the metrics of another limiter.
    """

    def __init__(self, limiter: Limiter, *, registry: CollectorRegistry | None = None, near_limit: bool = True) -> None:
        if registry is not None and not callable(getattr(registry, "register", None)):
            raise ConfigurationError(f"registry: expected a CollectorRegistry of prometheus_client, not {registry!r}")
        self._values = LimiterMetrics(limiter, near_limit=near_limit)
        self._engine = limiter.engine
        self._shared = self._engine.publisher.publishes
        self.registry: CollectorRegistry = REGISTRY if registry is None else registry
        try:
            self.registry.register(self)
        except ValueError as error:
            self._values.close()
            raise ConfigurationError(
                "registry: it has the metrics of another limiter already; give this one a registry of its own, for "
                "example PrometheusMetrics(limiter, registry=CollectorRegistry())"
            ) from error
        if self._shared:
            self._engine.publisher.add_section(SECTION, lambda: packed(self._values.read_all()))
        self.app: Final = Scrape(self.registry, self._ask_workers if self._shared else None)

    def collect(self) -> Iterable[Family]:
        """Read all metrics; the registry calls this. Who asks past `app` sees this worker alone."""
        by_worker = _of_workers.get() or {"": self._values.read_all()}
        for metric in METRICS.values():
            family = self._family(metric)
            for worker, values in by_worker.items():
                label = (worker,) if self._shared else ()
                for labels, value in values.get(metric, {}).items():
                    _add(family, (*labels, *label), value)
            yield family

    def describe(self) -> Iterable[Family]:
        """Return all metrics without values, so that the registry knows their names."""
        return [self._family(metric) for metric in METRICS.values()]

    def close(self) -> None:
        """Take the metrics out of the registry."""
        self.registry.unregister(self)
        self._values.close()

    def _family(self, metric: Metric) -> Family:
        name, labels = metric.prometheus, (*metric.attributes, *((WORKER,) if self._shared else ()))
        if metric.kind == "histogram":
            return HistogramMetricFamily(name, metric.help, labels=labels, unit="seconds")
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        return kind(name, metric.help, labels=labels)

    async def _ask_workers(self) -> None:
        """Have `collect` show what all workers have published, if the store answers."""
        all_workers = self._engine.all_workers
        try:
            sections = await all_workers.sections(SECTION)
            if not any(section.worker.here for section in sections):
                await self._engine.publisher.publish()
                sections = await all_workers.sections(SECTION)
        except StoreError:
            sections = []
        _of_workers.set({section.worker.name: unpacked(section.value) for section in sections})


_of_workers: Final[ContextVar[Mapping[str, _All] | None]] = ContextVar("of_workers", default=None)
"""What the scrape that is under way shows."""


class Scrape:
    """An ASGI application that shows the metrics of a registry.

    They are read and written in a thread: with thousands of series that takes as long as hundreds of requests.

    Args:
        registry: The registry.
        prepare: Called before the registry is read, in the same context.
    """

    def __init__(self, registry: CollectorRegistry, prepare: Callable[[], Awaitable[None]] | None = None) -> None:
        self._registry = registry
        self._prepare = prepare

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http":
            response = await self._answer(Request(scope))
            await response(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": ""})

    async def _answer(self, request: Request) -> Response:
        if request.method not in _METHODS:
            return PlainTextResponse("Method Not Allowed", 405, {"Allow": ", ".join(_METHODS)})
        write, content_type = choose_encoder(request.headers.get("accept", ""))
        if self._prepare is not None:
            await self._prepare()
        body = await anyio.to_thread.run_sync(write, self._registry)
        headers = {"Content-Type": content_type, "Cache-Control": "no-store", "Vary": "Accept, Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            body = await anyio.to_thread.run_sync(gzip.compress, body, _FAST)
            headers["Content-Encoding"] = "gzip"
        return Response(body, headers=headers)


def packed(values: _All) -> str:
    """Return the values of a worker as text: 200 series have 80 KB of JSON, more than a section may have."""
    listed = {
        name: [
            [labels, value if isinstance(value, int) else [value.sum_us, *value.counts]]
            for labels, value in values[metric].items()
        ]
        for name, metric in METRICS.items()
        if metric in values
    }
    return base64.b85encode(zlib.compress(json.dumps(listed, separators=(",", ":")).encode())).decode()


def unpacked(text: Any) -> _All:
    """Undo `packed`; what another version has published, or nobody, is nothing."""
    try:
        listed = json.loads(zlib.decompressobj().decompress(base64.b85decode(text), MAX_VALUES_BYTES))
        return {
            METRICS[name]: {tuple(map(str, labels)): _value(METRICS[name], value) for labels, value in of}
            for name, of in listed.items()
            if name in METRICS
        }
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, zlib.error):
        return {}


def _value(metric: Metric, written: Any) -> Value:
    if metric.kind != "histogram":
        return int(written)
    sum_us, *counts = map(int, written)
    if len(counts) != len(_LE):
        raise ValueError(f"{metric.name} has {len(counts)} buckets, and not {len(_LE)}")
    return Times(tuple(counts), sum_us)


def _add(family: Any, labels: tuple[str, ...], value: Value) -> None:
    """Add a value to a family of Prometheus."""
    if isinstance(value, int):
        family.add_metric(labels, value)
        return
    reached, buckets = 0, []
    for le, count in zip(_LE, value.counts, strict=True):
        reached += count
        buckets.append((le, float(reached)))
    family.add_metric(labels, buckets, value.sum_us / 1_000_000)
