"""The system clock, the default clock of quotas and of the times shown for bans."""

from __future__ import annotations

from time import time_ns


def system_us() -> int:
    """Return Unix time in microseconds."""
    return time_ns() // 1000
