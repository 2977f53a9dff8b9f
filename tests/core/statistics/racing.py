"""Threads that meet at the same moment and are switched at every step, so that a race shows at once.

Where real locks are at work the interpreter switches, as often as it can. Where a test takes the lock away to see that
something is lost, the order of the instructions is drawn from a seed: whether a loss shows must not depend on the day.
"""

from __future__ import annotations

import random
import sys
from _thread import allocate_lock
from collections.abc import Callable
from threading import Barrier, Thread
from types import FrameType
from typing import Any, TypeAlias

from ...hurry import hurried

THREADS = 8
SWITCHED = 0.1
"""How often a drawn order goes on with another thread: a switch costs as much as a hundred instructions."""
Racing: TypeAlias = Callable[[Callable[[int, int], object], int], None]
"""`race` or `race_in_turns`."""


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


class Turns:
    """Lets one thread run at a time and draws at every instruction which one goes on.

    Nobody may wait for a lock meanwhile: whoever holds it would never come to its turn.
    """

    def __init__(self, drawn: random.Random) -> None:
        self._drawn = drawn
        self._running = list(range(THREADS))
        self._gates = [allocate_lock() for _ in range(THREADS)]
        for gate in self._gates[1:]:
            gate.acquire()

    def begin(self, thread: int) -> None:
        """Wait for the first turn."""
        self._gates[thread].acquire()

    def trace(self, thread: int) -> Callable[[FrameType, str, object], Any]:
        """Return a trace function that gives the turn to somebody at every instruction."""

        def at(frame: FrameType, event: str, argument: object) -> Any:
            frame.f_trace_opcodes = True
            following = self._drawn.choice(self._running) if self._drawn.random() < SWITCHED else thread
            if following != thread:
                self._gates[following].release()
                self._gates[thread].acquire()
            return at

        return at

    def end(self, thread: int) -> None:
        """Leave the others to themselves."""
        self._running.remove(thread)
        if self._running:
            self._gates[self._drawn.choice(self._running)].release()


def race_in_turns(act: Callable[[int, int], object], rounds: int, seed: int = 1) -> None:
    """Call ``act(round, thread)`` in 8 threads whose instructions are mixed in an order drawn from `seed`.

    What `act` calls must not wait for a lock.
    """
    drawn = random.Random(seed)
    failed: list[BaseException] = []

    def run(number: int, thread: int, turns: Turns) -> None:
        turns.begin(thread)
        sys.settrace(turns.trace(thread))
        try:
            act(number, thread)
        except BaseException as error:
            failed.append(error)
        finally:
            sys.settrace(None)
            turns.end(thread)

    for number in range(rounds):
        turns = Turns(drawn)
        threads = [Thread(target=run, args=(number, thread, turns)) for thread in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]


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

    with hurried(collecting=False):
        threads = [Thread(target=run, args=(thread,)) for thread in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]
