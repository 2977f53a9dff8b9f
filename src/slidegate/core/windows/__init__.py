"""Counts and times of events, in sliding slices."""

from .counter_window import CounterWindow
from .hot_keys import HotKeys
from .metric_window import MetricSummary, MetricWindow
from .rolling_totals import RollingTotals

__all__ = ["CounterWindow", "HotKeys", "MetricSummary", "MetricWindow", "RollingTotals"]
