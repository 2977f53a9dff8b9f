"""The circuit breaker of a store: counts its calls, decides when they amount to an outage, and reports what it finds.

A *call* is what one iteration of an event loop asks: a store that batches sends it together, so 64 questions that one
late answer leaves open are one late call. An outage begins with

* `FAILURES_TO_OPEN` calls in a row, each asked after the one before it had failed, and no answer since the first was
  asked: with a deadline of 50 ms that is a silence of 150 ms, which no pause of a busy machine is taken for;
* a refused connection; or
* half of at least `MIN_CALLS` calls that ended within a second, of the last `KEPT_CALLS`.

During an outage the store is not asked, but for one probe a second. While it refuses writes alone, a probe for which it
stored nothing says nothing, and the next question is the probe; the store says whether it has, see `CountsWrites`::

    closed ---- outage ----> open ---- 1 s ----> half open: one probe ---- answered ----> closed
                              ^                     |
                              +------ failed -------+

An outage has two events, ``store_failed`` and ``store_recovered``, and a line in the log for each, with one a minute
between. Whether a failure begins an outage is not known at first: if an answer comes after it instead, it is reported
as ``store_late`` or ``store_error``, at most once a minute.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ..core.errors import StoreError, StoreTimeout
from ..core.events import Event
from ..core.logs import Throttle, logger, written
from ..core.store import Clock
from ..stores.forks import InChild, ProcessLock
from ..stores.shared import running_loop

FAILURES_TO_OPEN: Final = 3
MIN_CALLS: Final = 10
OPEN_US: Final = 1_000_000
SECOND_US: Final = 1_000_000
REPORT_EVERY_US: Final = 60_000_000
KEPT_CALLS: Final = 1_000
PARTS: Final = 5
"""How many parts a deadline has. However long the event loop is busy with other work at a time, which reads no answer,
it is one part: a request is sent in one iteration, and in the next ones its answer is read and delivered."""
_CONSEQUENCES: Final = {"local": "are counted in this process alone", "allow": "pass uncounted", "deny": "are refused"}


class Call:
    """A call of the store: the questions of one iteration of an event loop. It ends with the first of them.

    One timer is the deadline of all its questions: one for each takes a third of the time of a hit on a store that
    batches.

    Args:
        loop: The event loop; None in a thread without one, where each question is a call.
        asked_us: When its first question was asked.
    """

    __slots__ = ("_futures", "_timer", "asked_us", "has_ended", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop | None, asked_us: int) -> None:
        self.loop = loop
        self.asked_us = asked_us
        self.has_ended = False
        self._futures: list[asyncio.Future[Any]] = []
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, future: asyncio.Future[Any], deadline_s: float, late: str) -> None:
        """Set a StoreTimeout with the text `late` on a future that is not done in time."""
        if not self._futures:
            parts = min(PARTS, int(deadline_s * 1_000))  # timers are exact to a millisecond
            self._wait(deadline_s / parts, parts, future.get_loop().time(), late)
        self._futures.append(future)

    def end(self) -> None:
        """Record that it has ended; if all of it was answered, nothing of it is kept until the deadline."""
        self.has_ended = True
        if self._timer is not None and all(future.done() for future in self._futures):
            self._timer.cancel()
            self._futures = []

    def _wait(self, part_s: float, parts: int, now_s: float, late: str) -> None:
        """Give up when so many parts of the deadline have passed since `now_s`."""
        if parts:
            loop = asyncio.get_running_loop()
            due_s = max(now_s + part_s, loop.time() + part_s / 2)
            self._timer = loop.call_at(due_s, self._wait, part_s, parts - 1, due_s, late)
            return
        for future in self._futures:
            if not future.done():
                future.set_exception(StoreTimeout(late))


class Breaker:
    """Counts the calls of a store, and is open during an outage.

    Args:
        deadline_us: How long a call may take.
        on_error: What decides meanwhile.
        emit: Receives the events.
        clock: Returns monotonic time in microseconds.
        writes: Returns how many calls have stored anything, as `CountsWrites` says.

    Attributes:
        failures: How many calls have failed.
        open_until_us: During an outage, until when the store is not asked; else 0.
        late: A late call in words.
    """

    def __init__(
        self,
        deadline_us: int,
        on_error: str,
        emit: Callable[[Event], None],
        clock: Clock,
        writes: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.failures = self.open_until_us = 0
        self.late = f"no answer within the deadline of {_shown(deadline_us)} (Limiter(deadline=...))"
        self._deadline_us = deadline_us
        self._on_error = on_error
        self._emit = emit
        self._clock = clock
        self._writes = writes
        self._writes_before: int | None = None
        self._current: Call | None = None
        self._has_failed: deque[tuple[int, bool]] = deque(maxlen=KEPT_CALLS)
        self._took_us: deque[int] = deque(maxlen=KEPT_CALLS)
        self._in_a_row = self._ended_us = 0
        self._undecided: Exception | None = None
        self._began_us = self._failures_before = self._probe_us = 0
        self._refuses_writes = False
        self._throttle = Throttle(REPORT_EVERY_US)
        self._lock = ProcessLock()  # several threads may find that an outage begins or ends
        self._is_reporting_end = False
        self._in_child = InChild(self._end_report)

    def may_ask(self) -> bool:
        """Return whether the store may be asked. During an outage, the first question after the pause is the probe."""
        with self._lock:
            now_us = self._clock()
            if now_us < self.open_until_us:
                return False
            if self.open_until_us:
                self.open_until_us = now_us + max(OPEN_US, self._deadline_us)  # nobody else asks while the probe runs
                self._probe_us, self._writes_before = now_us, self._writes()
            return True

    def call(self) -> Call:
        """Return the call that a question belongs to which is asked now."""
        loop = running_loop()
        call = self._current
        if loop is None or call is None or call.loop is not loop or call.has_ended:
            call = self._current = Call(loop, self._clock())
            if loop is not None:
                loop.call_soon(self._end_iteration)
        return call

    def answered(self, call: Call | None) -> None:
        """Count an answer, which may end an outage.

        Args:
            call: The call; None if it was answered at once.
        """
        if call is not None and call.has_ended:
            return
        now_us = self._clock()
        is_probe = self._is_probe(call)
        if is_probe and self._refuses_writes and self._has_stored_nothing():
            self.forget(call)
            return
        self._ended_us, self._in_a_row, took_us = now_us, 0, 0
        if call is not None:
            call.end()
            took_us = now_us - call.asked_us
        self._has_failed.append((now_us, False))
        self._took_us.append(took_us)
        if is_probe:
            with self._lock:
                if not self._probe_us:  # another thread has reported it
                    return
                self.open_until_us = self._probe_us = 0
                self._is_reporting_end = True
                failures, after_us = self.failures - self._failures_before, now_us - self._began_us
            message = f"the store answers again after {_shown(after_us)} (failed calls: {failures})"
            try:
                self._emit(Event("store_recovered", message, {"failures": failures, "after_us": after_us}))
            finally:
                self._end_report()
        elif self._undecided is not None:
            error, self._undecided = self._undecided, None
            self._report(error, "failed once", now_us)

    def answered_late(self, took_us: int) -> None:
        """Record how long an answer took that nobody awaited any more, and report it if it came after the deadline.

        That is also so during an outage. The request of an earlier one was cancelled.
        """
        self._took_us.append(took_us)
        if took_us >= self._deadline_us:
            self._report(StoreTimeout(self.late), "", self._clock())

    def failed(self, call: Call | None, error: Exception) -> None:
        """Count a failure, with which an outage may begin.

        Args:
            call: The call, which ends with the first of its answers and failures; None if it failed at once.
            error: Its error.
        """
        now_us = self._clock()
        concerns = error.concerns if isinstance(error, StoreError) else "server"
        if concerns == "request":  # the server answered
            self.forget(call)
            self.failures += 1
            self._report(error, "failed for one request", now_us)
            return
        self._refuses_writes = concerns == "writes"
        if self._begins(call or self.call(), now_us, is_refused=_is_refused(error)):
            self._throttle.left_out((self._began_us,), now_us)
            self._emit(self._failure("store_failed", "failed", error))
        elif not self.open_until_us:
            self._undecided = error
        elif self._throttle.left_out((self._began_us,), now_us) is not None:
            lasts = f"has failed for {_shown(now_us - self._began_us)}"
            logger.error("store_failed: %s", self._failure("store_failed", lasts, error).message)

    def forget(self, call: Call | None) -> None:
        """Drop a call that says nothing about the server. If it was the probe, the next question is."""
        if self._is_probe(call):
            self.open_until_us, self._probe_us = self._clock(), 0

    def _is_probe(self, call: Call | None) -> bool:
        """Return whether a call is the probe that runs now; others were asked before the outage."""
        return self._probe_us > 0 and (call is None or call.asked_us >= self._probe_us)

    def _has_stored_nothing(self) -> bool:
        """Return whether the store says that it has stored nothing since the probe was asked."""
        return self._writes_before is not None and self._writes() == self._writes_before

    def _begins(self, call: Call, now_us: int, *, is_refused: bool) -> bool:
        """Count a failure; return whether an outage begins with it."""
        if call.has_ended:
            return False
        is_probe = self._is_probe(call)
        call.end()
        self.failures += 1
        self._has_failed.append((now_us, True))
        if call.asked_us >= self._ended_us:  # else another call has ended since it was asked
            self._ended_us = now_us
            self._in_a_row += 1
        is_outage = is_refused or self._in_a_row >= FAILURES_TO_OPEN or self._is_half(now_us)
        with self._lock:
            begins = is_outage and not self.open_until_us and not self._is_reporting_end
            if begins or is_probe:
                self.open_until_us, self._probe_us = now_us + OPEN_US, 0
            if begins:
                self._undecided, self._began_us, self._failures_before = None, now_us, self.failures - 1
            return begins

    def _is_half(self, now_us: int) -> bool:
        """Return whether half of the calls of the last second have failed."""
        failed = [has_failed for ended_us, has_failed in self._has_failed.copy() if ended_us > now_us - SECOND_US]
        return len(failed) >= MIN_CALLS and 2 * sum(failed) >= len(failed)

    def _end_report(self) -> None:
        """Let an outage begin: observers know by now that the one before it has ended."""
        self._is_reporting_end = False

    def _end_iteration(self) -> None:
        self._current = None

    def _report(self, error: Exception, what: str, now_us: int) -> None:
        """Report a failure that is no outage."""
        is_late = isinstance(error, StoreTimeout)
        if self._throttle.left_out(is_late, now_us) is None:
            return
        if not is_late:
            self._emit(self._failure("store_error", what, error))
            return
        failed, took_us = [has_failed for _, has_failed in self._has_failed.copy()], sorted(self._took_us.copy())
        calls, late, median_us = len(failed), sum(failed), took_us[len(took_us) // 2] if took_us else None
        median = "" if median_us is None else f"; the median answer took {_shown(median_us)}"
        message = f"{late} of the last {calls} calls ({late / max(calls, 1):.1%}) got {self.late}{median}"
        self._emit(Event("store_late", message, {"calls": calls, "late": late, "median_us": median_us}))

    def _failure(self, kind: str, what: str, error: Exception) -> Event:
        """Return the event that the store has failed, with what happens to requests."""
        text = written(error, str if isinstance(error, StoreTimeout) else repr)
        who = f"(on_error={self._on_error!r}, but for rules with their own)"
        message = f"the store {what}, so requests {_CONSEQUENCES[self._on_error]} {who}: {text}"
        return Event(kind, message, {"on_error": self._on_error, "error": text})


def _shown(span_us: int) -> str:
    """Return a span of time for a message: ``50 ms`` or ``61.2 s``."""
    return f"{span_us / 1_000:.3g} ms" if span_us < 1_000_000 else f"{round(span_us / 1_000_000, 1):g} s"


def _is_refused(error: BaseException | None) -> bool:
    """Return whether an error is a refused connection, or was caused by one."""
    while error is not None and not isinstance(error, ConnectionRefusedError):
        error = error.__cause__ or error.__context__
    return error is not None
