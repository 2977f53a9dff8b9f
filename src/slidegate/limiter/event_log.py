"""Writes events to a log, and no more of them than somebody can read.

A flood makes a million refusals, and each is an event. So lines have limits: for all together, and for each kind and
rule. The next line that is written says how many others like it were left out, and where none comes, a line of its own
says so after a while.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from logging import Logger, LoggerAdapter, getLogger
from threading import Lock
from typing import Any, Final, TypeAlias

from ..core.decision import LimitSet
from ..core.errors import ConfigurationError, quoted
from ..core.limits import parse_limits
from ..core.logs import SPEAKER, escaped
from ..core.store import Clock, Event
from ..stores.forks import hold_over_fork
from ..stores.memory.store import MemoryStore

LOGGER: Final = "slidegate.events"
MAX_SUBJECTS: Final = 1_024
"""How many kinds with their rules are counted apart; the others are counted together."""
MAX_LAST: Final = 10
"""How many of them are written apart at the end."""
MAX_VALUE: Final = 256
_OTHERS: Final = "other kinds and rules"
_MAX_KEY: Final = 64

AnyLogger: TypeAlias = "Logger | LoggerAdapter[Any]"
_Subject: TypeAlias = tuple[str, str]


class LogEvents:
    """An observer that writes events to a log; see `Limiter.log_events`.

    Args:
        logger: The logger; by default `LOGGER`.
        level: The level of its lines.
        max_rate: The limit of all lines.
        each: The limit of the lines of one kind and rule.
        clock: Returns the time in microseconds; by default the monotonic clock.

    Raises:
        ConfigurationError: A value cannot work.
    """

    def __init__(self, logger: AnyLogger | None, level: int, max_rate: str, each: str, clock: Clock | None) -> None:
        logger = getLogger(LOGGER) if logger is None else logger
        if not isinstance(logger, (Logger, LoggerAdapter)):
            raise ConfigurationError(f'logger: expected one such as logging.getLogger("limits"), not {quoted(logger)}')
        if not isinstance(level, int) or isinstance(level, bool):
            raise ConfigurationError(f"level: expected a number such as logging.WARNING, not {quoted(level)}")
        self._logger = logger
        self._level = level
        self._all = LimitSet("all", parse_limits(max_rate))
        self._each = LimitSet("each", parse_limits(each))
        self._lines = MemoryStore(max_keys=MAX_SUBJECTS, clock=clock)
        self._left_out: dict[_Subject, int] = {}
        self._lock = Lock()
        hold_over_fork(self._lock)

    def __call__(self, event: Event, /) -> None:
        """Write a line about an event, or count that it was left out."""
        subject = event.kind, str(event.details.get("rule", ""))
        if not self._may_write(subject):
            with self._lock:
                is_apart = subject in self._left_out or len(self._left_out) < MAX_SUBJECTS
                subject = subject if is_apart else (_OTHERS, "")
                self._left_out[subject] = self._left_out.get(subject, 0) + 1
            return
        left_out = self._taken(subject)
        more = f" (and {left_out} times more since the last such line)" if left_out else ""
        fields = {name: _shown(value) for name, value in event.details.items()}
        self._write(f"{event.kind}: {event.message}{more}", event.kind, left_out, fields | {"time_us": event.time_us})

    def rest(self, last: bool) -> None:
        """Write how many events were left out of which no later line has told.

        Args:
            last: Write it whatever the limits are; many kinds and rules are one line then.
        """
        subjects = list(self._left_out)
        if last and len(subjects) > MAX_LAST:
            with self._lock:
                left_out = sum(self._left_out.pop(subject, 0) for subject in subjects)
                self._left_out[_OTHERS, ""] = left_out
            subjects = [(_OTHERS, "")]
        for subject in subjects:
            kind, rule = subject
            if (last or self._may_write(subject)) and (left_out := self._taken(subject)):
                under = f" under {escaped(rule, MAX_VALUE)!r}" if rule else ""
                message = f"{kind}: {left_out} times more{under} since the last such line"
                self._write(message, kind, left_out, {"rule": _shown(rule)} if rule else {})

    def _may_write(self, subject: _Subject) -> bool:
        key = " ".join(subject)[:_MAX_KEY]
        return self._lines.hit(((self._all, "", 1), (self._each, key, 1))).allowed

    def _taken(self, subject: _Subject) -> int:
        with self._lock:
            return self._left_out.pop(subject, 0)

    def _write(self, message: str, kind: str, left_out: int, fields: Mapping[str, object]) -> None:
        self._logger.log(self._level, f"{SPEAKER}%s", message, extra={**fields, "kind": kind, "suppressed": left_out})


def _shown(value: object) -> object:
    """Return a value as a field of a record: a number, printable text, or a table of such."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {escaped(str(name), MAX_VALUE): _shown(inside) for name, inside in value.items()}
    return escaped(str(value), MAX_VALUE)
