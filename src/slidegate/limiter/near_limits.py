"""Tells of keys that come near a limit, once a key and window.

It listens to decisions only while somebody hears `near_limit`; see `Engine.rebuild`.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Final

from ..core.decision import Decision
from ..core.errors import ConfigurationError, quoted
from ..core.store import Clock, Event
from ..stores.forks import hold_over_fork

NEAR_LIMIT: Final = 0.8
MAX_REMEMBERED: Final = 10_000
"""How many keys are remembered as told of: 3 MB. With one more all are forgotten, and told of anew."""
PERMITS_AGAIN_US: Final = 60_000_000
"""Permits have no window: of a key under a concurrency limit is told once a minute."""
_NEARLY: Final = 1e-9
"""0.7 of 10 units is a hair more than 7 in binary fractions."""


class NearLimits:
    """Finds keys that have spent a share of a limit.

    Args:
        share: The share that is called near, above 0 and at most 1.
        now_us: Returns the time in microseconds, for the memory of keys.
        emit: Takes the events.

    Raises:
        ConfigurationError: `share` is no such number.
    """

    def __init__(self, share: float, now_us: Clock, emit: Callable[[Event], None]) -> None:
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise ConfigurationError(
                f"near_limit: expected a share above 0 and up to 1, such as 0.8, not {quoted(share)}"
            )
        self._share = share
        self._now_us = now_us
        self._emit = emit
        self._lock = Lock()
        hold_over_fork(self._lock)
        self._told: dict[tuple[str, int, str], int] = {}

    def look(self, decision: Decision) -> None:
        """Tell of the keys that a decision has brought near a limit, or found there."""
        readings = decision.readings
        if not decision.allowed or not readings:
            return
        at = 0
        for bucket, key, _ in decision.checks:
            for place, limit in enumerate(bucket.limits):
                spent, _, newest_us, _ = readings[at]
                at += 1
                if spent and spent >= self._share * limit.amount - _NEARLY:
                    left_us = PERMITS_AGAIN_US if bucket.held else newest_us + limit.span_us - decision.now_us
                    if self._is_news((bucket.rule, place, key), left_us):
                        message = f"{key} has spent {spent} of {limit.said} under {bucket.label!r}"
                        of = {"key": key, "rule": bucket.label, "limit": str(limit)}
                        self._emit(Event("near_limit", message, {**of, "spent": spent, "amount": limit.amount}))

    def forget(self) -> None:
        """Forget who was told of."""
        with self._lock:
            self._told = {}

    def _is_news(self, about: tuple[str, int, str], left_us: int) -> bool:
        """Return whether nothing was told about this in its window, and remember that it is told now."""
        now_us = self._now_us()
        if self._told.get(about, 0) > now_us:
            return False
        with self._lock:
            if self._told.get(about, 0) > now_us:
                return False
            if len(self._told) >= MAX_REMEMBERED:
                self._told.clear()
            self._told[about] = now_us + left_us
            return True
