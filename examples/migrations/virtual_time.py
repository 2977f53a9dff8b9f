"""A fake clock for libraries that read the system clocks: within `virtual_time`, the process uses a `FakeClock`.

The functions of the `time` module are patched, including the references that some libraries keep from their import. An
event loop reads `time.monotonic`, so its timers follow. Nothing sleeps.
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
"""A full hour of Unix time, so that windows aligned to multiples of their length begin here."""
TOOK_AT_IMPORT = {pyrate_limiter.clocks: ("monotonic_ns", "time_ns")}


class NoTimer:
    """Replaces the thread by which `limits` deletes expired windows, 10 ms of real time after a request.

    Decisions do not depend on it, and it would race with a clock that jumps.
    """

    def __init__(self, *args: object) -> None:
        pass

    def start(self) -> None:
        """Do nothing."""

    def is_alive(self) -> bool:
        """Return False."""
        return False


def functions(clock: FakeClock) -> dict[str, Callable[[], Any]]:
    """Return replacements for the functions of the `time` module that read a clock, by name."""
    return {
        "time": lambda: clock.now_us / 1_000_000,
        "time_ns": lambda: clock.now_us * 1_000,
        "monotonic": lambda: clock.now_us / 1_000_000,
        "monotonic_ns": lambda: clock.now_us * 1_000,
    }


@contextmanager
def virtual_time() -> Iterator[FakeClock]:
    """Make the process use the yielded clock, which starts at `START_S` and moves only when advanced."""
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
