"""What a limiter and a middleware tell: events to those who listen, and findings at the start."""

from __future__ import annotations

from .core.store import Event, Observer
from .limiter.events import EventStats, Subscription
from .web.findings.codes import Finding

__all__ = ["Event", "EventStats", "Finding", "Observer", "Subscription"]
