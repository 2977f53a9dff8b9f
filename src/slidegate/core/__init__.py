"""The arithmetic: pure, synchronous, standard library only. `now_us` is always an argument."""

from __future__ import annotations

from .bookings import BookedWindow, Note
from .counters import CounterWindow
from .decision import Bucket, Check, Decision, LimitState, Reason
from .errors import ConfigurationError, SlidegateError
from .hotkeys import HotKeys
from .limits import Limit, parse_duration_us, parse_limits
from .metrics import MetricWindow
from .networks import Networks, parse_address
from .protocols import Clock, Event, Observer, Store
from .rings import Ring, convert, new_window
from .summaries import MetricSummary
from .timestamps import TimestampWindow
from .totals import RollingTotals
from .window import NEVER, Reading, Window

__all__ = [
    "NEVER",
    "BookedWindow",
    "Bucket",
    "Check",
    "Clock",
    "ConfigurationError",
    "CounterWindow",
    "Decision",
    "Event",
    "HotKeys",
    "Limit",
    "LimitState",
    "MetricSummary",
    "MetricWindow",
    "Networks",
    "Note",
    "Observer",
    "Reading",
    "Reason",
    "Ring",
    "RollingTotals",
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
