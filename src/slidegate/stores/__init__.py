"""The stores of windows and bans: memory for one process, LMDB for one host, Redis for many hosts.

A custom store derives from `slidegate.core.Store`, and may use the bans of a `MemoryStore`.
"""

from __future__ import annotations

from .memory.bans import MemoryBans

__all__ = ["MemoryBans"]
