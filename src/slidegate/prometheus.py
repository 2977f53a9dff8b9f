"""Metrics for Prometheus. Requires the extra `slidegate[prometheus]`."""

from __future__ import annotations

try:
    from .ops.prometheus import PrometheusMetrics
except ModuleNotFoundError as error:
    raise ImportError(
        f'PrometheusMetrics needs the package {error.name}: pip install "slidegate[prometheus]"'
    ) from error

__all__ = ["PrometheusMetrics"]
