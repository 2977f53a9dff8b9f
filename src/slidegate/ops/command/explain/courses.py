"""Two clients against the real windows, on a clock that jumps from one request to the next.

The greedy client takes every unit as soon as it is there. The steady one sends at the highest even pace that is never
refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ....core.limits import Limit
from ....core.windows.rings import new_window
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
    rings = [(limit, new_window(limit)) for limit in limits]
    now_us = start_us
    for _ in range(most_steps(limits)):
        if now_us >= start_us + span_us:
            return
        units = min(limit.amount - ring.total(now_us) for limit, ring in rings)
        for _, ring in rings:
            ring.add(now_us, units)
        yield Spent(now_us, units)
        now_us += max(ring.wait_us(now_us, limit.amount - 1) for limit, ring in rings)


def steady(limits: Sequence[Limit], start_us: int, span_us: int) -> Iterator[Spent]:
    """Yield the units of a client that keeps the even pace which is never refused; a refused request yields 0 units.

    Where that are very many requests, several are sent at once, and the pace is that of such groups.
    """
    wanted = span_us // steady_us(limits) // _FEW_STEPS + 1
    units = min(wanted, *(limit.amount for limit in limits))
    rings = [(limit, new_window(limit)) for limit in limits]
    pace_us = steady_us(limits, units)
    for step in range(min(-(-span_us // pace_us), most_steps(limits))):
        now_us = start_us + step * pace_us
        passes = all(ring.wait_us(now_us, limit.amount - units) == 0 for limit, ring in rings)
        for _, ring in rings if passes else ():
            ring.add(now_us, units)
        yield Spent(now_us, units if passes else 0)
