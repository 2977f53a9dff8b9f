"""What a breaker reports: two events for each outage, a line a minute between them, and failures that are no outage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..core.errors import StoreTimeout
from ..core.events import Event
from ..core.logs import Throttle, logger, written
from .calls import LatestCalls

REPORT_EVERY_US: Final = 60_000_000
_CONSEQUENCES: Final = {"local": "are counted in this process alone", "allow": "pass uncounted", "deny": "are refused"}
"""What becomes of requests meanwhile, by `on_error`."""


class OutageReports:
    """Reports the failures of a store.

    Args:
        deadline_us: How long a call may take.
        on_error: What decides without an answer.
        emit: Receives the events.

    Attributes:
        late: A late call in words.
    """

    def __init__(self, deadline_us: int, on_error: str, emit: Callable[[Event], None]) -> None:
        self.late = f"no answer within the deadline of {span_text(deadline_us)} (Limiter(deadline=...))"
        self._on_error = on_error
        self._emit = emit
        self._throttle = Throttle(REPORT_EVERY_US)

    def began(self, error: Exception, now_us: int) -> None:
        """Report that an outage begins."""
        self._throttle.left_out(("outage", now_us), now_us)
        self._emit(self._failure("store_failed", "failed", error))

    def goes_on(self, error: Exception, began_us: int, now_us: int) -> None:
        """Write a line a minute while an outage lasts."""
        if self._throttle.left_out(("outage", began_us), now_us) is None:
            return
        event = self._failure("store_failed", f"has failed for {span_text(now_us - began_us)}", error)
        logger.error("store_failed: %s", event.message)

    def ended(self, failures: int, after_us: int) -> None:
        """Report that an outage has ended."""
        message = f"the store answers again after {span_text(after_us)} (failed calls: {failures})"
        self._emit(Event("store_recovered", message, {"failures": failures, "after_us": after_us}))

    def failed_once(self, error: Exception, what: str, now_us: int, calls: LatestCalls) -> None:
        """Report a failure that is no outage: at most one error a minute, and one late answer.

        Args:
            error: The failure.
            what: What the store did, in words.
            now_us: The time.
            calls: The latest calls, of which a late one is a share.
        """
        kind = "store_error"
        if isinstance(error, StoreTimeout):
            kind = "store_late"
        if self._throttle.left_out(kind, now_us) is None:
            return
        if kind == "store_late":
            self._emit(self._share_of_late(calls))
        else:
            self._emit(self._failure(kind, what, error))

    def _share_of_late(self, calls: LatestCalls) -> Event:
        """Return the event that says how many of the latest calls were late."""
        late, count = calls.late_share()
        late_ones = "one request"  # that was cancelled, or in a call that others had ended with their answers
        if late:
            late_ones = f"{late} of the last {count} calls ({late / count:.1%})"
        message = f"{late_ones} got {self.late}"
        median_us = calls.median_us()
        if median_us is not None:
            message += f"; the median answer took {span_text(median_us)}"
        return Event("store_late", message, {"calls": count, "late": late, "median_us": median_us})

    def _failure(self, kind: str, what: str, error: Exception) -> Event:
        """Return the event that the store has failed, with what happens to requests."""
        text = written(error, repr)
        if isinstance(error, StoreTimeout):
            text = written(error, str)
        consequence = _CONSEQUENCES[self._on_error]
        option = f"(on_error={self._on_error!r}, but for rules with their own)"
        message = f"the store {what}, so requests {consequence} {option}: {text}"
        return Event(kind, message, {"on_error": self._on_error, "error": text})


def span_text(span_us: int) -> str:
    """Return a span of time for a message: ``50 ms`` or ``61.2 s``."""
    if span_us < 1_000_000:
        return f"{span_us / 1_000:.3g} ms"
    return f"{round(span_us / 1_000_000, 1):g} s"
