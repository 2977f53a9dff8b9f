"""What a limiter and a middleware report: events and outcomes to observers, and findings at the start."""

from __future__ import annotations

from .core.store import Event
from .limiter.observers import Observer, Outcome, Subscription
from .web.checks import Finding

__all__ = ["Event", "Finding", "Observer", "Outcome", "Subscription"]
