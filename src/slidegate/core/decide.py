"""A question asks several limits at once: all of its windows are charged, or none.

A store says where the windows of a question lie, and holds their locks or a transaction around the call. A question
may ask one window twice; then it has to fit twice.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any, Final, TypeAlias

from .concurrency import Concurrency
from .decision import Check, Decision, Reason
from .quotas import Quota
from .reservation import Reservation, reserved
from .ring import NEVER, Ring, WindowState

OK: Final = Reason.OK
LIMITED: Final = Reason.LIMITED
TOO_LARGE: Final = Reason.TOO_LARGE

Counter: TypeAlias = Ring | Quota | Concurrency
"""What counts the units of a limit, see `Ring`: quotas and permits are counted by their limit itself."""
WindowRef: TypeAlias = tuple[Counter, int, MutableMapping[Any, bytes], Any]
"""The counter of a limit, the cost, and where the window lies: a mapping, which has it, and its key there.

A question has one for each limit of each check, in turn.
"""


def decide(checks: Sequence[Check], refs: Sequence[WindowRef], now_us: int) -> Decision:
    """Charge all windows of a question if all of them have room, else none.

    Args:
        checks: The question.
        refs: Where its windows lie. Those of quotas have entered the period of now, see `enter_periods`.
        now_us: The moment.
    """
    if len(refs) == 1:
        counter, cost, windows, key = refs[0]
        windows[key], state = counter.spend(windows[key], now_us, cost)
        states = [state]
    else:
        states = _spend_all(refs, now_us)
    for state in states:
        if state[3]:
            return _refuse(checks, refs, states, now_us)
    for bucket, _, _ in checks:
        if not bucket.plain:
            units = [cost for _, cost, _, _ in refs]
            return Decision(True, OK, now_us, checks, states, _reserved(refs, checks, now_us, units))
    return Decision(True, OK, now_us, checks, states, None)


def _spend_all(refs: Sequence[WindowRef], now_us: int) -> list[WindowState]:
    """Charge several windows, all or none; return their states."""
    before: list[bytes] = []
    states: list[WindowState] = []
    refused = False
    for counter, cost, windows, key in refs:
        window = windows[key]
        before.append(window)
        windows[key], state = counter.spend(window, now_us, cost)
        states.append(state)
        if state[3]:
            refused = True
    if refused:
        for at in range(len(refs) - 1, -1, -1):  # backwards, because two may have a window in common
            if not states[at][3]:
                counter, _, windows, key = refs[at]
                windows[key] = window = counter.settle(before[at], now_us)
                states[at] = counter.state(window)
    return states


def _refuse(checks: Sequence[Check], refs: Sequence[WindowRef], states: list[WindowState], now_us: int) -> Decision:
    """Refuse a question for which some window has no room.

    One that asks a window twice may be charged all the same: keys that share the window fit each by itself.
    """
    if len(checks) > 1 and len({(id(windows), key) for _, _, windows, key in refs}) < len(refs):
        waits = _waits(checks, refs, now_us)
        if not any(waits):
            return charge_all(checks, refs, now_us)
        states = _states(refs, waits)
    reason, counts = LIMITED, False
    for state in states:
        if state[3] == NEVER:
            reason = TOO_LARGE
    for bucket, _, _ in checks:
        if bucket.count_denied:
            counts = True
    if reason is LIMITED and counts:
        _charge_refusal(checks, refs, now_us)
        states = _states(refs, _waits(checks, refs, now_us))
    return Decision(False, reason, now_us, checks, states)


def _charge_refusal(checks: Sequence[Check], refs: Sequence[WindowRef], now_us: int) -> None:
    """Charge a refusal to the limits that count such."""
    counts = [bucket.count_denied for bucket, _, _ in checks for _ in bucket.limits]
    for (counter, cost, windows, key), counted in zip(refs, counts, strict=True):
        if counted:
            windows[key], _ = counter.charge(windows[key], now_us, cost)


def charge_all(checks: Sequence[Check], refs: Sequence[WindowRef], now_us: int) -> Decision:
    """Charge all windows of a question, whatever their limits."""
    states: list[WindowState] = []
    units: list[int] = []
    for counter, cost, windows, key in refs:
        windows[key], kept = counter.charge(windows[key], now_us, cost)
        states.append(counter.state(windows[key]))
        units.append(kept)
    return Decision(True, OK, now_us, checks, states, _reserved(refs, checks, now_us, units))


def _reserved(
    refs: Sequence[WindowRef], checks: Sequence[Check], now_us: int, units: Sequence[int]
) -> list[Reservation]:
    """Return what a question has charged."""
    marks = [counter.mark(windows[key]) for counter, _, windows, key in refs]
    return reserved(checks, now_us, marks, units)


def refund_all(
    reservations: Sequence[Reservation],
    refs: Sequence[WindowRef],
    now_us: int,
    *,
    latest_us: int,
    floor_us: int = -1,
) -> bool:
    """Hand back what was charged, in every window that still holds it; return whether any does.

    Args:
        reservations: What was charged.
        refs: Where its windows lie, those of each check in turn.
        now_us: The moment.
        latest_us: The latest moment that the store has seen. What has left by then is not handed back, also where the
            clock has stepped back since and its moment comes again.
        floor_us: When everything was reset: nothing that was charged up to then is handed back.
    """
    changed = False
    noted = [
        (one.decided_us, mark, units) for one in reservations for mark, units in zip(one.marks, one.units, strict=True)
    ]
    for (decided_us, mark, units), (counter, _, windows, key) in zip(noted, refs, strict=True):
        kept = isinstance(counter, Concurrency)  # a permit is held, whatever time it is
        if kept or (decided_us > floor_us and (isinstance(counter, Quota) or latest_us < mark + counter.span_us)):
            left = counter.remove(windows[key], now_us, decided_us, mark, units)
            if left is not None:
                windows[key], changed = left, True
    return changed


def enter_periods(refs: Sequence[WindowRef], now_us: int, unix_us: int) -> None:
    """Let the counts of quotas enter the periods of now, before anything is asked of them.

    Args:
        refs: Where the windows of a question lie.
        now_us: The time of the store.
        unix_us: Unix time at the same moment.
    """
    for counter, _, windows, key in refs:
        if isinstance(counter, Quota):
            windows[key] = counter.enter(windows[key], now_us, unix_us)


def _states(refs: Sequence[WindowRef], waits: Sequence[int]) -> list[WindowState]:
    return [
        counter.state(windows[key], wait_us) for (counter, _, windows, key), wait_us in zip(refs, waits, strict=True)
    ]


def _waits(checks: Sequence[Check], refs: Sequence[WindowRef], now_us: int) -> list[int]:
    """Return how long each limit holds a question up, and charge nothing.

    What a question asks of one window for one key has to fit together. Keys that share a window have to fit each by
    itself: then each keeps its bound, and a question that would pass if they had windows of their own is not refused
    for ever.
    """
    waits = []
    imagined: dict[tuple[int, Any, str], tuple[bytes, int]] = {}
    clients = [client for bucket, client, _ in checks for _ in bucket.limits]
    for (counter, cost, windows, key), client in zip(refs, clients, strict=True):
        window, ahead = imagined.get((id(windows), key, client), (windows[key], 0))
        window, state = counter.spend(window, now_us, cost, ahead)
        if state[3]:
            window, _ = counter.charge(window, now_us, cost)  # what comes after it in this window waits for it, too
        imagined[id(windows), key, client] = window, ahead + cost
        waits.append(state[3])
    return waits
