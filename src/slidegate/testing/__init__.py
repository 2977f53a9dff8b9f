"""Help for tests of limits: a clock that stands still until it is told to move, and an observer that keeps events.

`slidegate.testing.contract` holds the tests that every store has to pass; it needs Hypothesis, the rest does not.
"""

from __future__ import annotations

from .clock import FakeClock
from .observers import RecordingObserver

__all__ = ["FakeClock", "RecordingObserver"]
