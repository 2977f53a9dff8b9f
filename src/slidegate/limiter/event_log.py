"""The log of a limiter's events: at most one line a second for each kind and rule."""

from __future__ import annotations

import logging
from datetime import date
from time import monotonic
from typing import Final

from ..core.logs import Throttle, escaped, logger
from ..core.store import Event

LINE_EVERY_S: Final = 1.0
"""The least time between two log lines of the same kind and rule."""
LOGGED_WHERE_MADE: Final = frozenset(
    {
        *("store_failed", "store_recovered"),
        *("list_reloaded", "list_rejected", "config_reloaded", "config_rejected", "windows_restarted"),
    }
)
"""Kinds that are logged where they are emitted, with their own levels and rates."""
_INFORMATION: Final = frozenset({"refused", "exceeded", "shadow_refused", "pause_ignored", "pause_unshared"})
"""Kinds that are logged as INFO; all others are warnings."""
_MAX_VALUE: Final = 256


class EventLog:
    """Writes events to the log: at most one line a second for each kind and rule, with the number of omitted events.

    A record has the fields `kind` and `details`, for structlog and JSON formatters.
    """

    def __init__(self) -> None:
        self._throttle = Throttle(LINE_EVERY_S)

    def event(self, event: Event) -> None:
        """Log an event, or count it as omitted."""
        level = _level(event.kind)
        if event.kind in LOGGED_WHERE_MADE or not logger.isEnabledFor(level):
            return
        rule = event.details.get("rule") or event.details.get("by")
        left_out = self._throttle.left_out(f"{event.kind} under {rule}" if rule else event.kind, monotonic())
        if left_out is None:
            return
        more = f" (and {left_out} more since the last such line)" if left_out else ""
        fields = {"kind": event.kind, "details": {name: _shown(value) for name, value in event.details.items()}}
        logger.log(level, "%s: %s%s", event.kind, event.message, more, extra=fields)

    def rest(self) -> None:
        """Log the number of events omitted since the last line of each kind and rule."""
        for subject, left_out in self._throttle.rest():
            kind, _, rule = str(subject).partition(" under ")
            message = f"{left_out} more{f' under {rule}' if rule else ''} since the last such line"
            logger.log(_level(kind), "%s: %s", kind, message, extra={"kind": kind, "details": {}})


def _level(kind: str) -> int:
    return logging.INFO if kind in _INFORMATION else logging.WARNING


def _shown(value: object) -> object:
    """Return a value as a field of a log record: a number, or printable text."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return value.isoformat() if isinstance(value, date) else escaped(str(value), _MAX_VALUE)
