"""Exports metrics to Prometheus by the counters, histogram and gauges of prometheus-client.

With the environment variable ``PROMETHEUS_MULTIPROC_DIR`` that library counts in files of one directory, and any worker
of the host serves the sum. Functions of gauges do not work there, so their values are set while requests end.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from contextlib import suppress
from functools import partial
from threading import Lock
from time import monotonic
from typing import Any, Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, make_asgi_app
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.routing import Router

from ..core.errors import ConfigurationError
from ..events import Outcome, Passed
from ..limiter import Limiter
from .metrics import BOUNDS_S, COUNTERS, DURATION, GAUGES, PART, STORE, Add, LimiterMetrics, Metric

DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"
SET_EVERY_S: Final = 5.0


class PrometheusMetrics(LimiterMetrics):
    """The metrics of one limiter for Prometheus.

    Args:
        limiter: The limiter; one per registry, and one per process in multi-process mode.
        registry: Where the metrics are registered; the global ``REGISTRY`` by default, and always in multi-process
            mode.

    Attributes:
        app: An ASGI application that serves the metrics, as a route or mounted: ``Route("/metrics", metrics.app)``.

    Raises:
        ConfigurationError: The registry (in multi-process mode: the process) already has the metrics of another
            limiter.
    """

    def __init__(self, limiter: Limiter, *, registry: CollectorRegistry | None = None) -> None:
        super().__init__(limiter)
        self._directory = os.environ.get(DIRECTORY, "")
        # The files of a process do not distinguish registries: in one registry a second limiter is an error.
        self.registry: CollectorRegistry = REGISTRY
        if registry is not None and not self._directory:
            self.registry = registry
        try:
            self._collectors = dict(map(self._make, (*GAUGES, *COUNTERS, DURATION)))
        except ValueError:
            raise ConfigurationError(
                f"registry: it (with {DIRECTORY}: this process) already has the metrics of another limiter; without "
                "that variable, give this one its own: PrometheusMetrics(limiter, registry=CollectorRegistry())"
            ) from None
        self._set_again_s = 0.0
        self._pending = deque[Passed | Outcome]()
        self._counting_pending = Lock()
        self._part = PART
        if self._directory:
            self._part = 1
        self._begin()
        # An object, as a route takes a function for an endpoint and not for an application.
        self.app: Final = Router(default=make_asgi_app(self._scraped()))

    def close(self) -> None:
        """Stop counting and unregister the metrics. A second call does nothing."""
        super().close()
        while self._collectors:
            self.registry.unregister(self._collectors.popitem()[1])

    def request(self, request: Passed | Outcome, /) -> None:
        """Keep a request until it is counted; for other processes count it now, and set the gauges that they read."""
        self._pending.append(request)
        if len(self._pending) < self._part:
            return
        self._count_pending()
        if self._directory and monotonic() >= self._set_again_s:
            self._set_again_s = monotonic() + SET_EVERY_S
            self._set_gauges()
            # Again later: if no further request comes, the last values must not be those of a busy moment.
            with suppress(RuntimeError):  # no event loop of asyncio runs in this thread
                asyncio.get_running_loop().call_later(SET_EVERY_S, self._set_gauges)

    def _count_pending(self) -> None:
        with self._counting_pending:
            self._count([self._pending.popleft() for _ in range(len(self._pending))])

    def _make(self, metric: Metric) -> tuple[Metric, Any]:
        name = metric.name.replace(".", "_")
        labels = (*metric.labels, STORE)
        if metric is DURATION:
            name += "_seconds"
            return metric, self._fresh(Histogram(name, metric.help, labels, registry=self.registry, buckets=BOUNDS_S))
        if metric in COUNTERS:
            return metric, self._fresh(Counter(name, metric.help, labels, registry=self.registry))
        gauge = Gauge(name, metric.help, labels, registry=self.registry, multiprocess_mode=metric.aggregation)
        if not self._directory:
            gauge.labels(self._store).set_function(partial(self._read, metric))
        return metric, gauge

    def _make_adder(self, metric: Metric, *labels: str) -> Add:
        labelled: Any = self._collectors[metric].labels(*labels, self._store)
        if metric is DURATION:
            add: Add = labelled.observe
        else:
            add = labelled.inc
        return add

    def _fresh(self, collector: Any) -> Any:
        """Let a scrape find all requests in a counter or histogram, even if it reads that one alone."""
        collect = collector.collect

        def collect_all() -> Any:
            self._count_pending()
            return collect()

        collector.collect = collect_all
        return collector

    def _set_gauges(self) -> None:
        if not self._collectors:  # after `close`
            return
        for metric in GAUGES:
            self._collectors[metric].labels(self._store).set(self._read(metric))

    def _scraped(self) -> CollectorRegistry:
        """Return the registry to export; in multi-process mode, that of all workers."""
        if not self._directory:
            return self.registry
        self._set_gauges()
        together = CollectorRegistry()
        MultiProcessCollector(together, self._directory)  # type: ignore[no-untyped-call]
        return together
