"""The windows alone, for programs that need only the arithmetic: counts, totals and times of events, in sliding slices.

No limit needs them; statistics count in `ResponseTimes`. `now_us` is an argument of every call, so any clock will do.
"""

from __future__ import annotations

from .counter_window import CounterWindow
from .histogram import ResponseTimes
from .hot_keys import HotKeys
from .metric_window import MetricSummary, MetricWindow
from .rolling_totals import RollingTotals

__all__ = ["CounterWindow", "HotKeys", "MetricSummary", "MetricWindow", "ResponseTimes", "RollingTotals"]
