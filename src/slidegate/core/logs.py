"""The package's logger, protected from log injection.

A message may contain text from a client: a key, a path, or the message of an exception that it caused in a user's
function. A line break in it would forge a log line, and an escape sequence could control the operator's terminal. So
one filter on the logger reduces each message to one line of printable characters, and each traceback to several. The
exception itself stays on the record, for error reporting tools.

Each message begins with the package's name, because some log formats show only messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from traceback import TracebackException
from typing import Final

SPEAKER: Final = "slidegate: "
"""The prefix of every message."""
MAX_CHARS: Final = 4_096
"""The most characters of a message that are logged."""
MAX_LINE_CHARS: Final = 512
MAX_LINES: Final = 200
MAX_FRAMES: Final = 32
PAUSE_S: Final = 60.0
"""The default time between two log lines about one failure, in seconds."""
MAX_SUBJECTS: Final = 1_000
"""The most subjects that a `Throttle` remembers; one more clears it."""

_CAUSE: Final = "The above exception was the direct cause of the following exception:"
_CONTEXT: Final = "During handling of the above exception, another exception occurred:"


def escaped(text: str, max_chars: int = MAX_CHARS) -> str:
    """Return a text with unprintable characters escaped as in Python, cut to at most `max_chars` characters."""
    if len(text) <= max_chars and text.isprintable():
        return text
    clean = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:max_chars])
    return clean if len(clean) <= max_chars and len(text) <= max_chars else clean[: max_chars - 1] + "\u2026"


def written(value: object, how: Callable[[object], str] = repr) -> str:
    """Return the `repr` or `str` of a value, or a placeholder with its type if that raises.

    The objects of drivers and users that appear in reports must not make the report fail.
    """
    try:
        return how(value)
    except Exception as error:
        return f"<{type(value).__name__} that cannot be written: {type(error).__name__}>"


def trace(error: BaseException) -> str:
    """Format a traceback with every line escaped, so that clients cannot forge log lines."""
    lines = list(_lines(TracebackException.from_exception(error, limit=-MAX_FRAMES), ""))
    left_out = len(lines) - MAX_LINES
    if left_out > 0:
        lines = [*lines[: MAX_LINES // 2], f"... {left_out} lines ...", *lines[-MAX_LINES // 2 :]]
    return "\n".join(lines)


def _lines(report: TracebackException, margin: str) -> Iterator[str]:
    if report.__cause__ is not None:
        yield from _lines(report.__cause__, margin)
        yield margin + _CAUSE
    elif report.__context__ is not None and not report.__suppress_context__:
        yield from _lines(report.__context__, margin)
        yield margin + _CONTEXT
    yield f"{margin}Traceback (most recent call last):"
    for frame in report.stack.format():
        yield from (margin + escaped(line, MAX_LINE_CHARS) for line in frame.splitlines())
    yield margin + escaped("".join(report.format_exception_only()).rstrip("\n"), MAX_LINE_CHARS)
    for part in report.exceptions or ():
        yield from _lines(part, f"{margin}  | ")


def _clean(record: logging.LogRecord) -> bool:
    """Escape the message and the traceback of a record, and add the prefix."""
    if isinstance(record.msg, str) and not record.msg.startswith(SPEAKER):  # else a copy of it was filtered before
        record.msg = SPEAKER + record.msg
    try:
        message = record.getMessage()
    except Exception:  # an argument whose `str` or `repr` raises
        args = record.args if isinstance(record.args, tuple) else ()
        record.args = tuple(map(_printable, args))
        message = record.getMessage()
    clean = escaped(message)
    if clean is not message:
        record.msg, record.args = clean, ()
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        try:
            record.exc_text = trace(error)  # formatters use it if it is set
        except Exception as failure:
            record.exc_text = f"{type(error).__name__}, whose traceback cannot be written: {type(failure).__name__}"
    return True


def _printable(value: object) -> object:
    try:
        str(value), repr(value)
    except Exception:
        return written(value)
    return value


class Throttle:
    """Limits the rate of log lines per subject, where the same line could be repeated with every request.

    Args:
        pause: The minimum time between two lines about a subject, in the unit of `now` of `left_out`.
    """

    def __init__(self, pause: float = PAUSE_S) -> None:
        self._pause = pause
        self._next: dict[object, tuple[float, int]] = {}

    def left_out(self, subject: object, now: float) -> int | None:
        """Return how many lines about a subject were suppressed since the last one; None to suppress this one, too.

        If the clock has stepped back to before the last line, that line does not suppress any other.
        """
        next_time, left_out = self._next.get(subject, (now, 0))
        if next_time - self._pause <= now < next_time:
            self._next[subject] = next_time, left_out + 1
            return None
        if len(self._next) >= MAX_SUBJECTS:
            self._next.clear()
        self._next[subject] = now + self._pause, 0
        return left_out


logger: Final = logging.getLogger("slidegate")
"""The logger of the whole package."""
logger.addFilter(_clean)
