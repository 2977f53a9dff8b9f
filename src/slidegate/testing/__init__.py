"""Test helpers: a clock that tests advance, and an observer that records events.

`slidegate.testing.contract` contains the tests that every store must pass; only that module requires Hypothesis.
"""

from __future__ import annotations

from .clock import FakeClock
from .observers import RecordingObserver

__all__ = ["FakeClock", "RecordingObserver"]
