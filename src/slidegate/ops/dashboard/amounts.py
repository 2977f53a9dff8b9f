"""What other amounts of a limit would have refused, as far as the counts that are kept can tell.

These are the requests of each client in each of the last five minutes, so the answer is a lower bound. A part of the
time that is not longer than the window has at most one amount; a minute has that of each window that it consists of::

    window of 3 minutes    |-----------|           three minutes together: the requests beyond one amount are refused
    window of 25 seconds   |---|---|---|           each minute: those beyond three amounts
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Any, Final, NamedTuple

from ...core import Limit
from ...limiter import Publication
from ..traffic import ClientTraffic

FACTORS: Final = (0.25, 0.5, 1, 2, 4)
"""Which amounts are looked at, as shares of the one in force."""
_MINUTE_US: Final = 60_000_000


class Amount(NamedTuple):
    """An amount of a limit, and what it would have refused at least.

    Attributes:
        amount: The amount.
        in_force: Whether it is the one in force.
        clients: How many clients it would have refused.
        requests: How many of their requests.
    """

    amount: int
    in_force: bool
    clients: int
    requests: int


def limits_with_amount(limits: Iterable[Any], rule: str) -> list[Limit]:
    """Return the limits of a rule; no quotas, no permits, and none of functions."""
    found = []
    for one in limits:
        if one.rule == rule and one.changeable and isinstance(one.limit, Limit):
            found.append(one.limit)
    return found


def costs_one(published: Iterable[Publication], rule: str) -> bool:
    """Return whether each request costs one unit of a rule, as workers have published it."""
    for one in published:
        for other in one.text.rules:
            if other.rule == rule and (other.cost_by_function or other.cost != 1):
                return False
    return True


def demand_of(minutes: Sequence[Iterable[ClientTraffic]], rule: str) -> dict[str, list[int]]:
    """Return by client how many of its requests a rule counted or refused in each minute."""
    found: dict[str, list[int]] = {}
    for number, minute in enumerate(minutes):
        for one in minute:
            requests = one.counted_by.get(rule, 0) + one.refused_by.get(rule, 0)
            if not requests:
                continue
            by_minute = found.setdefault(one.key, [0] * len(minutes))
            by_minute[number] += requests
    return found


def other_amounts(demand: Mapping[str, Sequence[int]], amount: int, window_us: int) -> list[Amount]:
    """Return what some amounts would have refused.

    Args:
        demand: The requests of each client in each minute.
        amount: The amount in force.
        window_us: The window of the limit.
    """
    found = []
    for tried in sorted({max(round(amount * factor), 1) for factor in FACTORS}):
        clients = requests = 0
        for minutes in demand.values():
            refused = refused_at_least(minutes, tried, window_us)
            requests += refused
            if refused:
                clients += 1
        found.append(Amount(tried, tried == amount, clients, requests))
    return found


def refused_at_least(minutes: Sequence[int], amount: int, window_us: int) -> int:
    """Return how many requests of one client an amount would have refused at least."""
    if window_us < _MINUTE_US:
        windows = ceil(_MINUTE_US / window_us)
        return _beyond(minutes, amount * windows)
    minutes_of_window = window_us // _MINUTE_US
    most = 0
    # A window may begin with any minute; where the first one does is tried.
    for first in range(min(minutes_of_window, len(minutes))):
        parts = [sum(minutes[:first])]
        for begin in range(first, len(minutes), minutes_of_window):
            parts.append(sum(minutes[begin : begin + minutes_of_window]))
        most = max(most, _beyond(parts, amount))
    return most


def _beyond(parts: Iterable[int], amount: int) -> int:
    """Return how many requests are beyond an amount in each part of the time."""
    return sum(max(requests - amount, 0) for requests in parts)
