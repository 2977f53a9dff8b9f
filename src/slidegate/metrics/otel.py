"""Exports metrics to OpenTelemetry: requests update counters and histograms, callbacks read the rest."""

from __future__ import annotations

from functools import partial

from opentelemetry.metrics import CallbackOptions, Counter, Histogram, MeterProvider, Observation, get_meter_provider

from ..core.arguments import check_flag
from ..core.errors import ConfigurationError, quoted
from ..limiter import Limiter
from .definitions import BOUNDS_S, DURATION, METRICS, PREFIX, STORE, Labels, LimiterMetrics, Metric, Read


class OtelMetrics(LimiterMetrics):
    """The metrics of one limiter for OpenTelemetry.

    Args:
        limiter: The limiter. It can have one open `OtelMetrics`.
        meter_provider: Creates the instruments; the global provider by default.
        durations: Whether to record the durations of requests; False if the server's instrumentation records them.

    Raises:
        ConfigurationError: An argument is invalid, or the limiter has an `OtelMetrics` already.
    """

    def __init__(
        self, limiter: Limiter, *, meter_provider: MeterProvider | None = None, durations: bool = True
    ) -> None:
        if meter_provider is not None and not isinstance(meter_provider, MeterProvider):
            raise ConfigurationError(
                f"meter_provider: expected a MeterProvider of opentelemetry, not {quoted(meter_provider)}"
            )
        super().__init__(limiter)
        if limiter.engine.observers.find(OtelMetrics) is not None:
            raise ConfigurationError("limiter: it has an OtelMetrics already; close that, or use it")
        self._durations = check_flag("durations", durations)
        self._closed = False
        meter = (get_meter_provider() if meter_provider is None else meter_provider).get_meter(PREFIX)
        self._counters: dict[Metric, Counter] = {}
        self._histograms: dict[Metric, Histogram] = {}
        for metric in METRICS:
            named = f"{PREFIX}.{metric.name}", metric.unit, metric.help
            if metric.read is not None:
                made = meter.create_observable_gauge if metric.kind == "gauge" else meter.create_observable_counter
                made(named[0], [partial(self._observe, metric, metric.read)], *named[1:])
            elif metric.kind == "counter":
                self._counters[metric] = meter.create_counter(*named)
            else:
                made_histogram = meter.create_histogram(*named, explicit_bucket_boundaries_advisory=BOUNDS_S)
                self._histograms[metric] = made_histogram
        self._begin()

    def close(self) -> None:
        """Stop exporting; idempotent."""
        self._closed = True
        super().close()

    def _add(self, metric: Metric, labels: Labels, amount: int) -> None:
        self._counters[metric].add(amount, self._attributes(metric, labels))

    def _record(self, metric: Metric, labels: Labels, value_s: float) -> None:
        if self._durations or metric is not DURATION:
            self._histograms[metric].record(value_s, self._attributes(metric, labels))

    def _observe(self, metric: Metric, read: Read, _: CallbackOptions) -> list[Observation]:
        values = {} if self._closed else self._read(read)
        return [Observation(value, self._attributes(metric, labels)) for labels, value in values.items()]

    def _attributes(self, metric: Metric, labels: Labels) -> dict[str, str]:
        named = zip((*metric.attributes, STORE), (*labels, self._store), strict=True)
        return {f"{PREFIX}.{name}": value for name, value in named}
