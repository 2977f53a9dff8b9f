"""Decides a question, which is a sequence of checks: all of its windows are charged, or none.

The store locates the windows of a question, and holds their locks or a transaction during the call. A question contains
no window twice; if two of its keys share a cell, the cell is charged for both.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, TypeAlias

from .buckets import Check
from .counters import Counter, PermitCounter
from .decision import LIMITED, OK, TOO_LARGE, Decision
from .reservation import Reservation, reserved
from .ring import NEVER, WindowState

WindowRef: TypeAlias = tuple[Counter, int, MutableMapping[Any, bytes], Any, bool]
"""The counter of a limit, the cost, the location of the window (the mapping that contains it, and its key there), and
whether refusals are charged to it: `Bucket.count_denied`.

A question has one for each limit of each check, in order.
"""


def decide(checks: Sequence[Check], refs: Sequence[WindowRef], now_us: int) -> Decision:
    """Charge all windows of a question if all of them have room, else none; return the decision.

    `Decision.reservations` is computed when it is read: the readings contain the marks of rings and permits.

    Args:
        now_us: The store's time, in microseconds.
    """
    states: list[WindowState] = []
    has_room = True
    for counter, cost, windows, key, _ in refs:
        windows[key], state = counter.spend(windows[key], now_us, cost)
        states.append(state)
        if state[3]:
            has_room = False
    if has_room:
        return Decision(True, OK, now_us, checks, states, None)
    return refuse(checks, states, now_us, lambda _: refs)


def refuse(
    checks: Sequence[Check],
    states: list[WindowState],
    now_us: int,
    find: Callable[[Sequence[Check]], Sequence[WindowRef]],
) -> Decision:
    """Return the refusal of a question whose windows were spent from, at least one of which had no room.

    Args:
        states: What spending has returned for each.
        now_us: The store's time, in microseconds.
        find: Returns the windows, where something has to be taken back or charged.
    """
    refused = LIMITED
    for state in states:
        if state[3] == NEVER:
            refused = TOO_LARGE
    if len(states) > 1:
        # Take back what was charged to the windows that have room.
        for at, (counter, cost, windows, key, _) in enumerate(find(checks)):
            _, _, mark, wait_us = states[at]
            if not wait_us:
                window = counter.remove(windows[key], now_us, mark, cost)
                if window is not None:  # None if the cost is 0
                    windows[key] = window
                _, states[at] = counter.spend(windows[key], now_us, 0)
    if refused is LIMITED:
        for bucket, _, _ in checks:
            if bucket.count_denied:
                states = _charge_refusal(find(checks), now_us)
                break
    return Decision(False, refused, now_us, checks, states)


def _charge_refusal(refs: Sequence[WindowRef], now_us: int) -> list[WindowState]:
    """Charge a refusal to the limits with `count_denied`; return the states of all windows, and their waits by then."""
    states: list[WindowState] = []
    for counter, cost, windows, key, is_charged in refs:
        if is_charged:
            windows[key], _ = counter.charge(windows[key], now_us, cost)
        _, state = counter.spend(windows[key], now_us, cost)
        if not state[3]:  # it has room for the cost, which this state contains but the window does not
            _, state = counter.spend(windows[key], now_us, 0)
        states.append(state)
    return states


def charge_all(checks: Sequence[Check], refs: Sequence[WindowRef], now_us: int) -> Decision:
    """Charge all windows of a question, even beyond their limits; return the decision."""
    states: list[WindowState] = []
    units: list[int] = []
    for counter, cost, windows, key, _ in refs:
        windows[key], charged = counter.charge(windows[key], now_us, cost)
        _, (spent, leaves_us, mark, _) = counter.spend(windows[key], now_us, 0)
        states.append((spent, leaves_us, mark, 0))
        units.append(charged)
    return Decision(True, OK, now_us, checks, states, reserved(checks, states, units))


def refund_all(reservations: Sequence[Reservation], refs: Sequence[WindowRef], now_us: int) -> bool:
    """Refund reservations in every window that still contains some of their units; return whether any does.

    Args:
        refs: Their windows, those of each check in order.
        now_us: The store's time, in microseconds.
    """
    charges = [charge for one in reservations for charge in zip(one.marks, one.units, strict=True)]
    has_refunded = False
    for (mark, units), (counter, _, windows, key, _) in zip(charges, refs, strict=True):
        window = counter.remove(windows[key], now_us, mark, units)
        if window is not None:
            windows[key] = window
            has_refunded = True
    return has_refunded


def release_permits(decision: Decision, refs: Sequence[WindowRef]) -> None:
    """Return the permits of a decision which is whole; `remaining` then includes them."""
    readings = list(decision.readings)
    for at, (counter, cost, windows, key, _) in enumerate(refs):
        if isinstance(counter, PermitCounter):
            windows[key] = counter.remove(windows[key], decision.now_us, 0, cost) or b""
            readings[at] = readings[at][0] - cost, 0, 0, 0
    decision.readings = readings
    decision.released = True
