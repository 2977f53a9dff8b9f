"""Threads that take turns: one of them runs at a time, and a schedule decides where it is interrupted, and by which.

A thread may be interrupted before it acquires a lock that `turning_locks` has made, and before each line of the traced
files. So every wait for a lock may take any time, and what happens is the same in each run. `hurry.py` lets threads
race for real.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Lock, RLock, get_ident
from types import FrameType, ModuleType
from typing import Any
from unittest.mock import patch

from slidegate.stores import forks
from slidegate.stores.memory import shard, store

from .hurry import PATIENCE_S

Choice = Callable[[int, Sequence[int]], int]
"""Returns which thread goes on, given the one that runs and those that can."""


class Turns:
    """Threads of one run, by number; `choose` decides who goes on, and `files` are traced."""

    def __init__(self, pool: ThreadPoolExecutor, choose: Choice, files: Sequence[str] = ()) -> None:
        self.pool, self.choose, self.files = pool, choose, tuple(files)
        self.running, self.waits = 0, dict[int, TurningLock | None]()
        self.members = set[int]()

    def run(self, *work: Callable[[], object]) -> None:
        """Run some work, each in a thread of the pool; the first one begins."""
        self.gates = [Lock() for _ in work]
        for gate in self.gates:
            gate.acquire()
        self.waits = dict.fromkeys(range(len(work)))
        TurningLock.turns = self
        ended = [self.pool.submit(self._run, number, act) for number, act in enumerate(work)]
        self.gates[0].release()
        wait(ended)
        TurningLock.turns = None
        for each in ended:
            each.result()

    def _run(self, number: int, act: Callable[[], object]) -> None:
        before = sys.gettrace()
        self.members.add(get_ident())
        self._wait(number)
        try:
            if self.files:
                sys.settrace(self._trace)
            act()
        finally:
            sys.settrace(before)
            del self.waits[number]
            if self.waits:
                self._switch(min(self._ready()))

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.endswith(self.files):
            return None
        if event == "line":
            self.point()
        return self._trace

    def _ready(self) -> list[int]:
        return [number for number, lock in self.waits.items() if lock is None or not lock.owner]

    def _switch(self, number: int) -> None:
        self.running = number
        self.gates[number].release()

    def _wait(self, number: int) -> None:
        assert self.gates[number].acquire(timeout=PATIENCE_S), "all others wait, too"

    def point(self, lock: "TurningLock | None" = None) -> None:
        """Let others go on, if the schedule says so; until a lock is free, if one is given."""
        number = self.running
        self.waits[number] = lock
        chosen = self.choose(number, self._ready())
        if chosen != number:
            self._switch(chosen)
            self._wait(number)
        self.waits[number] = None


class TurningLock:
    """A lock, for which a thread of a run waits as long as the schedule likes; other threads wait for it as usual."""

    turns: Turns | None = None

    def __init__(self) -> None:
        self.lock, self.owner, self.depth = RLock(), 0, 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me, turns = get_ident(), self.turns
        if turns is None or me not in turns.members:
            is_acquired = self.lock.acquire(blocking, timeout)
        else:
            if self.owner != me:
                turns.point()
            while not (is_acquired := self.lock.acquire(blocking=False)) and blocking:
                turns.point(self)
        if is_acquired:
            self.owner, self.depth = me, self.depth + 1
        return is_acquired

    def release(self) -> None:
        if self.owner == get_ident():  # else it raises, as any lock does
            self.depth -= 1
            self.owner = self.owner if self.depth else 0
        self.lock.release()

    __enter__ = acquire

    def __exit__(self, *error: object) -> None:
        self.release()


@contextmanager
def turning_locks(*modules: ModuleType) -> Iterator[None]:
    """Let stores and limiters that are made meanwhile have locks of this kind, and what is made by further modules."""
    places = ((store, "RLock"), (shard, "RLock"), (forks, "RLock"), *[(one, "Lock") for one in modules])
    patches = [patch.object(module, name, TurningLock) for module, name in places]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


class Interruptions:
    """Two threads: the first goes on to the second after some points, and that back after some, if it has so many."""

    def __init__(self, *points: int) -> None:
        self.points, self.passed, self.is_back = points, [0, 0], False

    def __call__(self, number: int, ready: Sequence[int]) -> int:
        other = 1 - number
        self.passed[number] += 1
        if self.passed[number] > self.points[number] and other in ready and not self.is_back:
            self.is_back = number == 1
            return other
        return number if number in ready else other


def interrupted(
    work: Callable[[], Sequence[Callable[[], object]]], files: Sequence[str] = (), *, both: bool = False
) -> Iterator[tuple[int, int]]:
    """Run the first of two threads up to a point, the second one to its end, and the rest of the first: at each point.

    Args:
        work: Returns the two, anew for each run. What it has prepared is checked after each, in the body of the loop.
        files: The ends of the names of traced files.
        both: Interrupt the second one in the same way, at each of its points: then the first one runs to its end.
    """
    first, second = 0, 0 if both else sys.maxsize
    with ThreadPoolExecutor(2) as pool:
        while True:
            run = Interruptions(first, second)
            Turns(pool, run, files).run(*work())
            yield first, second
            if run.is_back:
                second += 1
            elif run.passed[0] > first:
                first, second = first + 1, 0 if both else second
            else:
                return
