"""What the methods of a limiter tell of its work: stats, the windows and strikes of a key."""

from __future__ import annotations

from .core.bans.strikes import PolicyStrikes
from .core.views import WindowSlice, WindowView
from .limiter.inspect import KeyStrikes, KeyView
from .limiter.stats import Chart, Point, Stats, Traffic, Worker
from .stores.memory.store import MemoryStats

__all__ = [
    "Chart",
    "KeyStrikes",
    "KeyView",
    "MemoryStats",
    "Point",
    "PolicyStrikes",
    "Stats",
    "Traffic",
    "WindowSlice",
    "WindowView",
    "Worker",
]
