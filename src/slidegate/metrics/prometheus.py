"""Metrics in the words of Prometheus, by prometheus-client's own counters, histograms and gauges.

Several workers of a host count in files of one directory, which the library reads whichever worker is asked: that is
its multi-process mode, switched on by ``PROMETHEUS_MULTIPROC_DIR`` in the environment. Without it each worker has only
values of its own, and says so with the label ``process``.
"""

from __future__ import annotations

import gzip
import os
from glob import glob
from time import monotonic
from typing import Any, Final
from weakref import WeakSet

import anyio
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, multiprocess
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from ..core.errors import ConfigurationError, quoted
from ..core.logs import logger
from ..limiter import Limiter
from ..limiter.observers import Outcome
from ..web.checks import Finding, many_workers
from .definitions import BOUNDS_S, METRICS, READ, Labels, LimiterMetrics, Metric

DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"
READ_EVERY_S: Final = 5.0
_METHODS: Final = ("GET", "HEAD")
_FAST: Final = 1


class PrometheusMetrics:
    """The metrics of one limiter for Prometheus.

    Args:
        limiter: The limiter; one for each registry, and one for each process in the multi-process mode.
        registry: Where the metrics are registered; by default the registry that all libraries share.

    Attributes:
        registry: The registry.
        findings: What is probably a mistake; it was logged once.
        app: An ASGI application that answers Prometheus: ``app.mount("/metrics", metrics.app)``.

    Raises:
        ConfigurationError: A value cannot work, or the registry, or this process in the multi-process mode, has the
            metrics of another limiter.
    """

    def __init__(self, limiter: Limiter, *, registry: CollectorRegistry | None = None) -> None:
        if registry is not None and not callable(getattr(registry, "register", None)):
            raise ConfigurationError(
                f"registry: expected a CollectorRegistry of prometheus_client, not {quoted(registry)}"
            )
        self.registry: CollectorRegistry = REGISTRY if registry is None else registry
        directory, workers = os.environ.get(DIRECTORY, ""), many_workers()
        self.findings = [_finding(workers)] if workers and not directory else []
        if directory and _in_this_process:
            raise ConfigurationError(
                f"limiter: with {DIRECTORY} a process has the metrics of one limiter, because its files do not tell "
                "limiters apart, and it has those of another one already"
            )
        self._instruments = _Instruments(self.registry, str(os.getpid()) if self.findings else "")
        try:
            self._metrics = _Metrics(limiter, self._instruments)
        except ConfigurationError:
            self._instruments.unregister()
            raise
        self.app: Final = Scrape(self.registry, self._metrics, directory)
        _in_this_process.add(self)
        for finding in self.findings:
            logger.warning("%s", finding)

    def close(self) -> None:
        """Count nothing more, and take the metrics out of the registry."""
        self._metrics.close()
        self._instruments.unregister()
        _in_this_process.discard(self)


_in_this_process: Final[WeakSet[PrometheusMetrics]] = WeakSet()


def _finding(workers: str) -> Finding:
    return Finding(
        "SG129",
        f"metrics are per process: with {workers} Prometheus sees another worker with each scrape; make an empty "
        f"directory at each start, and name it in the environment: {DIRECTORY}=/run/app/metrics",
    )


class _Instruments:
    """The counters, histograms and gauges of a registry.

    Args:
        registry: The registry.
        process: The value of the label ``process``; empty for no such label.

    Raises:
        ConfigurationError: The registry has the metrics of another limiter.
    """

    def __init__(self, registry: CollectorRegistry, process: str) -> None:
        self._registry = registry
        self._process = (process,) if process else ()
        self._made: dict[Metric, Counter | Histogram | Gauge] = {}
        self._labelled: dict[tuple[Metric, Labels], Any] = {}
        self._read: dict[tuple[Metric, Labels], int] = {}
        try:
            for metric in METRICS:
                self._made[metric] = self._make(metric)
        except ValueError as error:
            self.unregister()
            raise ConfigurationError(
                "registry: it has the metrics of another limiter already; give this one a registry of its own, for "
                "example PrometheusMetrics(limiter, registry=CollectorRegistry())"
            ) from error

    def _make(self, metric: Metric) -> Counter | Histogram | Gauge:
        name, help_text, registry = metric.prometheus, metric.help, self._registry
        labels = (*metric.attributes, *(("process",) if self._process else ()))
        if metric.kind == "counter":
            return Counter(name, help_text, labels, registry=registry)
        if metric.kind == "histogram":
            return Histogram(name, help_text, labels, registry=registry, buckets=BOUNDS_S)
        return Gauge(name, help_text, labels, registry=registry, multiprocess_mode=metric.together)

    def _of(self, metric: Metric, labels: Labels) -> Any:
        """Return what counts under some labels; to look it up in the library takes longer than to count."""
        known = self._labelled.get((metric, labels))
        if known is None:
            known = self._labelled[metric, labels] = self._made[metric].labels(*labels, *self._process)
        return known

    def add(self, metric: Metric, labels: Labels, amount: int) -> None:
        """Add to a counter."""
        self._of(metric, labels).inc(amount)

    def record(self, metric: Metric, labels: Labels, value_s: float) -> None:
        """Record a time in a histogram."""
        self._of(metric, labels).observe(value_s)

    def show(self, metric: Metric, labels: Labels, value: int) -> None:
        """Set a gauge, or have a counter reach a value that was read."""
        if metric.kind == "gauge":
            self._of(metric, labels).set(value)
            return
        before = self._read.get((metric, labels), 0)
        self._read[metric, labels] = max(value, before)
        self.add(metric, labels, max(value - before, 0))

    def unregister(self) -> None:
        """Take the metrics out of the registry."""
        for made in self._made.values():
            self._registry.unregister(made)
        self._made.clear()


class _Metrics(LimiterMetrics):
    """Counts, and shows what is read, at most every `READ_EVERY_S` while requests come, and before each scrape."""

    def __init__(self, limiter: Limiter, instruments: _Instruments) -> None:
        self._shown = instruments
        self._read_again_s = 0.0
        super().__init__(limiter, instruments)
        self.read_all()

    def request(self, outcome: Outcome, /) -> None:
        """Count a request."""
        super().request(outcome)
        if monotonic() >= self._read_again_s:
            self.read_all()

    def read_all(self) -> None:
        """Show the values of everything that is read."""
        self._read_again_s = monotonic() + READ_EVERY_S
        for metric in READ:
            for labels, value in self.read(metric).items():
                self._shown.show(metric, labels, value)


class Scrape:
    """An ASGI application that shows the metrics of a registry; in the multi-process mode, those of all workers.

    They are read and written in a thread: with thousands of series that takes as long as hundreds of requests.

    Args:
        registry: The registry.
        metrics: What is read anew before.
        directory: That of the multi-process mode; empty without it.
    """

    def __init__(self, registry: CollectorRegistry, metrics: _Metrics, directory: str) -> None:
        self._registry = registry
        self._metrics = metrics
        self._directory = directory

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
        self._metrics.read_all()
        body = await anyio.to_thread.run_sync(lambda: write(self._asked()))
        headers = {"Content-Type": content_type, "Cache-Control": "no-store", "Vary": "Accept, Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            body = await anyio.to_thread.run_sync(gzip.compress, body, _FAST)
            headers["Content-Encoding"] = "gzip"
        return Response(body, headers=headers)

    def _asked(self) -> CollectorRegistry:
        """Return the registry to show."""
        if not self._directory:
            return self._registry
        _forget_dead(self._directory)
        together = CollectorRegistry()
        multiprocess.MultiProcessCollector(together, self._directory)  # type: ignore[no-untyped-call]
        return together


def _forget_dead(directory: str) -> None:
    """Take out the gauges of workers that have ended: few servers say that one was killed."""
    for path in glob(os.path.join(directory, "gauge_live*_*.db")):
        pid = path.rpartition("_")[2].removesuffix(".db")
        if pid.isdecimal() and not _lives(int(pid)):
            multiprocess.mark_process_dead(int(pid), directory)  # type: ignore[no-untyped-call]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is somebody else's
        return True
    return True
