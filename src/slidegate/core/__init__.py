"""The pure core: synchronous, standard library only, without a clock: `now_us` is always an argument.

Its only I/O is that `zoneinfo` reads the database of time zones.
"""

from __future__ import annotations

from . import decision as _decision
from .addresses import parse_address
from .bans.ban import Ban, BanSubject
from .bans.events import banned, bans_full, shadow_banned, strikes_dropped, unbanned
from .bans.networks import BannedNetworks
from .bans.strikes import Level, ban_by_hand, next_ban
from .buckets import Bucket, Check
from .counters import PermitCounter
from .decide import WindowRef, charge_all, decide, refund_all
from .decision import Decision, Reason, refused_by_bans
from .durations import parse_duration_us
from .errors import ConfigurationError, InvalidKey, SlidegateError, StoreTimeout, StoreUnavailable
from .events import Event, EventListener, Observers
from .limit_texts import parse_limits
from .limits import AnyLimit, Concurrency, Limit
from .logs import Throttle
from .networks import Networks
from .quotas import Quota
from .readings import LimitState
from .reservation import Reservation
from .ring import NEVER, OPEN, WindowState
from .store import (
    COMMAND_DEADLINE_S,
    BanStore,
    Clock,
    CountsPermits,
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
    "BannedNetworks",
    "Bucket",
    "Check",
    "Clock",
    "Concurrency",
    "ConfigurationError",
    "CountsPermits",
    "Decision",
    "Event",
    "EventListener",
    "InvalidKey",
    "Level",
    "Limit",
    "LimitState",
    "Networks",
    "Observers",
    "PermitCounter",
    "Quota",
    "Reason",
    "Reservation",
    "SharedRow",
    "SharedRows",
    "SlidegateError",
    "Snapshot",
    "Store",
    "StoreTimeout",
    "StoreUnavailable",
    "Throttle",
    "WindowRef",
    "WindowState",
    "ban_by_hand",
    "banned",
    "bans_full",
    "charge_all",
    "compiled",
    "decide",
    "next_ban",
    "parse_address",
    "parse_duration_us",
    "parse_limits",
    "refund_all",
    "refused_by_bans",
    "shadow_banned",
    "strikes_dropped",
    "unbanned",
]
