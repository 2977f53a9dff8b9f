"""A clock for libraries that take none: inside of `virtual_time` the whole process has the time of a `FakeClock`.

Libraries that read the time ask the `time` module, and some have taken its functions at their import. Both are
replaced, and put back at the end. An event loop asks `time.monotonic`, so its timers follow. Nothing sleeps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pyrate_limiter.clocks

from slidegate.testing import FakeClock

START_S = 1_800_000_000
"""A whole hour of Unix time, so that windows which begin at multiples of their length begin here."""
TOOK_AT_IMPORT = {pyrate_limiter.clocks: ("monotonic_ns", "time_ns")}


class NoTimer:
    """Stands for the thread by which `limits` sweeps expired windows, 10 ms of real time after a request.

    Its decisions do not need the sweep, and a clock that jumps would race with it.
    """

    def __init__(self, *args: object) -> None:
        pass

    def start(self) -> None:
        """Begin nothing."""

    def is_alive(self) -> bool:
        """Return False: nothing runs."""
        return False


def functions(clock: FakeClock) -> dict[str, Callable[[], Any]]:
    """Return the functions of the `time` module that read a clock, by their names."""
    return {
        "time": lambda: clock.now_us / 1_000_000,
        "time_ns": lambda: clock.now_us * 1_000,
        "monotonic": lambda: clock.now_us / 1_000_000,
        "monotonic_ns": lambda: clock.now_us * 1_000,
    }


@contextmanager
def virtual_time() -> Iterator[FakeClock]:
    """Give the process the time of the clock that is yielded; it stands at `START_S` until it is moved."""
    clock = FakeClock(START_S * 1_000_000)
    replaced = functions(clock)
    with ExitStack() as stack:
        for name, function in replaced.items():
            stack.enter_context(patch.object(time, name, function))
        for module, names in TOOK_AT_IMPORT.items():
            for name in names:
                stack.enter_context(patch.object(module, name, replaced[name]))
        stack.enter_context(patch.object(threading, "Timer", NoTimer))
        yield clock
