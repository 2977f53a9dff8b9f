"""Exports metrics to OpenTelemetry: requests update counters and a histogram, callbacks read the gauges."""

from __future__ import annotations

from functools import partial
from typing import Final
from weakref import WeakSet

from opentelemetry.metrics import CallbackOptions, Counter, Histogram, MeterProvider, Observation, get_meter_provider

from ..core.arguments import check_flag
from ..core.errors import ConfigurationError, quoted
from ..events import Outcome
from ..limiter import Limiter
from .metrics import BOUNDS_S, COUNTERS, DURATION, GAUGES, PREFIX, STORE, Add, LimiterMetrics, Metric


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
        self._has_durations = check_flag("durations", durations)
        super().__init__(limiter)
        if limiter in _exported:
            raise ConfigurationError("limiter: it has an OtelMetrics already; close that, or use it")
        self._is_open = True
        meter = (get_meter_provider() if meter_provider is None else meter_provider).get_meter(PREFIX)
        self._made: dict[Metric, Counter | Histogram] = {
            metric: meter.create_counter(*_named(metric)) for metric in COUNTERS
        }
        self._made[DURATION] = meter.create_histogram(*_named(DURATION), explicit_bucket_boundaries_advisory=BOUNDS_S)
        for metric in GAUGES:
            name, unit, text = _named(metric)
            meter.create_observable_gauge(name, [partial(self._observe, metric)], unit, text)
        _exported.add(limiter)
        self._begin()

    def close(self) -> None:
        """Stop exporting. A second call does nothing."""
        self._is_open = False
        _exported.discard(self._limiter)
        super().close()

    def _child(self, metric: Metric, *labels: str) -> Add:
        names = (f"{PREFIX}.{name}" for name in (*metric.labels, STORE))
        attributes = dict(zip(names, (*labels, self._store), strict=True))
        made = self._made[metric]
        return partial(made.add if isinstance(made, Counter) else made.record, attributes=attributes)

    def _children(self, outcome: Outcome) -> tuple[list[Add], Add | None]:
        counters, record = super()._children(outcome)
        return counters, record if self._has_durations else None

    def _observe(self, gauge: Metric, _: CallbackOptions) -> list[Observation]:
        value = self._read(gauge)
        is_known = self._is_open and value == value  # not a number is equal to nothing
        return [Observation(value, {f"{PREFIX}.{STORE}": self._store})] if is_known else []


_exported: Final[WeakSet[Limiter]] = WeakSet()


def _named(metric: Metric) -> tuple[str, str, str]:
    return f"{PREFIX}.{metric.name}", metric.unit, metric.help
