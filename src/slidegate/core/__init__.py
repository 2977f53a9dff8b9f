"""The arithmetic: pure, synchronous, standard library only. `now_us` is always an argument."""

from __future__ import annotations

from .decision import Bucket, Check, Decision, LimitState, Reason
from .errors import ConfigurationError, SlidegateError
from .limits import Limit, parse_duration_us, parse_limits
from .networks import Networks, parse_address
from .protocols import Clock, Event, Observer, Store
from .window import NEVER, CounterWindow, Reading, TimestampWindow, Window, convert, new_window

__all__ = [
    "NEVER",
    "Bucket",
    "Check",
    "Clock",
    "ConfigurationError",
    "CounterWindow",
    "Decision",
    "Event",
    "Limit",
    "LimitState",
    "Networks",
    "Observer",
    "Reading",
    "Reason",
    "SlidegateError",
    "Store",
    "TimestampWindow",
    "Window",
    "convert",
    "new_window",
    "parse_address",
    "parse_duration_us",
    "parse_limits",
]
