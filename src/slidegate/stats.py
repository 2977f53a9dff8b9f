"""What the methods of a limiter tell of its work: stats, the windows and strikes of a key, files of lists."""

from __future__ import annotations

from .core.bans.strikes import PolicyStrikes
from .core.views import WindowSlice, WindowView
from .limiter.inspect import KeyStrikes, KeyView
from .limiter.stats import Chart, Point, Stats, Traffic, Worker
from .stores.memory.store import MemoryStats
from .web.network_files import NetworkFile

__all__ = [
    "Chart",
    "KeyStrikes",
    "KeyView",
    "MemoryStats",
    "NetworkFile",
    "Point",
    "PolicyStrikes",
    "Stats",
    "Traffic",
    "WindowSlice",
    "WindowView",
    "Worker",
]
