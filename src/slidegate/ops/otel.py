"""Exports metrics to OpenTelemetry: requests update counters and a histogram, callbacks read the gauges."""

from __future__ import annotations

from functools import partial
from math import isnan

from opentelemetry.metrics import CallbackOptions, Counter, Histogram, MeterProvider, Observation, get_meter_provider

from ..limiter import Limiter
from .metrics import BOUNDS_S, COUNTERS, DURATION, GAUGES, PREFIX, STORE, Add, LimiterMetrics, Metric


class OtelMetrics(LimiterMetrics):
    """The metrics of one limiter for OpenTelemetry.

    Args:
        meter_provider: Creates the instruments; the global provider by default.
        durations: Whether to record the durations of requests; False if the server's instrumentation records them.
    """

    def __init__(
        self, limiter: Limiter, *, meter_provider: MeterProvider | None = None, durations: bool = True
    ) -> None:
        self._has_durations = durations
        super().__init__(limiter)
        self._is_open = True
        if meter_provider is None:
            meter_provider = get_meter_provider()
        meter = meter_provider.get_meter(PREFIX)
        self._instruments: dict[Metric, Counter | Histogram] = {
            metric: meter.create_counter(metric.name, metric.unit, metric.help) for metric in COUNTERS
        }
        self._instruments[DURATION] = meter.create_histogram(
            DURATION.name, DURATION.unit, DURATION.help, explicit_bucket_boundaries_advisory=BOUNDS_S
        )
        for gauge in GAUGES:
            meter.create_observable_gauge(gauge.name, [partial(self._observe, gauge)], gauge.unit, gauge.help)
        self._begin()

    def close(self) -> None:
        """Stop exporting. A second call does nothing."""
        self._is_open = False
        super().close()

    def _make_adder(self, metric: Metric, *labels: str) -> Add:
        names = [f"{PREFIX}.{label}" for label in (*metric.labels, STORE)]
        attributes = dict(zip(names, (*labels, self._store), strict=True))
        instrument = self._instruments[metric]
        if isinstance(instrument, Counter):
            return partial(instrument.add, attributes=attributes)
        if not self._has_durations:
            return lambda _: None
        return partial(instrument.record, attributes=attributes)

    def _observe(self, gauge: Metric, _: CallbackOptions) -> list[Observation]:
        value = self._read(gauge)
        if not self._is_open or isnan(value):
            return []
        return [Observation(value, {f"{PREFIX}.{STORE}": self._store})]
