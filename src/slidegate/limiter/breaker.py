"""The circuit breaker of a store: it counts calls, and decides when they amount to an outage.

A *call* is what one iteration of an event loop asks: a store that batches sends it together, so 64 questions that wait
for one late answer are one late call. It ends with the first of its answers and failures. Where some of its questions
were answered, the others are a failure that is reported, and says nothing about an outage.

An outage begins with

* three calls in a row that have failed, each asked after the one before it had, and no answer between them: with a
  deadline of 50 ms that is a silence of 150 ms. An answer that comes late is an answer; or
* a refused connection.

During an outage the store is not asked, but for one probe a second::

    CLOSED ---- outage ----> OPEN ---- 1 s ----> PROBING ---- answered in time ----> CLOSED
                              ^                     |
                              +------ failed -------+

A store that refuses all writes still answers reads: from its first refusal on, only an answer to a write counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from ..core.errors import StoreTimeout
from ..core.events import Event
from ..core.logs import Throttle, safe_text
from ..core.store import Clock
from ..stores.forks import ProcessLock
from ..stores.shared import running_loop

FAILURES_TO_OPEN: Final = 3
OPEN_US: Final = 1_000_000
"""The pause before a probe."""
REPORT_EVERY_US: Final = 60_000_000
GRACE_ITERATIONS: Final = 5
"""How many iterations of the event loop an answer has after the deadline. A loop that other work blocks for longer than
the deadline reads no answer meanwhile: the answer then takes one iteration to be read, and one to be delivered."""
LATE_S: Final = 0.002
PAUSE_S: Final = 0.01
"""If the timer of the deadline is that late, the loop may send the question only now: its answer has this pause too."""
_CONSEQUENCES: Final = {"local": "are counted in this process alone", "allow": "pass uncounted", "deny": "are refused"}
"""What happens to requests during an outage, by `on_error`."""


class Call:
    """A call of the store: the questions of one iteration of an event loop.

    One timer is the deadline of all its questions: one for each takes a third of the time of a hit on a store that
    batches.

    Args:
        loop: The event loop; None in a thread without one, where each question is a call.
        asked_us: When its first question was asked.

    Attributes:
        has_ended: Whether one of its questions was answered or has failed.
        has_failed: Whether one of them has failed, which is counted once.
    """

    __slots__ = ("_futures", "_timer", "asked_us", "has_ended", "has_failed", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop | None, asked_us: int) -> None:
        self.loop = loop
        self.asked_us = asked_us
        self.has_ended = self.has_failed = False
        self._futures: list[asyncio.Future[Any]] = []
        self._timer: Any = None

    def watch(self, future: asyncio.Future[Any], deadline_s: float, timeout_text: str) -> None:
        """Set a StoreTimeout with the text `timeout_text` on a future, which is no task, if it is not done in time."""
        if not self._futures:
            self._timer = future.get_loop().call_later(deadline_s, self._expire, GRACE_ITERATIONS, timeout_text)
        self._futures.append(future)

    def end(self) -> None:
        """Record that it has ended. If all of its questions have, too, neither they nor the timer are kept."""
        self.has_ended = True
        if self._futures and all(future.done() for future in self._futures):
            self._timer.cancel()
            self._futures = []

    def _expire(self, iterations: int, timeout_text: str) -> None:
        """Let the event loop run that many iterations, then fail the questions without an answer."""
        if iterations:
            loop = asyncio.get_running_loop()
            pause_s = 0.0
            # The first of them is called by the timer of the deadline itself.
            if iterations == GRACE_ITERATIONS and loop.time() > self._timer.when() + LATE_S:
                pause_s = PAUSE_S
            self._timer = loop.call_later(pause_s, self._expire, iterations - 1, timeout_text)
            return
        for future in self._futures:
            if not future.done():
                future.set_exception(StoreTimeout(timeout_text))


class Breaker:
    """Counts the calls of a store, and is open during an outage. Several threads may use it.

    Args:
        deadline_us: How long a call may take.
        on_error: What decides meanwhile.
        emit: Receives the events.
        clock: Returns monotonic time in microseconds.

    Attributes:
        is_open: Whether there is an outage.
        failures: How many calls have failed, in part or as a whole, and single requests in calls that have not.
        refuses_writes: Whether the last failure concerned writes alone, and none was answered since.
        late_text: What the error of a late call says.
    """

    def __init__(self, deadline_us: int, on_error: str, emit: Callable[[Event], None], clock: Clock) -> None:
        self.is_open = self.refuses_writes = False
        self.failures = 0
        self.late_text = f"no answer within the deadline of {deadline_us / 1_000:g} ms (Limiter(deadline=...))"
        self._deadline_us = deadline_us
        self._on_error = on_error
        self._emit = emit
        self._clock = clock
        self._current: Call | None = None
        # How many calls have failed since the last answer, and when the last call ended.
        self._in_a_row = self._last_ended_us = 0
        self._late_calls = 0
        self._unreported: Exception | None = None  # a failure that may be the first of an outage
        self._began_us = self._failures_before = self._next_probe_us = 0  # of the outage
        self._throttle = Throttle(REPORT_EVERY_US)
        self._lock = ProcessLock()

    def may_ask(self) -> bool:
        """Return whether a question is the probe during an outage, which the first one after the pause is."""
        with self._lock:
            if not self.is_probe_due:
                return False
            # If no answer comes to this probe either, another question is the probe after that time.
            self._next_probe_us = self._clock() + max(OPEN_US, self._deadline_us)
            return True

    @property
    def is_probe_due(self) -> bool:
        """Whether the next question of an outage is the probe."""
        return self._clock() >= self._next_probe_us

    def call(self) -> Call:
        """Return the call to which a question of now belongs."""
        loop = running_loop()
        call = self._current
        if loop is None or call is None or call.loop is not loop or call.has_ended:
            call = self._current = Call(loop, self._clock())
            if loop is not None:
                loop.call_soon(self._end_iteration, call)
        return call

    def _end_iteration(self, call: Call) -> None:
        if self._current is call:  # else another event loop has begun one
            self._current = None

    # -- how a call ends -----------------------------------------------------------------------------------------------

    def answered(self, call: Call | None) -> None:
        """Count an answer in time, which proves a write if the store has refused one. It may end an outage.

        Args:
            call: Its call, which has not ended yet; None if it was answered at once.
        """
        if call is not None:
            call.end()
        self.refuses_writes = False
        self.note_answer()
        if not self._is_probe(call):
            return
        with self._lock:
            if not self.is_open:  # another thread has ended it
                return
            self.is_open = False
        after_us = self._clock() - self._began_us
        failures = self.failures - self._failures_before
        message = f"the store answers again after {round(after_us / 1_000_000, 1):g} s (failed calls: {failures})"
        self._emit(Event("store_recovered", message, {"failures": failures, "after_us": after_us}))

    def note_answer(self) -> None:
        """Note that the server has answered, in time or late, so that the failures before are no outage.

        While it refuses writes, `answered` alone knows whether an answer proves one: a late one may be that of a read.
        """
        if self.refuses_writes:
            return
        self._in_a_row = 0
        self._last_ended_us = self._clock()
        error = self._unreported
        self._unreported = None
        if error is not None:
            self._report(error)

    def failed(self, call: Call, error: Exception) -> None:
        """Count a failure, with which an outage may begin.

        Args:
            call: The call, which ends with the first of its answers and failures.
        """
        concerns = getattr(error, "concerns", "server")
        if concerns == "request":  # the server answered
            self.failures += 1
            self.forget(call)
            self._report(error)
            return
        if call.has_failed:
            return
        call.has_failed = True
        with self._lock:
            self.failures += 1
            self.refuses_writes = concerns == "writes"
            begins = not call.has_ended and self._begin_outage(call, error)
        call.end()
        if begins:
            self._emit_failure("store_failed", "failed", error)
        elif not self.is_open:
            self._late_calls += isinstance(error, StoreTimeout)
            self._unreported = error

    def _begin_outage(self, call: Call, error: Exception) -> bool:
        """Count a call without any answer; return whether an outage begins with it."""
        now_us = self._clock()
        if call.asked_us >= self._last_ended_us:  # else another call has ended since it was asked
            self._in_a_row += 1
            self._last_ended_us = now_us
        begins = not self.is_open and (self._in_a_row >= FAILURES_TO_OPEN or _is_refused(error))
        if begins:
            self._began_us, self._failures_before = now_us, self.failures - max(self._in_a_row, 1)
            self.is_open, self._unreported = True, None
        if begins or self._is_probe(call):
            self._next_probe_us = now_us + OPEN_US
        return begins

    def forget(self, call: Call | None) -> None:
        """Drop a call that says nothing about the server. If it was the probe, the next question is."""
        if self._is_probe(call):
            self._next_probe_us = self._clock()

    def _is_probe(self, call: Call | None) -> bool:
        """Return whether a call was a probe: nothing else is asked from a second after an outage has begun."""
        if not self.is_open:
            return False
        asked_us = self._clock()
        if call is not None:
            asked_us = call.asked_us
        return asked_us >= self._began_us + OPEN_US

    def _report(self, error: Exception) -> None:
        """Report a failure that is no outage, once a minute for each kind."""
        kind, verb = "store_error", "failed once"
        if isinstance(error, StoreTimeout):
            kind, verb = "store_late", f"was late (calls so far: {self._late_calls})"
        if self._throttle.left_out(kind, self._clock()) is not None:
            self._emit_failure(kind, verb, error)

    def _emit_failure(self, kind: str, verb: str, error: Exception) -> None:
        """Emit the event of a failure, with its consequences for requests."""
        text = safe_text(error)
        decided = f"{_CONSEQUENCES[self._on_error]} (on_error={self._on_error!r}, but for rules with their own)"
        details = {"on_error": self._on_error, "error": text, "late": self._late_calls}
        self._emit(Event(kind, f"the store {verb}, so requests {decided}: {text}", details))


def _is_refused(error: BaseException | None) -> bool:
    """Return whether an error is a refused connection, or was caused by one."""
    while error is not None and not isinstance(error, ConnectionRefusedError):
        error = error.__cause__ or error.__context__
    return error is not None
