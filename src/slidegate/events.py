"""The types that a limiter and a middleware report: events, outcomes, and findings at startup."""

from __future__ import annotations

from .core.store import Event
from .limiter.observers import Observer, Outcome, Subscription
from .web.checks import Finding

__all__ = ["Event", "Finding", "Observer", "Outcome", "Subscription"]
