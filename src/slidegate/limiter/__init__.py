"""The limiter: the object through which applications use a store."""

from __future__ import annotations

from ..core.bans.ban import MAX_KEY_BYTES
from .inspect import KeyView
from .limiter import Limiter, check_cost
from .overrides import Override, Worker

__all__ = [
    "MAX_KEY_BYTES",
    "KeyView",
    "Limiter",
    "Override",
    "Worker",
    "check_cost",
]
