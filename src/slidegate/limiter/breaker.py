"""The circuit breaker of a store: counts its calls, and decides when they amount to an outage.

An outage begins with

* three calls in a row, each asked after the one before it had failed, and no answer since the first was asked: with a
  deadline of 50 ms that is a silence of 150 ms, which no pause of a busy machine is taken for;
* a refused connection; or
* half of at least ten calls that ended within a second.

During an outage the store is not asked, but for one probe a second::

    CLOSED ---- outage ----> OPEN ---- 1 s ----> PROBING ---- answered ----> ENDING ---- told ----> CLOSED
                              ^                     |
                              +------ failed -------+

While observers are told that an outage has ended, no other one begins. While the store refuses writes alone, a probe
for which it stored nothing says nothing, and the next question is the probe; see `CountsWrites`.

Whether a failure begins an outage is not known at first. If an answer comes after it instead, it is reported as
``store_late`` or ``store_error``; `outage_reports` has the words.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from ..core.errors import StoreError, StoreTimeout
from ..core.events import Event
from ..core.store import Clock
from ..stores.forks import InChild, ProcessLock
from ..stores.shared import running_loop
from .calls import Call, LatestCalls
from .outage_reports import OutageReports

OPEN_US: Final = 1_000_000
"""The pause before a probe."""


class State(Enum):
    """The states of a breaker; see the drawing above."""

    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"
    ENDING = "ending"


class _Outage(NamedTuple):
    """When an outage began, and how many calls had failed before."""

    began_us: int
    failures_before: int


class Breaker:
    """Counts the calls of a store, and is open during an outage.

    Args:
        deadline_us: How long a call may take.
        on_error: What decides meanwhile.
        emit: Receives the events.
        clock: Returns monotonic time in microseconds.
        writes: Returns how many calls have stored anything, as `CountsWrites` says.

    Attributes:
        state: Its state.
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
        self.state = State.CLOSED
        self._deadline_us = deadline_us
        self._clock = clock
        self._writes = writes
        self._calls = LatestCalls()
        self._reports = OutageReports(deadline_us, on_error, emit)
        self.late = self._reports.late
        self._current: Call | None = None
        self._outage = _Outage(0, 0)
        self._next_probe_us = self._probe_us = 0
        self._writes_before: int | None = None
        self._refuses_writes = False
        self._undecided: Exception | None = None  # a failure that may turn out to begin an outage
        self._lock = ProcessLock()  # several threads may find that an outage begins or ends
        self._in_child = InChild(self._end_report)

    @property
    def failures(self) -> int:
        """How many calls have failed."""
        return self._calls.failures

    @property
    def is_open(self) -> bool:
        """Whether there is an outage."""
        return self.state in (State.OPEN, State.PROBING)

    def pause_us(self) -> int:
        """Return for how long the store is not asked; 0 or less if it may be."""
        if not self.is_open:
            return 0
        return self._next_probe_us - self._clock()

    def may_ask(self) -> bool:
        """Return whether the store may be asked. During an outage, the first question after the pause is the probe."""
        with self._lock:
            if not self.is_open:
                return True
            now_us = self._clock()
            if now_us < self._next_probe_us:
                return False
            # If no answer comes to this probe either, another question is the probe after that time.
            self.state, self._probe_us = State.PROBING, now_us
            self._next_probe_us = now_us + max(OPEN_US, self._deadline_us)
            self._writes_before = self._writes()
            return True

    def call(self) -> Call:
        """Return the call that a question belongs to which is asked now."""
        loop = running_loop()
        call = self._current
        if loop is None or call is None or call.loop is not loop or call.has_ended:
            call = self._current = Call(loop, self._clock())
            if loop is not None:
                loop.call_soon(self._end_iteration, call)
        return call

    # -- how a call ends -----------------------------------------------------------------------------------------------

    def answered(self, call: Call | None) -> None:
        """Count an answer, which may end an outage.

        Args:
            call: Its call, which has not ended yet; None if it was answered at once.
        """
        now_us = self._clock()
        is_probe = self._is_probe(call)
        if is_probe and self._refuses_writes and self._has_stored_nothing():
            self.forget(call)
            return
        took_us = 0
        if call is not None:
            call.end()
            took_us = now_us - call.asked_us
        self._calls.add_answer(now_us, took_us)
        if is_probe:
            self._end_outage(now_us)
        elif self._undecided is not None:
            error, self._undecided = self._undecided, None
            self._reports.failed_once(error, "failed once", now_us, self._calls)

    def answered_late(self, took_us: int) -> None:
        """Record how long an answer took that nobody awaited any more, and report it if it came after the deadline.

        That is also so during an outage. The request of an earlier one was cancelled.
        """
        self._calls.add_late_answer(took_us)
        if took_us >= self._deadline_us:
            self._reports.failed_once(StoreTimeout(self.late), "", self._clock(), self._calls)

    def failed(self, call: Call | None, error: Exception) -> None:
        """Count a failure, with which an outage may begin.

        Args:
            call: The call, which ends with the first of its answers and failures; None if it failed at once.
            error: Its error.
        """
        now_us = self._clock()
        concerns = "server"
        if isinstance(error, StoreError):
            concerns = error.concerns
        if concerns == "request":  # the server answered
            self.forget(call)
            self._calls.failures += 1
            self._reports.failed_once(error, "failed for one request", now_us, self._calls)
            return
        self._refuses_writes = concerns == "writes"
        if self._begins_outage(call or self.call(), now_us, error):
            self._reports.began(error, now_us)
        elif self.is_open:
            self._reports.goes_on(error, self._outage.began_us, now_us)
        else:
            self._undecided = error

    def forget(self, call: Call | None) -> None:
        """Drop a call that says nothing about the server. If it was the probe, the next question is."""
        if self._is_probe(call):
            self.state, self._next_probe_us = State.OPEN, self._clock()

    # -- how an outage begins and ends ---------------------------------------------------------------------------------

    def _begins_outage(self, call: Call, now_us: int, error: Exception) -> bool:
        """Count a failure; return whether an outage begins with it."""
        if call.has_ended:
            return False
        is_probe = self._is_probe(call)
        call.end()
        self._calls.add_failure(now_us, call.asked_us, isinstance(error, StoreTimeout))
        is_outage = _is_refused(error) or self._calls.are_outage(now_us)
        with self._lock:
            begins = is_outage and self.state is State.CLOSED
            if begins or is_probe:
                self.state, self._next_probe_us = State.OPEN, now_us + OPEN_US
            if begins:
                self._undecided = None
                self._outage = _Outage(now_us, self._calls.failures - 1)
        return begins

    def _end_outage(self, now_us: int) -> None:
        """Report that an outage has ended, unless another thread does."""
        with self._lock:
            if self.state is not State.PROBING:
                return
            self.state, outage = State.ENDING, self._outage
        try:
            self._reports.ended(self._calls.failures - outage.failures_before, now_us - outage.began_us)
        finally:
            self._end_report()

    def _end_report(self) -> None:
        """Let an outage begin: observers know by now that the one before it has ended."""
        if self.state is State.ENDING:
            self.state = State.CLOSED

    def _is_probe(self, call: Call | None) -> bool:
        """Return whether a call is the probe that runs now; others were asked before the outage."""
        return self.state is State.PROBING and (call is None or call.asked_us >= self._probe_us)

    def _has_stored_nothing(self) -> bool:
        """Return whether the store says that it has stored nothing since the probe was asked."""
        return self._writes_before is not None and self._writes() == self._writes_before

    def _end_iteration(self, call: Call) -> None:
        if self._current is call:  # else another event loop has begun one
            self._current = None


def _is_refused(error: BaseException | None) -> bool:
    """Return whether an error is a refused connection, or was caused by one."""
    while error is not None and not isinstance(error, ConnectionRefusedError):
        error = error.__cause__ or error.__context__
    return error is not None
