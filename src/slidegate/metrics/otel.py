"""Metrics in the words of OpenTelemetry: counters and histograms grow with each request, gauges are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from opentelemetry.metrics import CallbackOptions, Counter, Histogram, MeterProvider, Observation, get_meter_provider

from ..core.arguments import check_flag
from ..core.errors import ConfigurationError, quoted
from ..limiter import Limiter
from .definitions import BOUNDS_S, DURATION, OBSERVED, PREFIX, READ, Labels, LimiterMetrics, Metric

_Observe = Callable[[CallbackOptions], Iterable[Observation]]


class OtelMetrics:
    """The metrics of one limiter for OpenTelemetry.

    Args:
        limiter: The limiter. Only one `OtelMetrics` at a time may have it.
        meter_provider: Makes the instruments; by default the one that is set for the whole process.
        durations: Whether the times of requests are recorded. Where the server is instrumented, it has recorded them
            already.

    Raises:
        ConfigurationError: A value cannot work, or the limiter has an `OtelMetrics` already.
    """

    def __init__(
        self, limiter: Limiter, *, meter_provider: MeterProvider | None = None, durations: bool = True
    ) -> None:
        if meter_provider is not None and not isinstance(meter_provider, MeterProvider):
            raise ConfigurationError(
                f"meter_provider: expected a MeterProvider of opentelemetry, not {quoted(meter_provider)}"
            )
        self._durations = check_flag("durations", durations)
        meter = (get_meter_provider() if meter_provider is None else meter_provider).get_meter(PREFIX)
        self._counters: dict[Metric, Counter] = {}
        self._histograms: dict[Metric, Histogram] = {}
        for metric in OBSERVED:
            name = f"{PREFIX}.{metric.name}"
            if metric.kind == "counter":
                self._counters[metric] = meter.create_counter(name, metric.unit, metric.help)
            else:
                self._histograms[metric] = meter.create_histogram(
                    name, metric.unit, metric.help, explicit_bucket_boundaries_advisory=BOUNDS_S
                )
        if isinstance(limiter, Limiter) and limiter.engine.observers.find(_Metrics) is not None:
            raise ConfigurationError("limiter: it has an OtelMetrics already; close that, or use it")
        self._metrics = _Metrics(limiter, self)
        self._closed = False
        for metric in READ:
            observe: list[_Observe] = [partial(self._observe, metric)]
            made = meter.create_observable_gauge if metric.kind == "gauge" else meter.create_observable_counter
            made(f"{PREFIX}.{metric.name}", observe, metric.unit, metric.help)

    def close(self) -> None:
        """Count, record and observe nothing any more. A second call does nothing."""
        self._closed = True
        self._metrics.close()

    def add(self, metric: Metric, labels: Labels, amount: int) -> None:
        """Add to a counter."""
        self._counters[metric].add(amount, metric.named(labels))

    def record(self, metric: Metric, labels: Labels, value_s: float) -> None:
        """Record a time in a histogram."""
        if self._durations or metric is not DURATION:
            self._histograms[metric].record(value_s, metric.named(labels))

    def _observe(self, metric: Metric, _: CallbackOptions) -> list[Observation]:
        values = {} if self._closed else self._metrics.read(metric)
        return [Observation(value, metric.named(labels)) for labels, value in values.items()]


class _Metrics(LimiterMetrics):
    """Those of OpenTelemetry, by which a limiter is known to have them."""
