"""Open reservations: units that requests of this process were charged and may still hand back.

A limit with `count_if` charges every request, and hands back what its response does not count; one with `cost_max`,
what was not used. While requests are under way, their units may refuse others that would pass a moment later. Such a
refusal waits for them as for permits, at an unknown time but soon, and not until they leave the window.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from .buckets import Check
from .decision import Decision
from .readings import limits_read
from .ring import OPEN, WindowState

SOON_US: Final = 1_000_000
"""The wait that a refusal names if open reservations alone cause it."""


class OpenReservations:
    """The open reservations of one limiter in this process, and what they alone refuse.

    Attributes:
        by_window: Their units by decision, by the name of their bucket and their key; without any there is nothing to
            `explain`.
    """

    def __init__(self) -> None:
        self.by_window: dict[tuple[str, str], dict[Decision, int]] = {}

    def open(self, decision: Decision, rules: Collection[object]) -> None:
        """Record that what an admission has charged under some rules may be handed back."""
        for bucket, key, cost in decision.checks:
            if bucket.by in rules:
                self.by_window.setdefault((bucket.name, key), {})[decision] = cost

    def close(self, decision: Decision, check: Check) -> None:
        """Record that what a check of it has charged was handed back, or will not be; perhaps again."""
        window = check[0].name, check[1]
        try:
            units = self.by_window[window]
            del units[decision]
            if not units:
                del self.by_window[window]
        except KeyError:
            return

    def explain(self, decision: Decision, own: Collection[Decision]) -> Decision:
        """Return a refusal, changed in place: one that open reservations alone cause waits for them.

        Args:
            own: Earlier decisions about the same request, which hands nothing back before this one is answered.
        """
        readings: list[WindowState] = []
        soon_us = 0
        for bucket, key, at, cost, reading in limits_read(decision.checks, decision.readings):
            spent, _, mark, wait_us = reading
            if wait_us > 0:
                limit = bucket.limits[at]
                missing = spent + max(cost, 1) - limit.amount
                for charged, units in self.by_window.get((bucket.name, key), {}).copy().items():
                    if charged in own or not charged.readings:  # none if a store failed, which has charged nothing
                        continue
                    # Others have left the window; those of a quota have not, as no request lasts a period.
                    if not limit.span_us or charged.now_us + limit.span_us > decision.now_us:
                        missing -= units
                if missing > 0:
                    return decision
                soon_us = SOON_US
                reading = spent, decision.now_us + soon_us, mark, OPEN
            readings.append(reading)
        decision.readings, decision.at_least_us = readings, max(decision.at_least_us, soon_us)
        return decision
