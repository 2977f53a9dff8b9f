"""The arithmetic: pure, synchronous, standard library only. `now_us` is always an argument."""

from __future__ import annotations

from .addresses import parse_address
from .decision import Bucket, Check, Decision, LimitState, Reason
from .errors import ConfigurationError, SlidegateError
from .limits import Limit, parse_duration_us, parse_limits
from .networks import Networks
from .protocols import Clock, Event, HasParts, KeepsDeadline, ListsBans, Observer, Store
from .statistics.hot_keys import HotKeys
from .statistics.metrics import MetricWindow
from .statistics.summary import MetricSummary
from .statistics.totals import RollingTotals
from .windows.bookings import BookedWindow, Note
from .windows.counters import CounterWindow
from .windows.rings import Ring, convert, new_window
from .windows.theory import NEVER, Reading, Window
from .windows.timestamps import TimestampWindow

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
    "HasParts",
    "HotKeys",
    "KeepsDeadline",
    "Limit",
    "LimitState",
    "ListsBans",
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
