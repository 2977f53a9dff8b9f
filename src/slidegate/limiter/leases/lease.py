"""A lease, and a decision that spends of leases. `leasing` tells when a lease may be spent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...core.decision import Check, Decision, Reason
from ...core.windows.theory import Reading

MAX_LIFE_US: Final = 1_000_000
"""The longest life of a lease: as long as a ban may take to be known everywhere."""
DRIFT: Final = 1_000
"""The store's clock may run faster than ours by one part in so many: NTP slews a clock by up to 500 parts in a million
(adjtimex(2)), and the quartz of two machines is off by less than 250 each."""
ROUNDING_US: Final = 4
"""Four moments are cut to whole microseconds: two of ours, the store's, and the margin."""

# A suspended machine must not find its leases fresh. macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC counts sleep.
_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def boot_us() -> int:
    """Return microseconds of a clock that never runs back and, where there is one, goes on while the machine sleeps."""
    return (time.monotonic_ns() if _CLOCK is None else time.clock_gettime_ns(_CLOCK)) // 1000


class Lease:
    """Units that the store has charged and that may be spent here until a moment.

    Args:
        decision: The charge: one check.
        sent_us: Local time, before the question was sent.

    Attributes:
        units: The units that are left.
        until_us: The end of the lease, in local time.
        loop: The event loop that the lease belongs to.
        timer: Ends the lease in time.
    """

    __slots__ = ("_last_us", "_sent_us", "_shift_us", "decision", "loop", "timer", "units", "until_us")

    def __init__(self, decision: Decision, sent_us: int) -> None:
        ((bucket, _, self.units),) = decision.checks
        now_us = decision.now_us
        end_us = min((now_us // limit.slice_us + 1) * limit.slice_us for limit in bucket.limits)
        left_us = min(end_us - now_us, MAX_LIFE_US)
        self.until_us = sent_us + left_us - left_us // DRIFT - ROUNDING_US
        self.decision = decision
        self.loop = asyncio.get_running_loop()
        self.timer: asyncio.TimerHandle | None = None
        self._shift_us = now_us - sent_us
        self._last_us = end_us - 1

    def lasts(self, now_us: int) -> bool:
        """Return whether the lease may be spent."""
        return now_us < self.until_us

    def covers(self, cost: int, now_us: int) -> bool:
        """Return whether the lease may be spent and has enough units; a cost of 0 needs one unit to be left."""
        return (cost or 1) <= self.units and now_us < self.until_us

    def close(self) -> None:
        """Let nobody spend the lease any more."""
        self.until_us = 0
        if self.timer is not None:
            self.timer.cancel()

    def void(self) -> None:
        """Let nobody spend the lease or hand units of it back; safe from any thread."""
        self.until_us = self.units = 0

    def part(self, units: int) -> Decision:
        """Return a decision that charged some of the units, to be refunded once."""
        ((bucket, key, _),) = self.decision.checks
        own = self.decision
        return Decision(True, own.reason, own.now_us, ((bucket, key, units),), own.readings, list(own.charge))

    def store_us(self, now_us: int) -> int:
        """Return the latest that the store's clock may show at a local moment, within the slice of the lease."""
        return min(now_us + self._shift_us, self._last_us)


class Leased(Decision):
    """An allowed decision that spends of leases, and perhaps of the store.

    Args:
        checks: The checks of the request.
        leases: The lease that answered a check, by the place of the check.
        rest: The store's decision about the other checks, if there are any.
        now_us: The store's time, as far as it is known.
        readings: One for each limit of each check in turn; the units of leases count as spent.
    """

    __slots__ = ("_rest_places", "leases", "rest")

    def __init__(
        self,
        checks: Sequence[Check],
        leases: Mapping[int, Lease],
        rest: Decision | None,
        now_us: int,
        readings: Sequence[Reading],
    ) -> None:
        super().__init__(True, Reason.OK, now_us, checks, readings, [True] * len(readings))
        self.leases = dict(leases)
        self.rest = rest
        self._rest_places = [place for place in range(len(checks)) if place not in leases]

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.checks, self.leases, self.rest, self.now_us, self.readings

    def take_out(self, place: int) -> Decision:
        """Split a charged check off, to refund it alone; the decision reads then as if that check had cost nothing."""
        part = super().take_out(place)
        if place in self._rest_places:
            return self.rest.take_out(self._rest_places.index(place)) if self.rest is not None else part
        lease = self.leases.pop(place, None)
        return Leased(part.checks, {} if lease is None else {0: lease}, None, part.now_us, part.readings)


def seen(
    checks: Sequence[Check], leases: Mapping[int, Lease], now_us: int, other: Decision | None
) -> tuple[int, list[Reading]]:
    """Return the store's time and the readings of all checks.

    Args:
        checks: The checks of the request.
        leases: The lease that answers a check, by the place of the check.
        now_us: Local time.
        other: The store's decision about the other checks.
    """
    times_us = {place: lease.store_us(now_us) for place, lease in leases.items()}
    store_us = max(times_us.values()) if other is None else other.now_us
    others = iter(() if other is None else other.readings)
    readings: list[Reading] = []
    for place, (bucket, _, _) in enumerate(checks):
        if place not in leases:
            readings += [next(others) for _ in bucket.limits]
            continue
        ahead_us = store_us - times_us[place]  # the nodes of a cluster have clocks of their own
        for spent, leaves_us, newest_us, _ in leases[place].decision.readings:
            readings.append((spent, leaves_us + ahead_us, newest_us + ahead_us, 0))
    return store_us, readings
