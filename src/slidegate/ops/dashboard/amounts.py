"""What other amounts of a limit would have refused, as far as the counts that are kept can tell.

These are the requests of each client in each of the last five minutes, so the answer is a lower bound. A part of the
time that is not longer than the window has at most one amount; a minute has that of each window that it consists of::

    window of 3 minutes    |-----------|           three minutes together: the requests beyond one amount are refused
    window of 25 seconds   |---|---|---|           each minute: those beyond three amounts
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

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


def demand_of(minutes: Sequence[Iterable[ClientTraffic]], rule: str) -> dict[str, list[int]]:
    """Return by client how many of its requests a rule counted or refused in each minute."""
    found: dict[str, list[int]] = {}
    for place, minute in enumerate(minutes):
        for one in minute:
            requests = one.counted_by.get(rule, 0) + one.refused_by.get(rule, 0)
            if requests:
                found.setdefault(one.key, [0] * len(minutes))[place] += requests
    return found


def other_amounts(demand: Mapping[str, Sequence[int]], amount: int, window_us: int) -> list[Amount]:
    """Return what some amounts would have refused.

    Args:
        demand: The requests of each client in each minute.
        amount: The amount in force.
        window_us: The window of the limit.
    """
    found = {}
    for factor in FACTORS:
        tried = max(round(amount * factor), 1)
        clients = requests = 0
        for minutes in demand.values():
            refused = refused_at_least(minutes, tried, window_us)
            requests += refused
            clients += refused > 0
        found[tried] = Amount(tried, tried == amount, clients, requests)
    return [found[tried] for tried in sorted(found)]


def refused_at_least(minutes: Sequence[int], amount: int, window_us: int) -> int:
    """Return how many requests of one client an amount would have refused at least."""
    if window_us < _MINUTE_US:
        windows = -(-_MINUTE_US // window_us)
        return sum(max(requests - amount * windows, 0) for requests in minutes)
    together = window_us // _MINUTE_US
    most = 0
    for first in range(min(together, len(minutes))):
        refused = max(sum(minutes[:first]) - amount, 0)
        for place in range(first, len(minutes), together):
            refused += max(sum(minutes[place : place + together]) - amount, 0)
        most = max(most, refused)
    return most
