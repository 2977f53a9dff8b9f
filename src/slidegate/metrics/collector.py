"""Metrics in the words of Prometheus: a collector that reads them when they are scraped."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import timedelta
from os import PathLike
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.utils import floatToGoString

from ..core.errors import ConfigurationError
from ..limiter import Limiter
from .catalogue import BOUNDS_S, CATALOGUE, Metric
from .scrape import Scrape
from .values import Times, Values, ValuesOfLimiter
from .worker_files import WorkerFiles

DIRECTORY_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The variable by which the client library of Prometheus learns of its directory for several workers."""
_LE: Final = tuple(floatToGoString(bound) for bound in (*BOUNDS_S, float("inf")))  # type: ignore[no-untyped-call]


class PrometheusMetrics:
    """The metrics of one limiter for Prometheus.

    They are read when Prometheus asks, and nothing is counted for them when a request comes. With several workers each
    writes its values into `directory` now and then, and whichever worker is asked adds all of them up.

    Args:
        limiter: The limiter; one for each registry.
        registry: Where the metrics are registered; by default the registry that all libraries share. Where
            ``PROMETHEUS_MULTIPROC_DIR`` is set, it is by default a new one that reads this directory.
        directory: A directory on this host that all workers share, and nobody else; by default the value of
            ``PROMETHEUS_MULTIPROC_DIR``. Without either, the metrics are those of this process.
        interval: How often a worker writes its values there, 100 ms to 60 s.
        near_limit: Whether events ``near_limit`` are counted. Every decision is looked at for them, and nothing else in
            the metrics costs a request anything.

    Attributes:
        registry: The registry.
        app: An ASGI application that answers Prometheus: ``app.mount("/metrics", metrics.app)``.

    Raises:
        ConfigurationError: A value cannot work, or the registry has the metrics of another limiter.
    """

    def __init__(
        self,
        limiter: Limiter,
        *,
        registry: CollectorRegistry | None = None,
        directory: str | PathLike[str] | None = None,
        interval: str | float | timedelta = "5s",
        near_limit: bool = True,
    ) -> None:
        if registry is not None and not callable(getattr(registry, "register", None)):
            raise ConfigurationError(f"registry: expected a CollectorRegistry of prometheus_client, not {registry!r}")
        shared = os.environ.get(DIRECTORY_VARIABLE) or None
        self._own_values = ValuesOfLimiter(limiter, near_limit=near_limit)
        self._files: WorkerFiles | None = None
        try:
            if directory is not None or shared is not None:
                self._files = WorkerFiles(self._own_values, limiter.engine, directory or shared, interval)
            if registry is None and shared is not None:
                registry = CollectorRegistry()
                MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
            self.registry: CollectorRegistry = REGISTRY if registry is None else registry
            self._register()
        except BaseException:
            self._own_values.close()
            if self._files is not None:
                self._files.close()
            raise
        self.app: Final = Scrape(self.registry)

    def collect(self) -> Iterable[Family]:
        """Read all metrics; the registry calls this."""
        values = self._own_values.read_all() if self._files is None else self._files.read()
        return [_family(metric, values.get(metric, {})) for metric in CATALOGUE]

    def describe(self) -> Iterable[Family]:
        """Return all metrics without values, so that the registry knows their names."""
        return [_family(metric, {}) for metric in CATALOGUE]

    def close(self) -> None:
        """Take the metrics out of the registry; what this worker has counted stays in the directory."""
        self.registry.unregister(self)
        self._own_values.close()
        if self._files is not None:
            self._files.close()

    def _register(self) -> None:
        try:
            self.registry.register(self)
        except ValueError as error:
            raise ConfigurationError(
                "registry: it has the metrics of another limiter already; give this one a registry of its own, for "
                "example PrometheusMetrics(limiter, registry=CollectorRegistry())"
            ) from error


def _family(metric: Metric, values: Values) -> Family:
    """Return the values of a metric as Prometheus has them."""
    name, about, labels = metric.prometheus, metric.help, metric.attributes
    family: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
    if metric.kind == "counter":
        family = CounterMetricFamily(name, about, labels=labels)
    elif metric.kind == "gauge":
        family = GaugeMetricFamily(name, about, labels=labels)
    else:
        family = HistogramMetricFamily(name, about, labels=labels, unit="seconds")
    for labelled, value in values.items():
        if isinstance(family, HistogramMetricFamily):
            if isinstance(value, Times):
                family.add_metric(labelled, _buckets(value), value.sum_us / 1_000_000)
        elif isinstance(value, int):
            family.add_metric(labelled, value)
    return family


def _buckets(times: Times) -> list[tuple[str, float]]:
    """Return how many times do not exceed each bound."""
    reached, found = 0, []
    for le, count in zip(_LE, times.counts, strict=True):
        reached += count
        found.append((le, float(reached)))
    return found
