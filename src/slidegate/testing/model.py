"""The reference: every charge in a plain list, every answer counted out afresh.

It knows when a charge leaves, and nothing else: no ring, no running total, nothing remembered between two questions.
That makes it slow, and easy to believe.

* Kept as times (amount <= resolution), a charge of time t leaves at ``t + W``.
* Kept as counts, it leaves k + 1 slices after the start of its slice: at ``(t // s + k + 1) * s``.

A window is looked after when a request names it, whether the request passes or not: what has left is struck off, then
what lies ahead of a clock that stepped back is moved to now.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple

from ..core.decision import Bucket, Check, Decision, Reason
from ..core.limits import Limit


class Answer(NamedTuple):
    """What one limit says: the numbers of a `LimitState`."""

    remaining: int
    retry_after_us: int | None
    more_after_us: int
    reset_after_us: int


class Verdict(NamedTuple):
    """What a store says to one demand."""

    allowed: bool
    reason: Reason
    retry_after_us: int | None
    answers: tuple[Answer, ...]


def verdict_of(decision: Decision) -> Verdict:
    """Return the part of a store's decision that the reference can tell."""
    answers = (
        Answer(state.remaining, state.retry_after_us, state.more_after_us, state.reset_after_us)
        for state in decision.states
    )
    return Verdict(decision.allowed, decision.reason, decision.retry_after_us, tuple(answers))


class Charge:
    """`cost` units spent at `time_us`. Compared by identity."""

    __slots__ = ("cost", "time_us")

    def __init__(self, time_us: int, cost: int) -> None:
        self.time_us = time_us
        self.cost = cost

    def __repr__(self) -> str:
        return f"{self.cost} at {self.time_us}"


class ModelWindow:
    """Every charge of one window, oldest first.

    Args:
        window_us: Length of the window.
        resolution: How many numbers a ring of this window may hold.
    """

    def __init__(self, window_us: int, resolution: int) -> None:
        self.window_us = window_us
        self.resolution = resolution
        self.slice_us = -(-window_us // resolution)
        self.slices = -(-window_us // self.slice_us)
        self.exact: bool | None = None
        self.charges: list[Charge] = []
        self.carried = Charge(0, 0)

    def leaves_us(self, charge: Charge) -> int:
        """Return the moment at which a charge no longer counts."""
        if self.exact:
            return charge.time_us + self.window_us
        return (charge.time_us // self.slice_us + self.slices + 1) * self.slice_us

    def touch(self, amount: int, now_us: int) -> None:
        """Bring the window to `now_us` and to the kind that `amount` needs."""
        self._strike_off(now_us)
        exact = amount <= self.resolution
        if self.exact is not None and exact is not self.exact:
            self.exact = exact
            if exact:
                self._become_times(now_us)
            else:
                self._become_counts(now_us)
            self._strike_off(now_us)
        self.exact = exact
        for charge in self.charges:
            charge.time_us = min(charge.time_us, now_us)

    def spent(self, at_us: int) -> int:
        """Return the units that still count at a moment that is not in the past."""
        return sum(charge.cost for charge in self.charges if self.leaves_us(charge) > at_us)

    def wait_us(self, amount: int, cost: int, now_us: int) -> int | None:
        """Return how long a cost has to wait until it fits below `amount`; None if it never will."""
        need = max(cost, 1)  # a cost of 0 passes only while something is left
        if need > amount:
            return None
        moments = [now_us, *sorted(self.leaves_us(charge) for charge in self.charges)]
        return next(moment - now_us for moment in moments if self.spent(moment) + need <= amount)

    def answer(self, amount: int, wait_us: int | None, now_us: int) -> Answer:
        """Return what is to be said about the window now."""
        leaving = [self.leaves_us(charge) - now_us for charge in self.charges]
        remaining = max(amount - self.spent(now_us), 0)
        return Answer(remaining, wait_us, min(leaving, default=0), max(leaving, default=0))

    def _strike_off(self, now_us: int) -> None:
        self.charges = [charge for charge in self.charges if self.leaves_us(charge) > now_us]

    def _become_times(self, now_us: int) -> None:
        """Counts become times at the end of their slice; what goes beyond the resolution is carried as one number.

        No amount that is kept as times is larger than the resolution, so the carried units bind none of them. They
        count again when the amount is raised to one that is kept as counts.
        """
        room = self.resolution
        kept = []
        for charge in reversed(self.charges):
            end_us = (charge.time_us // self.slice_us + 1) * self.slice_us
            time_us = min(end_us - 1, now_us)
            here = min(charge.cost, room)
            room -= here
            if here < charge.cost:
                self.carried = Charge(max(self.carried.time_us, time_us), self.carried.cost + charge.cost - here)
            if here:
                charge.time_us, charge.cost = time_us, here
                kept.append(charge)
        self.charges = kept[::-1]

    def _become_counts(self, now_us: int) -> None:
        """Times become counts in their slice, the carried ones in the slice of the newest of them."""
        if self.carried.cost and self.carried.time_us > now_us - self.window_us:
            self.charges.insert(0, self.carried)
        self.carried = Charge(0, 0)


class Model:
    """A store that is only there to be right: `hit`, `peek`, `refund` and `reset` over `ModelWindow`."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, str, int, int], ModelWindow] = {}

    def hit(self, checks: Sequence[Check], now_us: int) -> tuple[Verdict, list[tuple[ModelWindow, Charge]]]:
        """Charge every check or none; return what is to be said and, for `refund`, what was charged."""
        asked = [(self._window(bucket, key, limit), limit, cost) for bucket, limit, key, cost in _flat(checks)]
        waits = []
        for window, limit, cost in asked:
            window.touch(limit.amount, now_us)
            waits.append(window.wait_us(limit.amount, cost, now_us))
        charged = []
        if not any(wait_us != 0 for wait_us in waits):
            for window, _, cost in asked:
                if cost:
                    window.charges.append(Charge(now_us, cost))
                    charged.append((window, window.charges[-1]))
        answers = [
            window.answer(limit.amount, wait_us, now_us)
            for (window, limit, _), wait_us in zip(asked, waits, strict=True)
        ]
        return _sum_up(answers), charged

    def peek(self, checks: Sequence[Check], now_us: int) -> Verdict:
        """Say what `hit` would say, on a copy."""
        verdict, _ = deepcopy(self).hit(checks, now_us)
        return verdict

    def refund(self, charged: list[tuple[ModelWindow, Charge]], now_us: int) -> bool:
        """Hand back what has not left yet; tell whether that was anything."""
        changed = False
        for window, charge in charged:
            if charge in window.charges and window.leaves_us(charge) > now_us:
                window.charges.remove(charge)
                changed = True
        charged.clear()
        return changed

    def reset(self, key: str) -> None:
        """Forget every window of a key."""
        for identity in [identity for identity in self._windows if identity[1] == key]:
            del self._windows[identity]

    def carries(self) -> bool:
        """Tell whether a lowered amount has made any window carry what it cannot keep."""
        return any(window.carried.cost for window in self._windows.values())

    def _window(self, bucket: Bucket, key: str, limit: Limit) -> ModelWindow:
        identity = (bucket.rule, key, limit.window_us, limit.resolution)
        return self._windows.setdefault(identity, ModelWindow(limit.window_us, limit.resolution))


def _flat(checks: Sequence[Check]) -> list[tuple[Bucket, Limit, str, int]]:
    return [(bucket, limit, key, cost) for bucket, key, cost in checks for limit in bucket.limits]


def _sum_up(answers: Sequence[Answer]) -> Verdict:
    waits = [answer.retry_after_us for answer in answers]
    if None in waits:
        return Verdict(False, Reason.TOO_LARGE, None, tuple(answers))
    longest_us = max((wait_us for wait_us in waits if wait_us), default=0)
    return Verdict(not longest_us, Reason.LIMITED if longest_us else Reason.OK, longest_us, tuple(answers))
