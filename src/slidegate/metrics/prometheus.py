"""Exports metrics to Prometheus through the counters, histograms and gauges of prometheus-client.

The environment variable ``PROMETHEUS_MULTIPROC_DIR`` enables the multi-process mode of that library: the workers of a
host count in files of one directory, and any worker serves the sum. Without it each of several workers exports only
its own values, with the label ``process``.
"""

from __future__ import annotations

import asyncio
import gzip
import os
from contextlib import suppress
from glob import glob
from threading import Lock
from time import monotonic
from typing import Any, Final
from weakref import WeakSet

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, multiprocess
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..core.errors import ConfigurationError, quoted
from ..core.logs import logger
from ..limiter import Limiter
from ..limiter.observers import Outcome
from ..stores.forks import begin_anew_in_child
from ..web.checks import Finding, many_workers
from .definitions import BOUNDS_S, METRICS, STORE, Labels, LimiterMetrics, Metric

DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"
READ_EVERY_S: Final = 5.0
_FAST: Final = 1


class PrometheusMetrics(LimiterMetrics):
    """The metrics of one limiter for Prometheus.

    Args:
        limiter: The limiter; one per registry, and one per process in multi-process mode.
        registry: Where the metrics are registered; the global ``REGISTRY`` by default.

    Attributes:
        registry: The registry.
        findings: Probable mistakes; they were logged once.
        app: An ASGI application that serves the metrics: ``app.mount("/metrics", metrics.app)``.

    Raises:
        ConfigurationError: An argument is invalid, or the registry (in multi-process mode: the process) already has
            the metrics of another limiter.
    """

    def __init__(self, limiter: Limiter, *, registry: CollectorRegistry | None = None) -> None:
        if registry is not None and not callable(getattr(registry, "register", None)):
            raise ConfigurationError(
                f"registry: expected a CollectorRegistry of prometheus_client, not {quoted(registry)}"
            )
        super().__init__(limiter)
        self.registry: CollectorRegistry = REGISTRY if registry is None else registry
        self._directory, workers = os.environ.get(DIRECTORY, ""), many_workers()
        self.findings = [_finding(workers)] if workers and not self._directory else []
        if self._directory and _in_this_process:
            raise ConfigurationError(
                f"limiter: with {DIRECTORY} a process can export the metrics of only one limiter, because its files "
                "do not distinguish limiters; it already exports those of another one"
            )
        self._process = _own_process() if self.findings else ()
        self._made: dict[Metric, Counter | Histogram | Gauge] = {}
        self.begin_anew()
        begin_anew_in_child(self.begin_anew)
        self._make_all()
        self._counted: dict[tuple[Metric, Labels], int] = {}
        self._reading = Lock()
        self._read_again_s = 0.0
        self._read_all()
        self._begin()
        self.app: Final = Route("/{path:path}", self._answer)
        if self._directory:
            _in_this_process.add(self)
        for finding in self.findings:
            logger.warning("%s", finding)

    def begin_anew(self) -> None:
        """Forget the labelled children, which in a child of `fork` are those of the parent."""
        self._labelled: dict[tuple[Metric, Labels], Any] = {}

    def close(self) -> None:
        """Stop counting and unregister the metrics."""
        super().close()
        self._unregister()
        _in_this_process.discard(self)

    def request(self, outcome: Outcome, /) -> None:
        """Count a request, and set the gauges, at most every `READ_EVERY_S`.

        They are set again that much later: if no further request comes, the last values must not be those of a moment
        at which requests were in progress.
        """
        super().request(outcome)
        if monotonic() >= self._read_again_s:
            self._read_again_s = monotonic() + READ_EVERY_S
            self._read_all()
            with suppress(RuntimeError):  # no event loop of asyncio runs in this thread
                asyncio.get_running_loop().call_later(READ_EVERY_S, self._read_all)

    def _make_all(self) -> None:
        labels = ("process",) if self._process else ()
        try:
            for metric in METRICS:
                self._made[metric] = _make(metric, (*metric.attributes, STORE, *labels), self.registry)
        except ValueError as error:
            self._unregister()
            raise ConfigurationError(
                "registry: it has the metrics of another limiter already; give this one a registry of its own, for "
                "example PrometheusMetrics(limiter, registry=CollectorRegistry())"
            ) from error

    def _unregister(self) -> None:
        for made in self._made.values():
            self.registry.unregister(made)
        self._made.clear()

    def _of(self, metric: Metric, labels: Labels) -> Any:
        """Return the labelled child of a metric; cached, because `labels` is slower than counting."""
        known = self._labelled.get((metric, labels))
        if known is None:
            if self._process and self._process != _own_process():
                self._leave_parent()
            labelled = self._made[metric].labels(*labels, self._store, *self._process)
            known = self._labelled[metric, labels] = labelled
        return known

    def _leave_parent(self) -> None:
        """Replace the series of the process that has forked this one, as a server does that preloads, by own ones."""
        for made in self._made.values():
            made.clear()
        self._process = _own_process()
        self._count_from_zero()

    def _add(self, metric: Metric, labels: Labels, amount: int) -> None:
        self._of(metric, labels).inc(amount)

    def _record(self, metric: Metric, labels: Labels, value_s: float) -> None:
        self._of(metric, labels).observe(value_s)

    def _read_all(self) -> None:
        """Set the gauges, and raise the counters to the values read."""
        for metric in list(self._made):  # none after `close`
            values = {} if metric.read is None else self._read(metric.read)
            for labels, value in values.items():
                if metric.kind == "gauge":
                    self._of(metric, labels).set(value)
                else:
                    self._raise(metric, labels, value)

    def _raise(self, metric: Metric, labels: Labels, value: int) -> None:
        """Raise a counter to a value; several threads may have read it."""
        with self._reading:
            before = self._counted.get((metric, labels), 0)
            self._counted[metric, labels] = max(value, before)
        self._add(metric, labels, max(value - before, 0))

    def _answer(self, request: Request) -> Response:
        """Answer a scrape. A sync endpoint, so it runs in a thread: thousands of series would block the event loop."""
        write, content_type = choose_encoder(request.headers.get("accept", ""))
        self._read_all()
        body = write(self._scraped())
        headers = {"Content-Type": content_type, "Cache-Control": "no-store", "Vary": "Accept, Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            body = gzip.compress(body, _FAST)
            headers["Content-Encoding"] = "gzip"
        return Response(body, headers=headers)

    def _scraped(self) -> CollectorRegistry:
        """Return the registry to export; in multi-process mode, that of all workers."""
        if not self._directory:
            return self.registry
        _forget_dead(self._directory)
        together = CollectorRegistry()
        multiprocess.MultiProcessCollector(together, self._directory)  # type: ignore[no-untyped-call]
        return together


_in_this_process: Final[WeakSet[PrometheusMetrics]] = WeakSet()


def _own_process() -> Labels:
    """Return the value of the label ``process``."""
    return (str(os.getpid()),)


def _finding(workers: str) -> Finding:
    return Finding(
        "SG129",
        f"metrics are per process: with {workers}, each Prometheus scrape may reach another worker; create an empty "
        f"directory at each start, and name it in the environment: {DIRECTORY}=/run/app/metrics",
    )


def _make(metric: Metric, labels: Labels, registry: CollectorRegistry) -> Counter | Histogram | Gauge:
    name, help_text = metric.prometheus, metric.help
    if metric.kind == "counter":
        return Counter(name, help_text, labels, registry=registry)
    if metric.kind == "histogram":
        return Histogram(name, help_text, labels, registry=registry, buckets=BOUNDS_S)
    return Gauge(name, help_text, labels, registry=registry, multiprocess_mode=metric.together)


def _forget_dead(directory: str) -> None:
    """Remove the gauges of workers that have ended; few servers call `mark_process_dead` for a killed worker."""
    for path in glob(os.path.join(directory, "gauge_live*_*.db")):
        pid = path.rpartition("_")[2].removesuffix(".db")
        if pid.isdecimal() and not _lives(int(pid)):
            multiprocess.mark_process_dead(int(pid), directory)  # type: ignore[no-untyped-call]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # PermissionError: the process of another user
    return True
