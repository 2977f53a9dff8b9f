"""A demand asks several limits at once: all of its windows are charged, or none.

A store finds the windows of a demand, one for each limit of each check, in their order, and holds its lock or a
transaction around the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from .decision import Bucket, Check, Decision, Reason
from .limits import AnyLimit
from .quotas import Quota
from .windows.periods import PeriodCount
from .windows.rings import Entry
from .windows.theory import NEVER, Reading

OK: Final = Reason.OK
LIMITED: Final = Reason.LIMITED
TOO_LARGE: Final = Reason.TOO_LARGE


class Note(NamedTuple):
    """A charge that is not simply the cost at the time of its decision, with all that a refund needs to know."""

    window: Entry
    spent_us: int
    """The moment by which the window finds the units: that of the charge, or the end of the period of a quota."""
    units: int


def judge(
    checks: Sequence[Check], asked: Sequence[tuple[Entry, int, int]], windows: list[Entry], now_us: int
) -> Decision:
    """Like `judge_all`, where no window is asked twice, none counts a period, and no refusal is charged.

    Args:
        checks: The demand.
        asked: (window, amount, cost) each.
        windows: The windows alone, no two the same.
        now_us: The moment.
    """
    # Loops, because a comprehension is a call on CPython 3.11: with two limits the whole hit takes a seventh less.
    waits: list[int] = []
    readings: list[Reading] = []
    for window, amount, cost in asked:
        waits.append(window.wait_us(now_us, amount - (cost or 1)))
    if any(waits):
        for place, window in enumerate(windows):
            readings.append((window.spent, window.leaves_us, window.newest_us, waits[place]))
        return Decision(False, TOO_LARGE if NEVER in waits else LIMITED, now_us, checks, readings)
    for window, amount, cost in asked:
        readings.append(window.spend(now_us, amount, cost))
    return Decision(True, OK, now_us, checks, readings, windows)


class Ask(NamedTuple):
    """The part of a demand that asks one window."""

    window: Entry
    limit: AnyLimit
    cost: int
    bucket: Bucket
    ahead: int
    """Units that earlier checks of the demand ask of the same window for the same key: it has to fit beside them."""
    others: int
    """Units that they ask of it for other keys, where keys share a cell.

    Each key has to fit beside the units in the cell, and not beside these: then each keeps its bound, and a demand that
    would pass if its keys had windows of their own is not refused for ever.
    """

    def wait_us(self, now_us: int) -> int:
        """Return how long there is no room; `NEVER` if there is none ever, `OPEN` if nobody knows."""
        return self.window.wait_us(now_us, self.limit.amount - self.ahead - (self.cost or 1))


def judge_all(checks: Sequence[Check], windows: Sequence[Entry], now_us: int) -> Decision:
    """Charge all windows or none, or charge a refusal."""
    asked = _asked(checks, windows)
    waits = [ask.wait_us(now_us) for ask in asked]
    if not any(waits):
        return _spend(checks, asked, windows, now_us)
    reason = TOO_LARGE if NEVER in waits else LIMITED
    if reason is LIMITED:
        denied = [ask for ask in asked if ask.bucket.count_denied]
        for ask in denied:
            ask.window.charge(now_us, ask.cost, ask.limit.resolution)
        waits = [ask.wait_us(now_us) for ask in asked] if denied else waits
    readings = [(w.spent, w.leaves_us, w.newest_us, wait_us) for w, wait_us in zip(windows, waits, strict=True)]
    return Decision(False, reason, now_us, checks, readings)


def enter_periods(checks: Sequence[Check], windows: Sequence[Entry], now_us: int, unix_us: int) -> None:
    """Let the counts of quotas enter the periods of now, before anything is asked of them.

    Args:
        checks: The demand.
        windows: Its windows, in their order.
        now_us: The time of the store.
        unix_us: Unix time at the same moment.
    """
    limits = [limit for bucket, _, _ in checks for limit in bucket.limits]
    for window, limit in zip(windows, limits, strict=True):
        if isinstance(window, PeriodCount) and isinstance(limit, Quota):
            window.enter(limit.period_at(unix_us).end_us, now_us - unix_us)


def charge_all(checks: Sequence[Check], windows: Sequence[Entry], now_us: int) -> Decision:
    """Charge all windows, whatever their limits."""
    limits = [(limit, cost) for bucket, _, cost in checks for limit in bucket.limits]
    notes: list[Note] = []
    for window, (limit, cost) in zip(windows, limits, strict=True):
        kept = window.charge(now_us, cost, limit.resolution)
        notes.append(Note(window, _spent_us(window, now_us), kept))
    readings = [(window.spent, window.leaves_us, window.newest_us, 0) for window in windows]
    return Decision(True, OK, now_us, checks, readings, notes)


def holds_places(checks: Sequence[Check]) -> bool:
    """Tell whether checks ask for places."""
    for bucket, _, _ in checks:  # noqa: SIM110 - each demand comes here, and any() takes three times as long
        if bucket.held:
            return True
    return False


def _asked(checks: Sequence[Check], windows: Sequence[Entry]) -> list[Ask]:
    limits = [(bucket, limit, key, cost) for bucket, key, cost in checks for limit in bucket.limits]
    units: dict[Entry, dict[str, int]] = {}
    asked: list[Ask] = []
    for window, (bucket, limit, key, cost) in zip(windows, limits, strict=True):
        before = units.setdefault(window, {})
        ahead = before.get(key, 0)
        asked.append(Ask(window, limit, cost, bucket, ahead, sum(before.values()) - ahead))
        before[key] = ahead + cost
    return asked


def _spend(checks: Sequence[Check], asked: Sequence[Ask], windows: Sequence[Entry], now_us: int) -> Decision:
    """Charge all windows, in which there is room."""
    readings: list[Reading] = []
    charged: list[Entry | Note] = list(windows)
    for place, ask in enumerate(asked):
        if ask.others:
            # There is room for each key, but the ring may not be able to count all of them.
            kept = ask.window.charge(now_us, ask.cost, ask.window.spent + ask.cost)
            charged[place] = Note(ask.window, _spent_us(ask.window, now_us), kept)
            readings.append((ask.window.spent, ask.window.leaves_us, ask.window.newest_us, 0))
        else:
            readings.append(ask.window.spend(now_us, ask.limit.amount, ask.cost))
            if isinstance(ask.window, PeriodCount):
                charged[place] = Note(ask.window, ask.window.end_us, ask.cost)
    return Decision(True, OK, now_us, checks, readings, charged)


def _spent_us(window: Entry, now_us: int) -> int:
    """Return the moment by which a refund finds a charge of now: now, or the end of the period that it counts in."""
    return window.end_us if isinstance(window, PeriodCount) else now_us
