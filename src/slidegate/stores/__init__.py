"""The stores of windows and bans: memory for one process, LMDB for one host, Redis for many hosts.

A custom store derives from `slidegate.core.Store`. For one process it may use the bans of a `MemoryStore`; if processes
share it, it keeps rows of bans, which a `BanBook` changes, and a worker renews its permits by `HeldPermits`.
"""

from __future__ import annotations

from .ban_book import BanBook, BanRows, BookBans, StrikeWindows
from .leases import HeldPermits
from .memory.bans import MemoryBans

__all__ = ["BanBook", "BanRows", "BookBans", "HeldPermits", "MemoryBans", "StrikeWindows"]
