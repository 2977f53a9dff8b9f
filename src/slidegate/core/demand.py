"""A demand asks several limits at once: all of its windows are charged, or none.

A store finds the windows of a demand, one for each limit of each check, in their order, and holds its lock or a
transaction around the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from .decision import Bucket, Check, Decision, Reason
from .limits import AnyLimit, Limit
from .quotas import Quota
from .windows.bookings import BookedWindow, Entry, Note
from .windows.periods import PeriodCount
from .windows.places import Places
from .windows.theory import NEVER, Reading

OK: Final = Reason.OK
LIMITED: Final = Reason.LIMITED
TOO_LARGE: Final = Reason.TOO_LARGE


def judge(
    checks: Sequence[Check], asked: Sequence[tuple[Entry, int, int]], windows: list[Entry], now_us: int
) -> Decision:
    """Like `judge_all`, where no window is asked twice and nothing can be booked: charge all windows or none.

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
        waits.append(window.wait_us(now_us, amount - (cost or 1)))  # type: ignore[union-attr]
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
    check: int
    """The place of its check in the demand."""
    ahead: int
    """Units that earlier checks of the demand ask of the same window for the same key: it has to fit beside them."""
    others: int
    """Units that they ask of it for other keys, where keys share a cell.

    Each key has to fit beside the units in the cell, and not beside these: then each keeps its bound, and a demand that
    would pass if its keys had windows of their own is not refused for ever.
    """

    def room_us(self, now_us: int, from_us: int) -> int:
        """Return the first moment with room, not before `from_us`; `NEVER` if there is none, `OPEN` if nobody knows."""
        window, limit = self.window, self.limit
        if isinstance(window, BookedWindow):
            return window.room_us(from_us, limit.amount, self.cost, self.ahead)
        wait_us = window.wait_us(now_us, limit.amount - self.ahead - (self.cost or 1))
        return wait_us if wait_us < 0 else max(now_us + wait_us, from_us)


def judge_all(checks: Sequence[Check], windows: list[Entry], now_us: int) -> Decision:
    """Charge all windows or none, or book them, or charge a refusal.

    Puts a `BookedWindow` into `windows` where a ring gets its first booking.
    """
    for window in windows:
        if isinstance(window, BookedWindow):
            window.settle(now_us)
    asked = _asked(checks, windows)
    waits = _waits(asked, now_us)
    if not any(waits):
        return _spend(checks, asked, windows, now_us)
    reason = TOO_LARGE if NEVER in waits else LIMITED
    if reason is LIMITED:
        lacking = {ask.check for ask, wait_us in zip(asked, waits, strict=True) if wait_us}
        longest_us = max(waits)
        asking = [(ask, wait_us) for ask, wait_us in zip(asked, waits, strict=True) if ask.check in lacking]
        if longest_us < 0 and all(_may_wait(ask, wait_us, longest_us) for ask, wait_us in asking):
            return _book(checks, asked, windows, waits, lacking, now_us)
        denied = [ask for ask in asked if ask.bucket.count_denied]
        for ask in denied:
            ask.window.charge(now_us, ask.cost, ask.limit.resolution)
        waits = _waits(asked, now_us) if denied else waits
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
    limits = [
        (place, bucket, limit, key, cost) for place, (bucket, key, cost) in enumerate(checks) for limit in bucket.limits
    ]
    units: dict[Entry, dict[str, int]] = {}
    asked: list[Ask] = []
    for window, (place, bucket, limit, key, cost) in zip(windows, limits, strict=True):
        before = units.setdefault(window, {})
        ahead = before.get(key, 0)
        asked.append(Ask(window, limit, cost, bucket, place, ahead, sum(before.values()) - ahead))
        before[key] = ahead + cost
    return asked


def _waits(asked: Sequence[Ask], now_us: int) -> list[int]:
    """Return how long each limit holds the demand up; the longest is when all of them have room at once.

    Where something is booked, a moment with room may be followed by one without. So each limit that has no room any
    more when the last one has is asked for its next moment, until all agree.
    """
    waits = [0] * len(asked)
    from_us = now_us
    while True:
        rooms = [ask.room_us(now_us, from_us) for ask in asked]
        waits = [
            room_us if room_us < 0 else room_us - now_us if room_us > from_us else wait_us
            for room_us, wait_us in zip(rooms, waits, strict=True)
        ]
        if min(waits, default=0) < 0 or max(rooms, default=from_us) == from_us:
            return waits
        from_us = max(rooms)


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


def _may_wait(ask: Ask, wait_us: int, longest_us: int) -> bool:
    if isinstance(ask.window, PeriodCount):
        return wait_us == 0  # nobody waits for the next day; a limit beside it may
    if isinstance(ask.window, Places):
        return False  # no moment is known for which it could be booked
    waiting = ask.window.waiting() if isinstance(ask.window, BookedWindow) else 0
    return longest_us <= ask.bucket.wait_us and waiting < ask.bucket.wait_max


def _book(
    checks: Sequence[Check],
    asked: Sequence[Ask],
    windows: list[Entry],
    waits: Sequence[int],
    lacking: set[int],
    now_us: int,
) -> Decision:
    """Book the demand for the moment when all windows have room."""
    moment_us = now_us + max(waits)
    booked: dict[Entry, BookedWindow] = {}
    notes: list[Note] = []
    for place, (window, limit, cost, _, check, *_) in enumerate(asked):
        if isinstance(window, Places):
            notes.append(Note(window, now_us, window.charge(now_us, cost, 1)))  # it is held while the request waits
            continue
        if isinstance(window, PeriodCount):
            # It is let through today, whenever the windows beside the quota have room.
            window.add(now_us, cost)
            notes.append(Note(window, window.end_us, cost))
            continue
        assert isinstance(limit, Limit), "what is booked is a window"
        again = window in booked
        if not again:
            booked[window] = window if isinstance(window, BookedWindow) else BookedWindow(window, limit, now_us)
        windows[place] = booked[window]
        notes.append(booked[window].book(now_us, moment_us, cost, waits=check in lacking and not again))
    readings = [(w.spent, w.leaves_us, w.newest_us, wait_us) for w, wait_us in zip(windows, waits, strict=True)]
    return Decision(True, Reason.WAITED, now_us, checks, readings, notes)
