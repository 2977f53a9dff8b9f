"""The pure core: synchronous, standard library only, without I/O or a clock. `now_us` is always an argument."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from . import decision as _decision
from .addresses import parse_address
from .bans.ban import Ban, BanSubject
from .concurrency import Concurrency
from .decide import WindowRef, charge_all, decide, refund_all
from .decision import Bucket, Check, Decision, LimitState, Reason
from .errors import ConfigurationError, InvalidKey, SlidegateError, StoreTimeout, StoreUnavailable
from .limits import AnyLimit, Limit, parse_duration_us, parse_limits
from .networks import Networks
from .question import Question
from .quotas import Quota
from .reservation import Reservation
from .ring import NEVER, OPEN, WindowState
from .store import BanStore, Clock, Event, EventListener, Observers, SharedStats, Snapshot, StatsRow, Store

if TYPE_CHECKING:
    from .windows import CounterWindow, HotKeys, MetricSummary, MetricWindow, RollingTotals

_WINDOWS: Final = {"CounterWindow", "HotKeys", "MetricSummary", "MetricWindow", "RollingTotals"}
"""The windows that no limiter uses, which would be a tenth of the time to import this package."""


def __getattr__(name: str) -> Any:
    """Import a window when it is asked for."""
    if name not in _WINDOWS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.windows"), name)


def __dir__() -> list[str]:
    """Return all names."""
    return [*globals(), *_WINDOWS]


compiled: bool = not _decision.__file__.endswith(".py")
"""Whether the core consists of extension modules from a compiled wheel, rather than of Python source."""

__all__ = [
    "NEVER",
    "OPEN",
    "AnyLimit",
    "Ban",
    "BanStore",
    "BanSubject",
    "Bucket",
    "Check",
    "Clock",
    "Concurrency",
    "ConfigurationError",
    "CounterWindow",
    "Decision",
    "Event",
    "EventListener",
    "HotKeys",
    "InvalidKey",
    "Limit",
    "LimitState",
    "MetricSummary",
    "MetricWindow",
    "Networks",
    "Observers",
    "Question",
    "Quota",
    "Reason",
    "Reservation",
    "RollingTotals",
    "SharedStats",
    "SlidegateError",
    "Snapshot",
    "StatsRow",
    "Store",
    "StoreTimeout",
    "StoreUnavailable",
    "WindowRef",
    "WindowState",
    "charge_all",
    "compiled",
    "decide",
    "parse_address",
    "parse_duration_us",
    "parse_limits",
    "refund_all",
]
