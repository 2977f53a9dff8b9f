"""Threads that meet at the same moment and are switched at every step, so that a race shows at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Barrier, Thread
from types import FrameType
from typing import Any

THREADS = 8


class Unguarded:
    """Stands in for a lock and lets everybody in."""

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...

    def acquire(self, blocking: bool = True) -> bool:
        return True

    def release(self) -> None: ...


def switch(frame: FrameType, event: str, argument: object) -> Any:
    """Trace every instruction: each is a place where the interpreter may go on with another thread."""
    frame.f_trace_opcodes = True
    return switch


@contextmanager
def hurried() -> Iterator[None]:
    """Let the interpreter switch threads as often as it can."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


def race(act: Callable[[int, int], object], rounds: int) -> None:
    """Call ``act(round, thread)`` in 8 threads, which wait for each other before every round."""
    barrier, failed = Barrier(THREADS), []

    def run(thread: int) -> None:
        before = sys.gettrace()
        try:
            for number in range(rounds):
                barrier.wait()
                sys.settrace(switch)
                act(number, thread)
                sys.settrace(before)
        except BaseException as error:
            failed.append(error)
            barrier.abort()
        finally:
            sys.settrace(before)

    with hurried():
        threads = [Thread(target=run, args=(thread,)) for thread in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]
