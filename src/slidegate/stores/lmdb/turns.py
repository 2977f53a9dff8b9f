"""The turn of a thread: one thread of this process at a time is behind a gate, or opens or closes files.

A thread without an event loop waits for the others. One with a loop only tries: others may hang, as on a disk. But
threads let the interpreter go while they have their turn, so by tries alone a loop would hardly ever get one beside
busy threads. So a loop that was refused claims the next turn, and soon all others leave it to it, for as long as it may
need to come back::

    refused                the turn is left to the loop
       |------ 2 ms ------|------------ 48 ms ------------|
"""

from __future__ import annotations

import threading
import time
from typing import Final

from ..shared import on_loop

POLL_S: Final = 0.000_5
TRY_S: Final = 0.005
"""How long a thread with an event loop may wait for others."""
WAIT_S: Final = 1.0
"""How long one without a loop does: the others may be many, which all want to run Python code."""
_CLAIM_AFTER_S: Final = 0.002
_CLAIM_UNTIL_S: Final = 0.05


class Turns:
    """Hands out the turns.

    Attributes:
        lock: Held by the thread whose turn it is; no other thread can release it. It can be acquired again by a signal
            handler, which runs in the middle of what that thread does.
    """

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Make a new lock, in a child of fork, which has none of the threads that may hold the old one."""
        self.lock = threading.RLock()
        self._claimed_by = 0  # a thread
        self._claimed_s = 0.0

    def take(self, wait_s: float) -> bool:
        """Take the turn of this thread; return False if others have it, or have claimed it, for so long."""
        if not self._claimed_by and self.lock.acquire(blocking=False):
            return True
        until_s = time.monotonic() + wait_s
        while self._is_left_to_another():
            if time.monotonic() >= until_s:
                return False
            time.sleep(POLL_S)
        if not self.lock.acquire(timeout=max(until_s - time.monotonic(), 0.0)):
            return False
        if self._claimed_by == threading.get_ident():
            self._claimed_by = 0
        return True

    def claim(self) -> None:
        """Claim the next turn for this thread, which was refused, unless another one has claimed it."""
        now_s = time.monotonic()
        if not self._claimed_by or now_s - self._claimed_s >= _CLAIM_UNTIL_S:
            self._claimed_by, self._claimed_s = threading.get_ident(), now_s

    def _is_left_to_another(self) -> bool:
        """Return whether this thread leaves the turn to the one that has claimed it."""
        if self._claimed_by in (0, threading.get_ident()):
            return False
        return _CLAIM_AFTER_S <= time.monotonic() - self._claimed_s < _CLAIM_UNTIL_S


def patience_s() -> float:
    """Return how long this thread may wait for others where nobody has set a deadline."""
    if on_loop():
        return TRY_S
    return WAIT_S


TURNS: Final = Turns()
"""Those of this process, over all environments: a fork waits until no thread is in a transaction of any."""
