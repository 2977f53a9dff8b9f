"""The measurements: each creates a new system, sends requests in virtual time and returns a number."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Final

from slidegate.testing import FakeClock

from .asking import System
from .virtual_time import virtual_time

Make = Callable[[FakeClock], System]
AMOUNT: Final = 100
WINDOW_S: Final = 60.0
STEP: Final = 1 / 300
PACE: Final = 1.002 / AMOUNT
"""A little more than the time in which one unit becomes available, as a part of the window."""
JUST_S: Final = 0.05
CAP: Final = 1_000
"""The most requests that an attack sends at one moment: a system that admits all of them has no bound."""


def move(clock: FakeClock, start_us: int, at_s: float) -> None:
    """Set the clock to `at_s` seconds after the start."""
    clock.set(start_us + round(at_s * 1_000_000))


def flood(system: System, most: int = CAP) -> int:
    """Send requests until one is refused; return how many passed."""
    return sum(1 for _ in takewhile(lambda _: system.ask().passed, range(most)))


def admissions(make: Make, first_s: float, window_s: float, *, opened: bool = False, step: float = STEP) -> list[float]:
    """Return when requests pass: as many as possible at `first_s`, and at each step for a little longer than a window.

    With `opened`, one request is sent at 0 first, to start windows that begin with a client's first request. `step` is
    a part of the window.
    """
    passed: list[float] = []
    step_s, just_s = step * window_s, JUST_S * window_s / WINDOW_S
    with virtual_time() as clock:
        start_us = clock.now_us
        system = make(clock)
        if opened:
            passed += [0.0] * system.ask().passed
        for at_s in (first_s, *(first_s + just_s + step_s * number for number in range(int(1.1 / step)))):
            move(clock, start_us, at_s)
            passed += [at_s] * flood(system)
    return passed


def most_in(passed: list[float], span_s: float) -> int:
    """Return the largest number of admissions in any half-open span."""
    return max((bisect_left(passed, at_s + span_s) - number for number, at_s in enumerate(passed)), default=0)


def worst(make: Make, spans_s: Sequence[float] = (60.0, 1.0), window_s: float = WINDOW_S) -> list[int | None]:
    """Return the most requests that one client gets in any span of each length; None if there is no bound."""
    just_s = JUST_S * window_s / WINDOW_S
    runs = [admissions(make, 0, window_s), admissions(make, 0, window_s, step=PACE)]
    runs += [admissions(make, window_s - just_s, window_s, opened=opened) for opened in (True, False)]
    later = [at_s for at_s in runs[0] if at_s > just_s]
    if later:
        # Another attack spends just before a time at which a window opens.
        runs.append(admissions(make, max(0, later[0] - 2 * just_s), window_s))
    if any(count >= CAP for run in runs for count in Counter(run).values()):
        return [None for _ in spans_s]
    return [max(most_in(run, span_s) for run in runs) for span_s in spans_s]


def first_moment(holds: Callable[[float], bool], low_s: float, high_s: float, exact_s: float = 0.05) -> float:
    """Return the time at which a monotonic condition becomes true, to within `exact_s`, by binary search."""
    low, high = round(low_s / exact_s), round(high_s / exact_s)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle * exact_s) else (middle + 1, high)
    return round(low * exact_s, 3)


def whole_again(make: Make, window_s: float = WINDOW_S) -> float | None:
    """Return how many seconds after a full burst another full burst is possible; None if never."""
    longest_s = 2.5 * window_s

    def passes(at_s: float) -> bool:
        with virtual_time() as clock:
            start_us = clock.now_us
            system = make(clock)
            flood(system, AMOUNT)
            move(clock, start_us, at_s)
            return flood(system, AMOUNT) == AMOUNT

    moment_s = first_moment(passes, 0, longest_s, 0.05 * window_s / WINDOW_S)
    return moment_s if moment_s < longest_s else None


def retry_after(make: Make) -> tuple[float | None, float]:
    """Spend one unit at 0 s and all others at 50 s; return the next Retry-After, and the true wait."""

    def spent(clock: FakeClock, start_us: int) -> System:
        system = make(clock)
        system.ask()
        move(clock, start_us, 50.0)
        flood(system, AMOUNT)
        return system

    def passes(waited_s: float) -> bool:
        with virtual_time() as clock:
            start_us = clock.now_us
            system = spent(clock, start_us)
            move(clock, start_us, 50.0 + waited_s)
            return system.ask().passed

    with virtual_time() as clock:
        promised_s = spent(clock, clock.now_us).ask().retry_after_s
    return promised_s, first_moment(passes, 0, 2 * WINDOW_S)


def steady(make: Make, every_s: float, times: int) -> int:
    """Return how many of `times` evenly spaced requests pass."""
    with virtual_time() as clock:
        start_us = clock.now_us
        system = make(clock)
        passed = 0
        for number in range(times):
            move(clock, start_us, number * every_s)
            passed += system.ask().passed
        return passed
