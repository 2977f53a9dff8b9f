"""Metrics in the words of OpenTelemetry: instruments that are observed when an exporter collects.

Histograms cannot be observed, so their times are recorded one by one: those of requests with each fold of the
statistics (256 requests, or what there is when an exporter collects), and those of waits as they end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from opentelemetry.metrics import CallbackOptions, Histogram, MeterProvider, Observation, get_meter_provider

from ..core.arguments import check_flag
from ..core.errors import ConfigurationError
from ..core.logs import logger
from ..core.statistics.series import Series
from ..limiter import Limiter
from ..limiter.stats import NO_ROUTE_AT_ALL
from .definitions import BOUNDS_S, METRICS, PREFIX, LimiterMetrics, Metric, Values

_Observe = Callable[[CallbackOptions], Iterable[Observation]]


class OtelMetrics:
    """The metrics of one limiter for OpenTelemetry.

    Args:
        limiter: The limiter. Only one `OtelMetrics` at a time may have it.
        meter_provider: Makes the instruments; by default the one that is set for the whole process.
        near_limit: Whether events ``near_limit`` are counted. Every decision is looked at for them.
        durations: Whether the times of requests are recorded. That is the dearest part, because OpenTelemetry takes
            them one by one; where the server is instrumented, it has recorded them already.

    Raises:
        ConfigurationError: A value cannot work, or the limiter has an `OtelMetrics` already.
    """

    def __init__(
        self,
        limiter: Limiter,
        *,
        meter_provider: MeterProvider | None = None,
        near_limit: bool = True,
        durations: bool = True,
    ) -> None:
        if meter_provider is not None and not isinstance(meter_provider, MeterProvider):
            raise ConfigurationError(
                f"meter_provider: expected a MeterProvider of opentelemetry, not {meter_provider!r}"
            )
        check_flag("durations", durations)
        self._values = LimiterMetrics(limiter, near_limit=near_limit)
        self._engine = limiter.engine
        if self._engine.waits.timed is not None:
            self._values.close()
            raise ConfigurationError("limiter: it has an OtelMetrics already; close that, or use it")
        meter = (get_meter_provider() if meter_provider is None else meter_provider).get_meter(PREFIX)
        self._histograms: dict[Metric, Histogram] = {}
        for metric in METRICS.values():
            observe: list[_Observe] = [partial(self._observe, metric)]
            if metric.kind == "counter":
                meter.create_observable_counter(metric.name, observe, metric.unit, metric.help)
            elif metric.kind == "gauge":
                meter.create_observable_gauge(metric.name, observe, metric.unit, metric.help)
            else:
                self._histograms[metric] = meter.create_histogram(
                    metric.name, metric.unit, metric.help, explicit_bucket_boundaries_advisory=BOUNDS_S
                )
        self._closed = False
        self._engine.waits.timed = self._record_wait
        self._follows = durations
        if durations:
            self._engine.statistics.follow(self._follow)

    def close(self) -> None:
        """Observe and record nothing any more. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._engine.waits.timed = None
            if self._follows:
                self._engine.statistics.unfollow(self._follow)
                for series in self._engine.statistics.listed():
                    series.timed = None
            self._values.close()

    def _observe(self, metric: Metric, _: CallbackOptions) -> list[Observation]:
        values: Values = {} if self._closed else self._values.read(metric)
        return [Observation(value, metric.named(labels)) for labels, value in values.items() if isinstance(value, int)]

    def _follow(self, series: Series) -> None:
        """Have the times of a route recorded from now on."""
        if series.route != NO_ROUTE_AT_ALL:
            series.timed = partial(self._record, METRICS["request.duration"], series.route)

    def _record_wait(self, outcome: str, took_us: int) -> None:
        self._record(METRICS["request.time_in_queue"], outcome, (took_us,))

    def _record(self, metric: Metric, label: str, times_us: Sequence[int]) -> None:
        """Record times. This happens in the middle of a request, which no exception of an exporter may hurt."""
        histogram, attributes = self._histograms[metric], metric.named((label, self._values.store))
        try:
            for time_us in times_us:
                histogram.record(time_us / 1_000_000, attributes)
        except Exception:
            logger.exception("recording times with %r failed", histogram)
