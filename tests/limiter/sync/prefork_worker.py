"""A process of a pool, in a module that is imported fast where the process is spawned."""

from __future__ import annotations

from slidegate import Limiter

AMOUNT = 60

limiters: dict[str, Limiter] = {}
"""The limiters of this process by their addresses; a forked child begins with those of its parent."""


def hit_often(url: str) -> int:
    """Return how many hits this process is admitted."""
    limiter = limiters.setdefault(url, Limiter.from_url(url, deadline="60s"))
    return sum(bool(limiter.sync.hit("everybody", f"{AMOUNT}/hour")) for _ in range(AMOUNT))
