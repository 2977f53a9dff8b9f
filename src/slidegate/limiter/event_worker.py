"""A thread that hands events to observers, so that no request waits for them.

* One thread serves one limiter, so its events are handled one after the other, in the order in which they were queued.
* It starts with the first event and ends when none has come for a while, so a limiter that nobody closes keeps none.
* Beyond `MAX_QUEUED` events further ones are dropped, counted, and reported when there is room again.
* `fork` copies no threads: a child begins with an empty queue, since the parent handles the events in its own.
* At the end of the interpreter the events in the queue are handled, for no longer than `END_S`.
"""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition, Thread, current_thread
from time import monotonic
from typing import Final, TypeAlias
from weakref import WeakSet

from ..core.logs import logger
from ..core.store import Event
from ..stores.forks import begin_anew_in_child

MAX_QUEUED: Final = 4_096
"""About a kilobyte each: a few megabytes while observers lag behind."""
IDLE_S: Final = 5.0
END_S: Final = 2.0
REPORT_EVERY_S: Final = 1.0
"""How often dropped events are reported."""


Handler: TypeAlias = Callable[[Event], None]
"""Handles an event, and never raises."""


class EventWorker:
    """The queue and the thread of one limiter.

    Args:
        report: Called in the thread with how many events were dropped since the last report.
        rest: Called in the thread when no event has come for a while, and with True at the end of the process.

    Attributes:
        max_queued: How many events the queue holds.
        delivered: How many events were handled so far.
        dropped: How many did not fit into the queue so far.
    """

    def __init__(self, report: Callable[[int], None], rest: Callable[[bool], None]) -> None:
        self.max_queued = MAX_QUEUED
        self._report = report
        self.rest: Final = rest
        self.begin_anew()
        begin_anew_in_child(self.begin_anew)
        _workers.add(self)

    def begin_anew(self) -> None:
        """Forget the queue and the thread, which belong to the process that has forked."""
        self.delivered = self.dropped = 0
        self._changed = Condition()
        self._queue: deque[tuple[Event, Sequence[Handler]]] = deque()
        self._thread: Thread | None = None
        self._accepted = self._reported = 0
        self._report_again_s = 0.0

    @property
    def queued(self) -> int:
        """How many events wait or are being handled."""
        return self._accepted - self.delivered

    def put(self, event: Event, handlers: Sequence[Handler]) -> None:
        """Have an event handled, or count that it was dropped."""
        with self._changed:
            if len(self._queue) >= self.max_queued:
                self.dropped += 1
            else:
                self._queue.append((event, handlers))
                self._accepted += 1
            if self._thread is None:
                self._start()
            self._changed.notify_all()

    def flush(self, max_s: float) -> bool:
        """Wait until all events queued now were handled, for at most so many seconds; return whether they were.

        An observer cannot wait for itself: in the thread that calls it this returns at once.
        """
        with self._changed:
            until, dropped = self._accepted, self.dropped

            def is_done() -> bool:
                return self.delivered >= until and self._reported >= dropped

            if self._thread is None or self._thread is current_thread():
                return is_done()
            return self._changed.wait_for(is_done, max_s)

    def _start(self) -> None:
        self._thread = Thread(target=self._serve, name="slidegate-events", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the process has no more threads, or is at its end; the next event tries again
            self._thread = None
            logger.error("events wait, because no thread can be started for observers: %s", error)

    def _serve(self) -> None:
        queue = self._queue
        while self._queue is queue:  # until an observer forks, in the child
            with self._changed:
                is_idle = not self._changed.wait_for(self._has_work, IDLE_S)
                event, handlers = queue.popleft() if queue else (None, ())
            if is_idle:
                self.rest(False)
                with self._changed:
                    if not self._has_work():  # else it has come meanwhile
                        self._thread = None
                        return
                continue
            reported = self.dropped
            if reported > self._reported and (event is None or monotonic() >= self._report_again_s):
                self._report_again_s = monotonic() + REPORT_EVERY_S
                self._report(reported - self._reported)
                self._reported = reported
            if event is not None:
                for handle in handlers:
                    handle(event)
            if self._queue is queue:
                with self._changed:
                    self.delivered += event is not None
                    self._changed.notify_all()

    def _has_work(self) -> bool:
        return bool(self._queue) or self.dropped > self._reported


_workers: Final[WeakSet[EventWorker]] = WeakSet()


def _flush_all() -> None:
    ends_s = monotonic() + END_S
    for worker in list(_workers):
        worker.flush(max(ends_s - monotonic(), 0.0))
        worker.rest(True)


atexit.register(_flush_all)
