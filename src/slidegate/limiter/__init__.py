"""The limiter: the object through which applications use a store."""

from __future__ import annotations

from ..core.bans.ban import MAX_KEY_BYTES
from .history import Action
from .inspect import KeyView
from .limiter import Limiter, check_cost
from .overrides import Override
from .workers import Publication, PublishedRule

__all__ = [
    "MAX_KEY_BYTES",
    "Action",
    "KeyView",
    "Limiter",
    "Override",
    "Publication",
    "PublishedRule",
    "check_cost",
]
