"""The arithmetic: pure, synchronous, standard library only. `now_us` is always an argument."""

from __future__ import annotations

from .addresses import parse_address
from .calendar import Anchor, Calendar, Period
from .decision import Bucket, Check, Decision, LimitState, Reason
from .demand import Note
from .errors import ConfigurationError, InvalidKey, SlidegateError
from .limits import AnyLimit, Concurrency, Limit, parse_duration_us, parse_limits
from .networks import Networks
from .protocols import (
    AnswersThreads,
    Clock,
    CountsBans,
    Event,
    FigureRow,
    HasParts,
    HoldsPlaces,
    KeepsDeadline,
    KeepsFigures,
    Observer,
    Store,
)
from .quotas import Quota
from .statistics.hot_keys import HotKeys
from .statistics.metrics import MetricWindow
from .statistics.summary import MetricSummary
from .statistics.totals import RollingTotals
from .windows.counters import CounterWindow
from .windows.periods import PeriodCount
from .windows.places import Places
from .windows.rings import Ring, convert, new_window
from .windows.theory import NEVER, OPEN, Reading, Window
from .windows.timestamps import TimestampWindow
from .windows.views import Snapshot, WindowSlice, WindowView

__all__ = [
    "NEVER",
    "OPEN",
    "Anchor",
    "AnswersThreads",
    "AnyLimit",
    "Bucket",
    "Calendar",
    "Check",
    "Clock",
    "Concurrency",
    "ConfigurationError",
    "CounterWindow",
    "CountsBans",
    "Decision",
    "Event",
    "FigureRow",
    "HasParts",
    "HoldsPlaces",
    "HotKeys",
    "InvalidKey",
    "KeepsDeadline",
    "KeepsFigures",
    "Limit",
    "LimitState",
    "MetricSummary",
    "MetricWindow",
    "Networks",
    "Note",
    "Observer",
    "Period",
    "PeriodCount",
    "Places",
    "Quota",
    "Reading",
    "Reason",
    "Ring",
    "RollingTotals",
    "SlidegateError",
    "Snapshot",
    "Store",
    "TimestampWindow",
    "Window",
    "WindowSlice",
    "WindowView",
    "convert",
    "new_window",
    "parse_address",
    "parse_duration_us",
    "parse_limits",
]
