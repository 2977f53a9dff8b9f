"""The turn of a thread: one thread of this process at a time is behind a gate, or opens or closes files.

It waits for the others of its process, which is a queue and no failure of the files: the more threads want to run
Python code, the longer each of them is behind its gate.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from ...core.errors import StoreTimeout

STUCK_S: Final = 1.0
"""How long a thread waits for others of its process while none of them gets ahead, as on a disk that hangs."""
_SLICE_S: Final = 0.01


class Turns:
    """Hands out the turns.

    Attributes:
        lock: Held by the thread whose turn it is; no other thread can release it. It can be acquired again by a signal
            handler, which runs in the middle of what that thread does.
        taken: How many turns there were, by which those who wait see that others get ahead.
    """

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Make a new lock, in a child of fork, which has none of the threads that may hold the old one."""
        self.lock = threading.RLock()
        self.taken = 0

    def wait(self, is_vain: Callable[[], bool]) -> bool:
        """Wait for the threads of this process that come first; return whether it is the turn of this one.

        Args:
            is_vain: Returns whether it need not wait, because the thread whose turn it is stands before a closed gate.
                They would do so one after the other, and each would wait for the interpreter in its turn.

        Raises:
            StoreTimeout: One of them stays behind its gate.
        """
        before, tries = self.taken, 0
        while not is_vain():
            if self.lock.acquire(timeout=_SLICE_S):
                return True
            tries += 1  # and not by the clock: all threads may wait for the interpreter
            if self.taken != before:
                before, tries = self.taken, 0
            if tries * _SLICE_S >= STUCK_S:
                raise StoreTimeout(
                    f"lmdb: a thread of this process has held the files for {STUCK_S:g} s; is the disk slow?"
                )
        return False


TURNS: Final = Turns()
"""Those of this process, over all environments: a fork waits until no thread is in a transaction of any."""
