"""Metrics, a dashboard and alert rules."""
