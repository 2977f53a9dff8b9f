"""Threads that meet at the same moment and are switched at any instruction, so that a race shows at once.

Each of the tests that use it failed in every one of some tens of runs in which the lock was taken away.
"""

import random
import sys
import time
from collections.abc import Callable
from threading import Barrier, BrokenBarrierError
from types import FrameType
from typing import Any

from .hurry import at_once, hurried

THREADS = 8
SWITCHED = 0.1
"""How often an instruction lets another thread go on."""


def switch(frame: FrameType, event: str, argument: object) -> Any:
    """Trace every instruction, and let another thread go on at some of them."""
    frame.f_trace_opcodes = True
    if random.random() < SWITCHED:
        time.sleep(0)
    return switch


def race(act: Callable[[int, int], object], rounds: int) -> None:
    """Call ``act(round, thread)`` in 8 threads, which wait for each other before every round."""
    barrier = Barrier(THREADS)

    def run(thread: int) -> None:
        before = sys.gettrace()
        try:
            for number in range(rounds):
                barrier.wait()
                sys.settrace(switch)
                act(number, thread)
                sys.settrace(before)
        except BrokenBarrierError:
            return  # another one has failed
        except BaseException:
            barrier.abort()
            raise
        finally:
            sys.settrace(before)

    with hurried(collecting=False):
        at_once(run, THREADS)
