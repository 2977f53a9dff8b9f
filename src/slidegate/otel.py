"""Metrics for OpenTelemetry. Requires the extra `slidegate[otel]`."""

from __future__ import annotations

try:
    from .ops.otel import OtelMetrics
except ModuleNotFoundError as error:
    raise ImportError(f'slidegate.otel needs the package {error.name}: pip install "slidegate[otel]"') from error

__all__ = ["OtelMetrics"]
