"""Finds hot keys without a window for each key: in this process, and in memory that does not grow with their number."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from typing import Final

from ...core.decision import Bucket, Decision, Reason
from ...core.limits import Limit
from ...core.statistics.hot_keys import HotKeys

SLICES: Final = 5


class HotWatch:
    """Finds keys that pass a limit, with `HotKeys`; safe to call from several threads.

    Args:
        bucket: The bucket of the rule; it has one limit.
        capacity: The number of keys that are counted in each slice.
    """

    __slots__ = ("_bucket", "_found", "_keys", "_limit")

    def __init__(self, bucket: Bucket, capacity: int) -> None:
        (limit,) = bucket.limits
        assert isinstance(limit, Limit), "a rule with a capacity has a window"
        self._limit = limit
        self._bucket = bucket
        self._found: deque[tuple[str, int]] = deque()
        window = timedelta(microseconds=self._limit.window_us)
        self._keys = HotKeys(capacity, self._limit.amount, window, slices=SLICES, on_hot=self._find)

    def hit(self, key: str, now_us: int) -> list[tuple[str, Decision]]:
        """Count one request; return the keys that have become hot, each once."""
        self._keys.hit(key, now_us)
        hot: list[tuple[str, Decision]] = []
        while self._found:
            try:
                found, hits = self._found.popleft()
            except IndexError:  # another thread was faster
                break
            hot.append((found, self._decision(found, hits, now_us)))
        return hot

    def _find(self, key: str, hits: int) -> None:
        self._found.append((key, hits))

    def _decision(self, key: str, hits: int, now_us: int) -> Decision:
        """Return a refusal that lasts as long as it can: until every unit counted now has left."""
        limit = self._limit
        slice_us = self._keys.slice_us
        cool_us = (now_us // slice_us + SLICES + 1) * slice_us
        reading = max(hits, limit.amount), cool_us, cool_us - limit.span_us, cool_us - now_us
        return Decision(False, Reason.LIMITED, now_us, ((self._bucket, key, 1),), (reading,))
