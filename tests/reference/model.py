"""The reference model of a store: all charges by their moment, and every answer computed from scratch.

It stores only the moment by which each charge counts: no packed bytes, no running totals, no caches. That makes it
slow, but easy to verify.

* The moment of a charge is its own time if the amount is at most the resolution, else the last microsecond of its
  slice. If the newest moment has not passed yet, the charge is added to that one.
* A charge expires ``W`` after its moment if the amount is at most the resolution, else ``k`` slices after the end of
  its slice.

Each request touches its windows, even if it is refused: expired units are removed, then units ahead of a clock that
stepped back are moved to now. A refund takes at most the units that are there under the moment of its charge. A window
without units equals a new one."""

from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple, TypeAlias

from slidegate.core import AnyLimit, Bucket, Check, Decision, Limit, Quota, Reason
from slidegate.core.limits import Identity

MAX_UNITS = 2**32 - 1


class Answer(NamedTuple):
    """The numbers of a `LimitState`, for one limit."""

    remaining: int
    retry_after_us: int | None
    more_after_us: int
    reset_after_us: int


class ModelWindow:
    """The charges of one window: units by their moment.

    Args:
        window_us: The length of the window in microseconds.
        resolution: The resolution of the limit.
    """

    def __init__(self, window_us: int, resolution: int) -> None:
        self.window_us = window_us
        self.resolution = resolution
        self.slice_us = -(-window_us // resolution)
        self.slices = -(-window_us // self.slice_us)
        self.amount = 0
        self.exact = True
        self.charges: dict[int, int] = {}

    def moment_us(self, time_us: int) -> int:
        """Return the moment of a charge at the given time."""
        return time_us if self.exact else (time_us // self.slice_us + 1) * self.slice_us - 1

    def leaves_us(self, moment_us: int) -> int:
        """Return when a charge expires."""
        return moment_us + self.window_us if self.exact else moment_us + self.slices * self.slice_us + 1

    def touch(self, amount: int, now_us: int) -> None:
        """Advance the window to `now_us`, and switch to the kind of ring that `amount` requires."""
        self.amount = amount
        self.exact = amount <= self.resolution
        self.charges = {at_us: units for at_us, units in self.charges.items() if self.leaves_us(at_us) > now_us}
        newest_us, latest_us = max(self.charges, default=-1), self.moment_us(now_us)
        if newest_us - now_us >= (1 if self.exact else self.slice_us):
            ahead = [at_us for at_us in self.charges if at_us > latest_us]
            moved = sum(self.charges.pop(at_us) for at_us in ahead)
            self.charges[latest_us] = self.charges.get(latest_us, 0) + moved

    @property
    def holds_units(self) -> bool:
        """Whether any unit had not expired at the last touch."""
        return bool(self.charges)

    def spent(self, at_us: int) -> int:
        """Return the units that count at a time that is not in the past."""
        return sum(units for moment_us, units in self.charges.items() if at_us < self.leaves_us(moment_us))

    def wait_us(self, amount: int, cost: int, now_us: int) -> int | None:
        """Return how long a cost has to wait; None if it exceeds the amount."""
        need = max(cost, 1)  # a cost of 0 passes only while a unit is left
        if need > amount:
            return None
        moments = [now_us, *sorted(map(self.leaves_us, self.charges))]
        return next(moment - now_us for moment in moments if self.spent(moment) + need <= amount)

    def charge(self, now_us: int, cost: int) -> tuple[int, int]:
        """Charge regardless of the limit; return the moment and the number of refundable units."""
        kept = min(cost, MAX_UNITS - self.spent(now_us))
        newest_us = max(self.charges, default=-1)
        moment_us = newest_us if newest_us >= now_us else self.moment_us(now_us)
        if not kept:
            return moment_us, 0
        self.charges[moment_us] = self.charges.get(moment_us, 0) + kept
        if self.spent(now_us) > self.amount and len(self.charges) > 2 * self.resolution + 1:
            oldest_us, second_us, *_ = sorted(self.charges)
            self.charges[second_us] += self.charges.pop(oldest_us)
        return moment_us, kept

    def refund(self, moment_us: int, units: int) -> bool:
        """Refund units of one moment, as many as are still counted; units of one moment are interchangeable."""
        there = self.charges.get(moment_us, 0)
        if not (there and units):
            return False
        self.charges[moment_us] = max(there - units, 0)
        self.charges = {at_us: left for at_us, left in self.charges.items() if left}
        return True

    def reset(self) -> None:
        """Remove all charges."""
        self.charges = {}

    def answer(self, amount: int, wait_us: int | None, now_us: int) -> Answer:
        """Return the state of the window now."""
        leaving = [self.leaves_us(moment_us) - now_us for moment_us in self.charges]
        remaining = max(amount - sum(self.charges.values()), 0)
        return Answer(remaining, wait_us, min(leaving, default=0), max(leaving, default=0))


# -- a quota: the units of one period, identified by its end; and permits, which only those change who have them -------


OPEN_US = 2**63
"""The wait for a permit, which nobody knows: longer than any other."""


class ModelQuota:
    """The units that one key has spent under one quota; the interface is that of `ModelWindow`.

    Args:
        quota: The quota, which defines the periods.
    """

    def __init__(self, quota: Quota) -> None:
        self.calendar = quota.calendar
        self.end_us = self.spent = 0

    def touch(self, amount: int, now_us: int) -> None:
        """Begin the period of `now_us`, unless the clock has stepped back: units of a newer period go on counting."""
        end_us = self.calendar.period_at(now_us).end_us
        if end_us > self.end_us or not self.spent:
            self.end_us, self.spent = end_us, 0

    @property
    def holds_units(self) -> bool:
        """Whether any unit is spent in the period of the last touch."""
        return self.spent > 0

    def wait_us(self, amount: int, cost: int, now_us: int) -> int | None:
        """Return how long a cost has to wait; None if it exceeds the amount."""
        need = max(cost, 1)
        if need > amount:
            return None
        return 0 if self.spent + need <= amount else self.end_us - now_us

    def charge(self, now_us: int, cost: int) -> tuple[int, int]:
        """Charge regardless of the quota; return the end of the period and the number of refundable units."""
        kept = min(cost, MAX_UNITS - self.spent)
        self.spent += kept
        return self.end_us, kept

    def refund(self, moment_us: int, units: int) -> bool:
        """Refund units of the current period, as many as are still counted."""
        if moment_us != self.end_us or not (units and self.spent):
            return False
        self.spent = max(self.spent - units, 0)
        return True

    def reset(self) -> None:
        """Remove all charges."""
        self.spent = 0

    def answer(self, amount: int, wait_us: int | None, now_us: int) -> Answer:
        """Return the state of the quota now."""
        left_us = self.end_us - now_us if self.spent else 0
        return Answer(max(amount - self.spent, 0), wait_us, left_us, left_us)


class ModelPermits(ModelQuota):
    """The permits of one key under one concurrency limit: a quota whose period has no time."""

    holds_units = False
    """A reset finds nothing here, because requests are still under way."""

    def __init__(self) -> None:
        self.end_us = self.spent = 0

    def touch(self, amount: int, now_us: int) -> None:
        """Do nothing: permits have no time."""

    def wait_us(self, amount: int, cost: int, now_us: int) -> int | None:
        """Return how long a cost has to wait; None if it exceeds the amount."""
        return super().wait_us(amount, cost, now_us=-OPEN_US)

    def answer(self, amount: int, wait_us: int | None, now_us: int) -> Answer:
        """Return the state now."""
        return Answer(max(amount - self.spent, 0), None if wait_us == OPEN_US else wait_us, 0, 0)


# -- the store: every key's windows, quotas and permits ---------------------------------------------------------------


Window: TypeAlias = ModelWindow | ModelQuota


class Verdict(NamedTuple):
    """The decision about one question."""

    allowed: bool
    reason: Reason
    retry_after_us: int | None
    answers: tuple[Answer, ...]


def verdict_of(decision: Decision) -> Verdict:
    """Return the parts of a store's decision that the reference computes too."""
    answers = (
        Answer(state.remaining, state.retry_after_us, state.more_after_us, state.reset_after_us)
        for state in decision.states
    )
    return Verdict(decision.allowed, decision.reason, decision.retry_after_us, tuple(answers))


class Note(NamedTuple):
    """The charge of one window, for a refund; the amount of its limit may have changed until then."""

    window: Window
    limit: AnyLimit
    moment_us: int
    units: int


class Model:
    """A store implemented for correctness only: the methods of `Store`."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, str, Identity], Window] = {}

    def permits_held(self) -> int:
        """Return how many permits are taken."""
        return sum(window.spent for window in self._windows.values() if isinstance(window, ModelPermits))

    def hit(self, checks: Sequence[Check], now_us: int) -> tuple[Verdict, list[Note]]:
        """Charge every check or none; return the verdict, and the charges for `refund`."""
        asks = self._asks(checks, now_us)
        waits = _waits(asks, now_us)
        notes: list[Note] = []
        reason = Reason.TOO_LARGE if None in waits else Reason.LIMITED if any(waits) else Reason.OK
        if reason is Reason.LIMITED:
            denied = [ask for ask in asks if ask.count_denied]
            for ask in denied:
                ask.window.charge(now_us, ask.cost)
            waits = _waits(asks, now_us) if denied else waits
        elif reason is Reason.OK:
            notes = _charge(asks, now_us)
        return _sum_up(asks, waits, reason, now_us), notes

    def charge(self, checks: Sequence[Check], now_us: int) -> tuple[Verdict, list[Note]]:
        """Charge every check, regardless of the limits."""
        asks = self._asks(checks, now_us)
        notes = _charge(asks, now_us)
        return _sum_up(asks, [0] * len(asks), Reason.OK, now_us), notes

    def peek(self, checks: Sequence[Check], now_us: int) -> Verdict:
        """Return the verdict that `hit` would return, computed on a copy."""
        verdict, _ = deepcopy(self).hit(checks, now_us)
        return verdict

    def refund(self, charged: list[Note], now_us: int, permits: bool | None = None) -> bool:
        """Refund units that have not expired, or the `permits` alone, or all but these; return if there were any."""
        changed = False
        refunded = [note for note in charged if permits in (None, isinstance(note.window, ModelPermits))]
        charged[:] = [note for note in charged if note not in refunded]
        for window, limit, moment_us, units in refunded:
            touched = deepcopy(window)  # a refund without effect must not touch the window
            touched.touch(limit.amount, now_us)
            if touched.refund(moment_us, units):
                vars(window).update(vars(touched))
                changed = True
        return changed

    def reset(self, key: str | None, names: Sequence[str] = ()) -> bool:
        """Reset the windows of a key, of some rules or all, or those of all keys; return whether units were left."""
        windows = [
            window
            for (name, whose, _), window in self._windows.items()
            if key is None or (key == whose and (not names or name in names))
        ]
        held = [window for window in windows if window.holds_units]
        for window in held:
            window.reset()
        return bool(held)

    def _asks(self, checks: Sequence[Check], now_us: int) -> list["Ask"]:
        asks = [
            Ask(self._window(bucket, key, limit), limit, cost, bucket.count_denied)
            for bucket, key, cost in checks
            for limit in bucket.limits
        ]
        for ask in asks:
            ask.window.touch(ask.limit.amount, now_us)
        return asks

    def _window(self, bucket: Bucket, key: str, limit: AnyLimit) -> Window:
        if isinstance(limit, Limit):
            fresh: Window = ModelWindow(limit.window_us, limit.resolution)
        else:
            fresh = ModelQuota(limit) if isinstance(limit, Quota) else ModelPermits()
        return self._windows.setdefault((bucket.name, key, limit.same_window), fresh)


class Ask(NamedTuple):
    """The part of a question that concerns one window."""

    window: Window
    limit: AnyLimit
    cost: int
    count_denied: bool


def _waits(asks: Sequence[Ask], now_us: int) -> list[int | None]:
    """Return for each limit how long the question has to wait; None for a cost that is too large."""
    return [ask.window.wait_us(ask.limit.amount, ask.cost, now_us) for ask in asks]


def _charge(asks: Sequence[Ask], now_us: int) -> list[Note]:
    return [Note(ask.window, ask.limit, *ask.window.charge(now_us, ask.cost)) for ask in asks]


def _sum_up(asks: Sequence[Ask], waits: Sequence[int | None], reason: Reason, now_us: int) -> Verdict:
    answers = [ask.window.answer(ask.limit.amount, wait_us, now_us) for ask, wait_us in zip(asks, waits, strict=True)]
    longest_us = max((wait_us for wait_us in waits if wait_us), default=0)
    retry_after_us = None if reason is Reason.TOO_LARGE or longest_us == OPEN_US else longest_us
    return Verdict(reason is Reason.OK, reason, retry_after_us, tuple(answers))
