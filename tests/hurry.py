"""Threads that begin together, and take turns far more often than they do by themselves; or meet at the same moment."""

import gc
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, BrokenBarrierError
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
PATIENCE_S = 60.0


def at_once(work: Callable[[int], T], threads: int = 8) -> list[T]:
    """Return what some work returns in several threads that begin together; it is given their numbers."""
    begin = Barrier(threads)

    def run(number: int) -> T:
        begin.wait(PATIENCE_S)
        return work(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, range(threads)))


@contextmanager
def hurried(collecting: bool = True) -> Iterator[None]:
    """Let the interpreter switch threads as often as it can, with `collecting` at almost every new object as well.

    So it happens where a finalizer is written in Python: up to Python 3.11 a collection may begin inside of a function
    that is written in C, for example `list` of the items of a dict.
    """

    def let_others_on(phase: str, info: dict[str, int]) -> None:
        time.sleep(0)

    before_s, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    if collecting:
        gc.callbacks.append(let_others_on)
        gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        if collecting:
            gc.callbacks.remove(let_others_on)
        sys.setswitchinterval(before_s)


# -- threads that are switched at any instruction, so that a race shows at once ----------------------------------------


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
