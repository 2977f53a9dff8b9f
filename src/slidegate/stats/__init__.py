"""Request counts and durations: the observer that records them and the types it returns. See `Statistics`."""

from __future__ import annotations

from .report import Chart, Point, Stats, Traffic, Worker
from .statistics import Statistics

__all__ = ["Chart", "Point", "Statistics", "Stats", "Traffic", "Worker"]
