"""Decides a question, which is a sequence of checks: all of its windows are charged, or none.

The store locates the windows of a question, and holds their locks or a transaction during the call. A question may
contain one window twice; then both costs have to fit.
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
"""Counts the units of a limit, see `Ring`; quotas and concurrency limits are their own counters."""
WindowRef: TypeAlias = tuple[Counter, int, MutableMapping[Any, bytes], Any]
"""The counter of a limit, the cost, and the location of the window: the mapping that contains it, and its key there.

A question has one for each limit of each check, in order.
"""


def decide(checks: Sequence[Check], refs: Sequence[WindowRef], now_us: int) -> Decision:
    """Charge all windows of a question if all of them have room, else none; return the decision.

    Args:
        checks: The question.
        refs: Its windows; those of quotas are in their current period, see `enter_periods`.
        now_us: The store's time, in microseconds.
    """
    if len(refs) == 1:
        counter, cost, windows, key = refs[0]
        windows[key], state = counter.spend(windows[key], now_us, cost)
        states, refused, plain = [state], state[3] != 0, isinstance(counter, Ring)
    else:
        states, refused, plain = _spend_all(refs, now_us)
    if refused:
        return _refuse(checks, refs, states, now_us)
    if plain:
        return Decision(True, OK, now_us, checks, states, None)
    units = [cost for _, cost, _, _ in refs]
    return Decision(True, OK, now_us, checks, states, _reserved(refs, checks, now_us, units))


def _spend_all(refs: Sequence[WindowRef], now_us: int) -> tuple[list[WindowState], bool, bool]:
    """Charge all of several windows, or none; return their states, whether one has no room, and if all are rings."""
    before: list[bytes] = []
    states: list[WindowState] = []
    refused, plain = False, True
    for counter, cost, windows, key in refs:
        window = windows[key]
        before.append(window)
        windows[key], state = counter.spend(window, now_us, cost)
        states.append(state)
        if state[3]:
            refused = True
        if not isinstance(counter, Ring):
            plain = False
    if refused:
        for at in range(len(refs) - 1, -1, -1):  # backwards, because two refs may share a window
            if not states[at][3]:
                counter, _, windows, key = refs[at]
                windows[key] = window = counter.settle(before[at], now_us)
                states[at] = counter.state(window)
    return states, refused, plain


def _refuse(checks: Sequence[Check], refs: Sequence[WindowRef], states: list[WindowState], now_us: int) -> Decision:
    """Refuse a question for which at least one window has no room.

    A question that contains a window twice may still be admitted: keys that share a window only have to fit one by one.
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
    """Charge a refusal to the limits with `count_denied`."""
    counts = [bucket.count_denied for bucket, _, _ in checks for _ in bucket.limits]
    for (counter, cost, windows, key), counted in zip(refs, counts, strict=True):
        if counted:
            windows[key], _ = counter.charge(windows[key], now_us, cost)


def charge_all(checks: Sequence[Check], refs: Sequence[WindowRef], now_us: int) -> Decision:
    """Charge all windows of a question, even beyond their limits; return the decision."""
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
    """Return the reservations of a question that was charged."""
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
    """Refund reservations in every window that still contains their units; return whether any does.

    Args:
        reservations: The reservations.
        refs: Their windows, those of each check in order.
        now_us: The store's time, in microseconds.
        latest_us: The latest time that the store has seen. Units that had left by then are not refunded, even if the
            clock has stepped back since.
        floor_us: The time of the last reset of everything; charges up to then are not refunded.
    """
    changed = False
    noted = [
        (one.decided_us, mark, units) for one in reservations for mark, units in zip(one.marks, one.units, strict=True)
    ]
    for (decided_us, mark, units), (counter, _, windows, key) in zip(noted, refs, strict=True):
        kept = isinstance(counter, Concurrency)  # a permit does not depend on the time
        if kept or (decided_us > floor_us and (isinstance(counter, Quota) or latest_us < mark + counter.span_us)):
            left = counter.remove(windows[key], now_us, decided_us, mark, units)
            if left is not None:
                windows[key], changed = left, True
    return changed


def enter_periods(refs: Sequence[WindowRef], now_us: int, unix_us: int) -> None:
    """Move the windows of quotas into their current period; this has to precede every other use of them.

    Args:
        refs: The windows of a question.
        now_us: The store's time, in microseconds.
        unix_us: The Unix time, read together with `now_us`.
    """
    for counter, _, windows, key in refs:
        if isinstance(counter, Quota):
            windows[key] = counter.enter(windows[key], now_us, unix_us)


def _states(refs: Sequence[WindowRef], waits: Sequence[int]) -> list[WindowState]:
    return [
        counter.state(windows[key], wait_us) for (counter, _, windows, key), wait_us in zip(refs, waits, strict=True)
    ]


def _waits(checks: Sequence[Check], refs: Sequence[WindowRef], now_us: int) -> list[int]:
    """Return how long each limit delays a question, without charging anything.

    The costs of one key in one window have to fit together. Keys that share a window have to fit one by one: each key
    stays within its limit, and a question that would pass if each had its own window is not refused for ever.
    """
    waits = []
    imagined: dict[tuple[int, Any, str], tuple[bytes, int]] = {}
    clients = [client for bucket, client, _ in checks for _ in bucket.limits]
    for (counter, cost, windows, key), client in zip(refs, clients, strict=True):
        window, ahead = imagined.get((id(windows), key, client), (windows[key], 0))
        window, state = counter.spend(window, now_us, cost, ahead)
        if state[3]:
            window, _ = counter.charge(window, now_us, cost)  # later costs in this window have to wait for it, too
        imagined[id(windows), key, client] = window, ahead + cost
        waits.append(state[3])
    return waits
