"""The limiter: the object through which applications use a store."""

from __future__ import annotations

from ..core.bans.ban import MAX_KEY_BYTES
from .aio import let_others_run, yielding_to_others
from .commands import keys_refusing
from .engine import all_callers, reset_all, switch_all, use_clock
from .inspect import KeyView
from .limiter import Limiter, SyncLimiter, check_cost, inspect_keys
from .overrides import Override
from .rows import Action
from .workers import Publication, PublishedRule

__all__ = [
    "MAX_KEY_BYTES",
    "Action",
    "KeyView",
    "Limiter",
    "Override",
    "Publication",
    "PublishedRule",
    "SyncLimiter",
    "all_callers",
    "check_cost",
    "inspect_keys",
    "keys_refusing",
    "let_others_run",
    "reset_all",
    "switch_all",
    "use_clock",
    "yielding_to_others",
]
