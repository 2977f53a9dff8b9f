"""Metrics for Prometheus and OpenTelemetry: read from a limiter when they are asked for, never counted per request."""
