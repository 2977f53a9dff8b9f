"""Two clients against the real windows, on a clock that jumps from one request to the next.

The greedy client takes every unit as soon as it is there. The steady one sends at the highest even pace that is never
refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ...core.limits import Limit
from .bursts import steady_us

_MOST_ASKED: Final = 20_000
"""How many windows are asked for one client: one of milliseconds beside one of months would take for ever."""
_FEW_STEPS: Final = 5_000


class Spent(NamedTuple):
    """Units that a client got at one moment.

    Attributes:
        at_us: The moment.
        units: How many.
    """

    at_us: int
    units: int


def most_steps(limits: Sequence[Limit]) -> int:
    """Return how many moments of a client are looked at."""
    return _MOST_ASKED // len(limits)


def greedy(limits: Sequence[Limit], start_us: int, span_us: int) -> Iterator[Spent]:
    """Yield the units of a client that takes each as soon as it is there, for at most `most_steps` moments."""
    windows = [b""] * len(limits)
    now_us = start_us
    for _ in range(most_steps(limits)):
        if now_us >= start_us + span_us:
            return
        windows = [limit.settle(window, now_us) for limit, window in zip(limits, windows, strict=True)]
        units = min(limit.amount - limit.state(window)[0] for limit, window in zip(limits, windows, strict=True))
        windows = [limit.charge(window, now_us, units)[0] for limit, window in zip(limits, windows, strict=True)]
        yield Spent(now_us, units)
        now_us += max(limit.spend(window, now_us, 1)[1][3] for limit, window in zip(limits, windows, strict=True))


def steady(limits: Sequence[Limit], start_us: int, span_us: int) -> Iterator[Spent]:
    """Yield the units of a client that keeps the even pace which is never refused; a refused request yields 0 units.

    Where that are very many requests, several are sent at once, and the pace is that of such groups.
    """
    wanted = span_us // steady_us(limits) // _FEW_STEPS + 1
    units = min(wanted, *(limit.amount for limit in limits))
    windows = [b""] * len(limits)
    pace_us = steady_us(limits, units)
    for step in range(min(-(-span_us // pace_us), most_steps(limits))):
        now_us = start_us + step * pace_us
        spent = [limit.spend(window, now_us, units) for limit, window in zip(limits, windows, strict=True)]
        passes = not any(wait_us for _, (_, _, _, wait_us) in spent)
        if passes:
            windows = [window for window, _ in spent]
        yield Spent(now_us, units if passes else 0)
