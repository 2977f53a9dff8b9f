"""The log, into which nobody writes but us.

A message may hold text that a client has sent: a key, a path, the message of an exception that a function of the user's
raised over it. A line break in that would be a line of the log that nobody wrote, and an escape sequence would speak to
the operator's terminal. So everything goes through one filter on the logger: a message is one line of printable
characters, and a traceback is lines of them. The exception itself stays on the record for whoever reports it elsewhere.

Each message begins with our name: a log of many libraries may show nothing but messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from traceback import TracebackException
from typing import Final

SPEAKER: Final = "slidegate: "
"""The beginning of every message."""
MAX_CHARS: Final = 4_096
"""How many characters of a message are logged."""
MAX_LINE_CHARS: Final = 512
MAX_LINES: Final = 200
MAX_FRAMES: Final = 32
PAUSE_S: Final = 60.0
"""The time between two lines about one failure, if nothing else is said."""
MAX_SUBJECTS: Final = 1_000
"""How many subjects are known as written about; with one more all are forgotten."""

_CAUSE: Final = "The above exception was the direct cause of the following exception:"
_CONTEXT: Final = "During handling of the above exception, another exception occurred:"


def escaped(text: str, max_chars: int = MAX_CHARS) -> str:
    """Return a text cut to a number of printable characters; others are escaped, as in Python."""
    if len(text) <= max_chars and text.isprintable():
        return text
    clean = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:max_chars])
    return clean if len(clean) <= max_chars and len(text) <= max_chars else clean[: max_chars - 1] + "\u2026"


def written(value: object, how: Callable[[object], str] = repr) -> str:
    """Return what `repr` or `str` makes of a value; where that fails, what the value is.

    Exceptions of drivers and functions of users come by here, and must not raise where somebody reports them.
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


def _lines(told: TracebackException, margin: str) -> Iterator[str]:
    if told.__cause__ is not None:
        yield from _lines(told.__cause__, margin)
        yield margin + _CAUSE
    elif told.__context__ is not None and not told.__suppress_context__:
        yield from _lines(told.__context__, margin)
        yield margin + _CONTEXT
    yield f"{margin}Traceback (most recent call last):"
    for frame in told.stack.format():
        yield from (margin + escaped(line, MAX_LINE_CHARS) for line in frame.splitlines())
    yield margin + escaped("".join(told.format_exception_only()).rstrip("\n"), MAX_LINE_CHARS)
    for part in told.exceptions or ():
        yield from _lines(part, f"{margin}  | ")


def _clean(record: logging.LogRecord) -> bool:
    """Make a record one that can be written as it is, and says who speaks."""
    if isinstance(record.msg, str) and not record.msg.startswith(SPEAKER):  # else it was here before, as a copy
        record.msg = SPEAKER + record.msg
    try:
        message = record.getMessage()
    except Exception:  # something that cannot even say what it is
        args = record.args if isinstance(record.args, tuple) else ()
        record.args = tuple(map(_sayable, args))
        message = record.getMessage()
    clean = escaped(message)
    if clean is not message:
        record.msg, record.args = clean, ()
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        try:
            record.exc_text = trace(error)  # formatters take it, if it is there
        except Exception as failure:
            record.exc_text = f"{type(error).__name__}, whose traceback cannot be written: {type(failure).__name__}"
    return True


def _sayable(value: object) -> object:
    try:
        str(value), repr(value)
    except Exception:
        return written(value)
    return value


class Throttle:
    """Says which lines are written, of those about one subject that may be repeated with every request.

    Args:
        pause: The time between two lines about a subject, in the unit of the moments that `left_out` is given.
    """

    def __init__(self, pause: float = PAUSE_S) -> None:
        self._pause = pause
        self._next: dict[object, tuple[float, int]] = {}

    def left_out(self, subject: object, now: float) -> int | None:
        """Return how many lines about a subject were left out since the last one; None if this one is, too."""
        next_time, left_out = self._next.get(subject, (now, 0))
        if now < next_time:
            self._next[subject] = next_time, left_out + 1
            return None
        if len(self._next) >= MAX_SUBJECTS:
            self._next.clear()
        self._next[subject] = now + self._pause, 0
        return left_out

    def rest(self) -> list[tuple[object, int]]:
        """Return the subjects of which lines were left out since the last one, with how many, and forget all."""
        known, self._next = self._next, {}
        return [(subject, left_out) for subject, (_, left_out) in known.items() if left_out]


logger: Final = logging.getLogger("slidegate")
"""Where all of the project writes."""
logger.addFilter(_clean)
