"""The pure core: synchronous, standard library only, without a clock: `now_us` is always an argument.

Its only I/O is that `zoneinfo` reads the database of time zones.
"""

from __future__ import annotations

from . import decision as _decision
from .addresses import parse_address
from .bans.ban import Ban, BanSubject
from .buckets import Bucket, Check
from .concurrency import Concurrency
from .decide import WindowRef, charge_all, decide, refund_all
from .decision import Decision, Reason
from .durations import parse_duration_us
from .errors import ConfigurationError, InvalidKey, SlidegateError, StoreTimeout, StoreUnavailable
from .events import Event, EventListener, Observers
from .limit_texts import parse_limits
from .limits import AnyLimit, Limit
from .networks import Networks
from .quotas import Quota
from .readings import LimitState
from .reservation import Reservation
from .ring import NEVER, OPEN, WindowState
from .store import (
    COMMAND_DEADLINE_S,
    BanStore,
    Clock,
    Connects,
    CountsPermits,
    NamesKeys,
    ReportsLateAnswers,
    SharedRow,
    SharedRows,
    Snapshot,
    Store,
)

compiled: bool = not _decision.__file__.endswith(".py")
"""Whether the core consists of extension modules from a compiled wheel, rather than of Python source."""

__all__ = [
    "COMMAND_DEADLINE_S",
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
    "Connects",
    "CountsPermits",
    "Decision",
    "Event",
    "EventListener",
    "InvalidKey",
    "Limit",
    "LimitState",
    "NamesKeys",
    "Networks",
    "Observers",
    "Quota",
    "Reason",
    "ReportsLateAnswers",
    "Reservation",
    "SharedRow",
    "SharedRows",
    "SlidegateError",
    "Snapshot",
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
