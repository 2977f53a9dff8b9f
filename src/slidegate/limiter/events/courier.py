"""The thread that calls the observers of a limiter, and the bounded queue before it.

The thread in which an event happens puts it into the queue and goes on, however slow the observers are:

* one thread calls all observers of one limiter, so each hears its events in the order in which they were queued;
* it starts with the first event and ends when none has come for a while, so a limiter that nobody closes keeps none;
* beyond `MOST_QUEUED` events further ones are dropped, counted, and reported when there is room again;
* `fork` copies no threads: a child begins with an empty queue, since the parent delivers the events in its own;
* at the end of the interpreter the events in the queue are delivered, for no longer than `END_S`.
"""

from __future__ import annotations

import atexit
import os
from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition, Thread, current_thread
from time import monotonic
from typing import Final, TypeAlias
from weakref import WeakSet

from ...core.logs import logger
from ...core.store import Event
from .subscription import Subscription

MOST_QUEUED: Final = 4_096
"""About a kilobyte each: a few megabytes while observers lag behind."""
IDLE_S: Final = 5.0
END_S: Final = 2.0
SAY_EVERY_S: Final = 1.0
"""How often dropped events are reported."""

_Item: TypeAlias = tuple[Event, Sequence[Subscription]]


class Courier:
    """Calls observers in a thread of its own.

    Args:
        report: Called in that thread with the number of events dropped since the last call. It must not raise.
        rest: Called when no event has come for a while, and with True at the end of the interpreter. It must not raise.
        most: How many events wait at most.

    Attributes:
        delivered: How many queued events were delivered.
        dropped: How many were dropped, because the queue was full.
    """

    def __init__(self, report: Callable[[int], None], rest: Callable[[bool], None], most: int = MOST_QUEUED) -> None:
        self._report = report
        self.rest: Final = rest
        self._most = most
        self.begin_anew()
        _couriers.add(self)

    def begin_anew(self) -> None:
        """Forget the queue and the thread, which belong to the process that has forked."""
        self._changed = Condition()
        self._queue: deque[_Item] = deque()
        self._thread: Thread | None = None
        self._put = self.delivered = self.dropped = 0
        self._reported, self._report_again_s = 0, 0.0
        self._waiting = 0

    @property
    def queued(self) -> int:
        """How many events wait for delivery, or are being delivered."""
        return self._put - self.delivered

    def put(self, event: Event, to: Sequence[Subscription]) -> None:
        """Have an event delivered, unless the queue is full."""
        with self._changed:
            if len(self._queue) >= self._most:
                self.dropped += 1
            else:
                self._queue.append((event, to))
                self._put += 1
            if self._thread is None:
                self._start()
            elif len(self._queue) == 1:
                self._changed.notify_all()

    def flush(self, most_s: float) -> bool:
        """Wait until all events queued now were delivered, for at most so many seconds; return whether they were.

        An observer cannot wait for itself: in the courier's thread this returns at once.
        """
        ends_s = monotonic() + most_s
        with self._changed:
            until, reported = self._put, self.dropped
            self._waiting += 1
            try:
                while self.delivered < until or self._reported < reported:
                    left_s = ends_s - monotonic()
                    if left_s <= 0 or self._thread is None or self._thread is current_thread():
                        return False
                    self._changed.wait(left_s)
                return True
            finally:
                self._waiting -= 1

    def _start(self) -> None:
        thread = Thread(target=self._serve, name="slidegate-events", daemon=True)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError as error:  # the process has no more threads, or is at its end; the next event tries again
            self._thread = None
            logger.error("events wait, because no thread can be started for observers: %s", error)

    def _serve(self) -> None:
        queue = self._queue
        while self._queue is queue:  # until an observer forks, in the child
            if self.dropped > self._reported and (not queue or monotonic() >= self._report_again_s):
                self._report_dropped()
            try:
                event, subscriptions = queue.popleft()
            except IndexError:
                if not self._wait():
                    self.rest(False)
                    if self._end():
                        return
                continue
            for subscription in subscriptions:
                self.call(subscription, event)
            self.delivered += 1
            if self._waiting:
                with self._changed:
                    self._changed.notify_all()

    def call(self, subscription: Subscription, event: Event) -> None:
        """Call an observer in the courier's thread, and outlive everything that it may raise."""
        try:
            subscription.hear(event)
        except BaseException as error:  # even sys.exit() ends no more than the one call
            subscription.failed(error)

    def _report_dropped(self) -> None:
        self._report_again_s = monotonic() + SAY_EVERY_S
        dropped = self.dropped
        self._report(dropped - self._reported)
        with self._changed:
            self._reported = dropped
            self._changed.notify_all()

    def _wait(self) -> bool:
        """Wait for more; return whether it came."""
        with self._changed:
            if not self._has_work():
                self._changed.notify_all()
                self._changed.wait(IDLE_S)
            return self._has_work()

    def _end(self) -> bool:
        """Leave the next event to another thread, unless it has come meanwhile; return whether this one ends."""
        with self._changed:
            if self._has_work():
                return False
            self._thread = None
            return True

    def _has_work(self) -> bool:
        return bool(self._queue) or self.dropped > self._reported


_couriers: Final[WeakSet[Courier]] = WeakSet()


def _begin_anew() -> None:
    for courier in list(_couriers):
        courier.begin_anew()


def _flush_all() -> None:
    ends_s = monotonic() + END_S
    for courier in list(_couriers):
        courier.flush(max(ends_s - monotonic(), 0.0))
        courier.rest(True)


if hasattr(os, "register_at_fork"):  # Windows has none
    os.register_at_fork(after_in_child=_begin_anew)
atexit.register(_flush_all)
