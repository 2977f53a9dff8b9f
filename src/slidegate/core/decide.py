"""A demand asks several limits at once: all of its windows are charged, or none.

A store says where the windows of a demand lie, one for each limit of each check in turn, and holds their locks or a
transaction around the call. A demand may ask one window twice; then it has to fit twice.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, Final, TypeAlias

from .charge import Charge
from .decision import Check, Decision, Reason
from .limits import AnyLimit, Concurrency, Quota
from .ring import GRACE_US, KEPT_US, NEVER, WindowState, reserve

OK: Final = Reason.OK
LIMITED: Final = Reason.LIMITED
TOO_LARGE: Final = Reason.TOO_LARGE

Place: TypeAlias = tuple[MutableMapping[Any, bytes], Any]
"""Where a window lies: a mapping, which has it, and its key there."""


def decide(checks: Sequence[Check], places: Sequence[Place], now_us: int, *, first_in_line: bool = False) -> Decision:
    """Charge all windows of a demand if all of them have room, else none.

    Args:
        checks: The demand.
        places: Where its windows lie. Those of quotas have entered the period of now, see `enter_periods`.
        now_us: The moment.
        first_in_line: Whether the request is the first of those who wait: what is kept for them is its own. Where it
            lacks room, what comes free is kept for it for `KEPT_US`, or until it is to ask again if that is sooner.
    """
    before: list[bytes] = []
    states: list[WindowState] = []
    refused, plain, at = False, True, 0
    for bucket, _, cost in checks:
        if not bucket.plain:
            plain = False
        for limit in bucket.limits:
            windows, key = places[at]
            at += 1
            window = windows[key]
            before.append(window)
            windows[key], state = limit.spend(window, now_us, cost, 0, first_in_line)
            states.append(state)
            if state[3]:
                refused = True
    if refused:
        return _refuse(checks, places, before, states, now_us, first_in_line)
    return Decision(True, OK, now_us, checks, states, Charge(states if plain else _marks(checks, places)))


def _refuse(
    checks: Sequence[Check],
    places: Sequence[Place],
    before: Sequence[bytes],
    states: list[WindowState],
    now_us: int,
    first_in_line: bool,
) -> Decision:
    """Refuse a demand for which some window has no room, and take back what others were charged."""
    limits = [limit for bucket, _, _ in checks for limit in bucket.limits]
    waits = [state[3] for state in states]
    if len(places) > 1:
        for at in range(len(places) - 1, -1, -1):
            windows, key = places[at]
            windows[key] = limits[at].settle(before[at], now_us)
        if len({(id(windows), key) for windows, key in places}) < len(places):
            waits = _waits(checks, places, now_us, first_in_line)
            if not any(waits):
                return charge_all(checks, places, now_us)
    reason = TOO_LARGE if NEVER in waits else LIMITED
    if reason is LIMITED and first_in_line:
        _keep_free(limits, places, waits, now_us)
    elif reason is LIMITED and any(bucket.count_denied for bucket, _, _ in checks):
        for limit, cost, counts, (windows, key) in _asked(checks, places):
            if counts:
                windows[key], _ = limit.charge(windows[key], now_us, cost)
        waits = _waits(checks, places, now_us, first_in_line)
    if len(places) > 1 or checks[0][0].count_denied:
        states = [
            limit.state(windows[key], wait_us)
            for limit, (windows, key), wait_us in zip(limits, places, waits, strict=True)
        ]
    return Decision(False, reason, now_us, checks, states)


def _keep_free(limits: Sequence[AnyLimit], places: Sequence[Place], waits: Sequence[int], now_us: int) -> None:
    """Keep what comes free for the first of those who wait, until it asks again."""
    until_us = now_us + min(max(waits), KEPT_US) + GRACE_US
    for limit, (windows, key), wait_us in zip(limits, places, waits, strict=True):
        if wait_us > 0 and not isinstance(limit, Quota):  # nobody waits for the next day
            windows[key] = reserve(windows[key], until_us)


def charge_all(checks: Sequence[Check], places: Sequence[Place], now_us: int) -> Decision:
    """Charge all windows of a demand, whatever their limits."""
    states: list[WindowState] = []
    marks: list[tuple[int, int]] = []
    for limit, cost, _, (windows, key) in _asked(checks, places):
        windows[key], kept = limit.charge(windows[key], now_us, cost)
        states.append(limit.state(windows[key]))
        marks.append((limit.mark(windows[key]), kept))
    return Decision(True, OK, now_us, checks, states, Charge(marks))


def refund_all(decision: Decision, places: Sequence[Place], now_us: int, *, latest_us: int, floor_us: int = -1) -> bool:
    """Hand back what a decision charged, in every window that still holds it; return whether any does.

    Args:
        decision: The decision, which is not charged any more afterwards if any does.
        places: Where its windows lie.
        now_us: The moment.
        latest_us: The latest moment that the store has seen. What has left by then is not handed back, also where the
            clock has stepped back since and its moment comes again.
        floor_us: When everything was reset: nothing that was charged up to then is handed back.
    """
    changed = False
    marks = list(decision.charge)
    for charged, (limit, cost, _, (windows, key)) in zip(marks, _asked(decision.checks, places), strict=True):
        mark, units = (0, 0) if charged is None else charged if len(charged) == 2 else (charged[2], cost)
        kept = isinstance(limit, Concurrency)  # a permit is held, whatever time it is
        if kept or (decision.now_us > floor_us and (isinstance(limit, Quota) or latest_us < mark + limit.span_us)):
            left = limit.remove(windows[key], now_us, decision.now_us, mark, units)
            if left is not None:
                windows[key], changed = left, True
    if changed:
        decision.charge.clear()
    return changed


def enter_periods(checks: Sequence[Check], places: Sequence[Place], now_us: int, unix_us: int) -> None:
    """Let the counts of quotas enter the periods of now, before anything is asked of them.

    Args:
        checks: The demand.
        places: Where its windows lie.
        now_us: The time of the store.
        unix_us: Unix time at the same moment.
    """
    for limit, _, _, (windows, key) in _asked(checks, places):
        if isinstance(limit, Quota):
            windows[key] = limit.enter(windows[key], now_us, unix_us)


def _asked(checks: Sequence[Check], places: Sequence[Place]) -> Iterator[tuple[AnyLimit, int, bool, Place]]:
    """Yield each limit, its cost, whether its refusals count, and the place of its window."""
    at = 0
    for bucket, _, cost in checks:
        for limit in bucket.limits:
            yield limit, cost, bucket.count_denied, places[at]
            at += 1


def _marks(checks: Sequence[Check], places: Sequence[Place]) -> list[tuple[int, int]]:
    """Return (mark, units) of each charge."""
    return [(limit.mark(windows[key]), cost) for limit, cost, _, (windows, key) in _asked(checks, places)]


def _waits(checks: Sequence[Check], places: Sequence[Place], now_us: int, first_in_line: bool) -> list[int]:
    """Return how long each limit holds a demand up, and charge nothing.

    What a demand asks of one window for one key has to fit together. Keys that share a window have to fit each by
    itself: then each keeps its bound, and a demand that would pass if they had windows of their own is not refused for
    ever.
    """
    waits = []
    imagined: dict[tuple[int, Any, str], tuple[bytes, int]] = {}
    at = 0
    for bucket, client, cost in checks:
        for limit in bucket.limits:
            windows, key = places[at]
            at += 1
            window, ahead = imagined.get((id(windows), key, client), (windows[key], 0))
            window, state = limit.spend(window, now_us, cost, ahead, first_in_line)
            if state[3]:
                window, _ = limit.charge(window, now_us, cost)  # what comes after it in this window waits for it, too
            imagined[id(windows), key, client] = window, ahead + cost
            waits.append(state[3])
    return waits
