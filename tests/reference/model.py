"""The reference model of a store. Its windows, quotas and permits are in `model_window`."""

from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple, TypeAlias

from slidegate.core import AnyLimit, Bucket, Check, Decision, Limit, Quota, Reason
from slidegate.core.limits import Identity

from .model_window import OPEN_US, Answer, ModelPermits, ModelQuota, ModelWindow

Window: TypeAlias = ModelWindow | ModelQuota | ModelPermits


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
        return sum(window.taken for window in self._windows.values() if isinstance(window, ModelPermits))

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

    def reset(self, key: str | None) -> bool:
        """Reset every window of a key, or of all keys; return whether there were units that had not expired."""
        windows = [window for (_, whose, _), window in self._windows.items() if key in (whose, None)]
        had_units = any(window.holds_units for window in windows)
        for window in windows:
            window.reset()
        return had_units

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
