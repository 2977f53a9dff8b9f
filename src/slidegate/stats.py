"""What the methods of a limiter tell of its work: stats, and the windows of a key."""

from __future__ import annotations

from .core.views import WindowSlice, WindowView
from .limiter.inspect import KeyView
from .limiter.stats import Chart, Point, Stats, Traffic, Worker
from .stores.memory.store import MemoryStats

__all__ = [
    "Chart",
    "KeyView",
    "MemoryStats",
    "Point",
    "Stats",
    "Traffic",
    "WindowSlice",
    "WindowView",
    "Worker",
]
