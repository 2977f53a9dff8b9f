"""Metrics of a limiter for Prometheus and OpenTelemetry."""
