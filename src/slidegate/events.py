"""The reports of a limiter and a middleware: events and outcomes for observers, and findings at start-up."""

from __future__ import annotations

from .core.events import Event
from .limiter.observers import KINDS, Observer, Outcome, Passed, Subscription
from .web.policy import Finding

__all__ = ["KINDS", "Event", "Finding", "Observer", "Outcome", "Passed", "Subscription"]
