"""The stores, which remember windows and bans: in memory for one process, LMDB for one host, Redis for many.

A store of one's own derives from `slidegate.core.Store`, and may keep its bans in `MemoryBans`.
"""

from __future__ import annotations

from .memory.bans import MemoryBans
from .memory.store import MemoryStats

__all__ = ["MemoryBans", "MemoryStats"]
