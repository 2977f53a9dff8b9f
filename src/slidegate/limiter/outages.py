"""Reports what a breaker finds: when an outage of the store begins and ends, and calls that come late outside one.

An outage has two events, ``store_failed`` and ``store_recovered``, and a line in the log for each, with one a minute
between. Whether a failure begins an outage is not known at first: if an answer comes after it instead, it is reported
as ``store_late`` or ``store_error``, at most once a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from ..core.decision import Bucket, Check
from ..core.errors import StoreError, StoreTimeout, quoted
from ..core.logs import Throttle, logger, written
from ..core.store import Event
from .breaker import SLOTS_PER_MINUTE, Breaker, Call

REPORT_EVERY_US: Final = 60_000_000
MAX_NAMED: Final = 9
"""The most rules with their own `on_error` that a message names."""
_CONSEQUENCES: Final = {
    "local": "are counted in this process alone",
    "allow": "pass uncounted",
    "deny": "are refused",
}


class Outages:
    """Passes the results of calls to a breaker, and reports what follows from them.

    Args:
        breaker: The breaker.
        late: A late call in words.
        on_error: The limiter's `on_error`.
        emit: Receives the events.
        buckets: Returns the buckets of all callers; some have their own `on_error`.

    Attributes:
        undecided: The last failure, until it is known whether it is part of an outage.
    """

    def __init__(
        self,
        breaker: Breaker,
        late: str,
        on_error: str,
        emit: Callable[[Event], None],
        buckets: Callable[[], Iterable[Bucket]],
    ) -> None:
        self._breaker = breaker
        self._late = late
        self._on_error = on_error
        self._emit = emit
        self._buckets = buckets
        self.undecided: Exception | None = None
        self._began_us = self._failures_before = self._next_line_us = 0
        self._throttle = Throttle(REPORT_EVERY_US)

    def end(self, now_us: int) -> None:
        """Report the end of an outage."""
        failures, after_us = self._breaker.failures - self._failures_before, now_us - self._began_us
        message = f"the store answers again after {shown(after_us)}, in which {failures} calls failed"
        self._emit(Event("store_recovered", message, {"failures": failures, "after_us": after_us}))
        logger.warning("store_recovered: %s", message)

    def decide(self, now_us: int) -> None:
        """Report a failure that was no outage, because an answer has come after it."""
        error, self.undecided = self.undecided, None
        if isinstance(error, StoreTimeout):
            self._report_late(now_us)
        elif error is not None:
            self._report_error("failed once", error, (), now_us)

    def answered_late(self, took_us: int, now_us: int) -> None:
        """Record how long an answer took that came after the deadline, and report it, also during an outage."""
        self._breaker.answered_late(took_us, now_us)
        self._report_late(now_us)

    def failed(self, call: Call | None, error: Exception, checks: Sequence[Check], now_us: int) -> None:
        """Record a failure.

        Args:
            call: The call; None if it failed at once.
            error: Its error.
            checks: What it asked.
            now_us: The time.
        """
        breaker = self._breaker
        if isinstance(error, StoreError) and error.concerns != "server":  # the server answered
            breaker.forget(call, now_us)
            breaker.failures += 1
            self._report_error(f"failed for a {error.concerns}", error, checks, now_us)
        elif breaker.failed(call or breaker.call(now_us), now_us, is_refused=_is_refused(error)):
            self.undecided, self._began_us, self._failures_before = None, now_us, breaker.failures - 1
            self._emit(self._log(self._event("store_failed", "failed", error, checks), now_us))
        elif not breaker.open_until_us:
            self.undecided = error
        elif now_us >= self._next_line_us:
            lasts = f"has failed for {shown(now_us - self._began_us)}"
            self._log(self._event("store_failed", lasts, error, checks), now_us)

    def _log(self, failure: Event, now_us: int) -> Event:
        self._next_line_us = now_us + REPORT_EVERY_US
        logger.error("store_failed: %s", failure.message)
        return failure

    def _report_error(self, what: str, error: Exception, checks: Sequence[Check], now_us: int) -> None:
        if self._throttle.left_out("store_error", now_us) is not None:
            self._emit(self._event("store_error", what, error, checks))

    def _report_late(self, now_us: int) -> None:
        if self._throttle.left_out("store_late", now_us) is None:
            return
        calls, late, median_us = self._breaker.recent(SLOTS_PER_MINUTE, now_us)
        median = "" if median_us is None else f"; the median answer took {shown(median_us)}"
        message = f"{late} of {calls} calls ({late / max(calls, 1):.1%}) of the last minute got {self._late}{median}"
        self._emit(Event("store_late", message, {"calls": calls, "late": late, "median_us": median_us}))

    def _event(self, kind: str, what: str, error: Exception, checks: Sequence[Check]) -> Event:
        """Return the event that the store has failed, with what happens to requests."""
        known = [*(bucket for bucket, _, _ in checks), *self._buckets()]
        rules = {bucket.label: own for bucket in known if (own := bucket.on_error) not in (None, self._on_error)}
        text = written(error, str if isinstance(error, StoreTimeout) else repr)
        message = f"the store {what}, so {_consequences(self._on_error, rules)}: {text}"
        return Event(kind, message, {"on_error": self._on_error, "rules": rules, "error": text})


def shown(span_us: int) -> str:
    """Return a span of time for a message: ``50 ms`` or ``61.2 s``."""
    return f"{span_us / 1_000:.3g} ms" if span_us < 1_000_000 else f"{round(span_us / 1_000_000, 1):g} s"


def _is_refused(error: BaseException | None) -> bool:
    """Return whether an error is a refused connection, or was caused by one."""
    while error is not None and not isinstance(error, ConnectionRefusedError):
        error = error.__cause__ or error.__context__
    return error is not None


def _consequences(on_error: str, rules: Mapping[str, str]) -> str:
    """Return a description of what happens to requests while the store fails.

    Args:
        on_error: The limiter's `on_error`.
        rules: The `on_error` of the rules with a different one, by label.
    """
    others = []
    for choice in dict.fromkeys(rules.values()):
        labels = [label for label, own in rules.items() if own == choice]
        named = ", ".join(map(quoted, labels[:MAX_NAMED]))
        more = f" and {len(labels) - MAX_NAMED} more" if len(labels) > MAX_NAMED else ""
        others.append(f"those under {named}{more} {_CONSEQUENCES[choice]} (on_error={choice!r} of the rules)")
    exceptions = f", but {' and '.join(others)}" if others else ""
    return f"requests {_CONSEQUENCES[on_error]} (on_error={on_error!r}){exceptions}"
