"""The package's logger, and what protects it from log injection.

A message may contain text from a client: a key, a path, or the message of an exception that it caused in a user's
function. A line break in it would forge a log line, and an escape sequence could control the operator's terminal. So
code that logs such a text passes it through `escaped`. Tracebacks are Python's own, as in every other logger.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from os.path import basename
from traceback import extract_tb
from typing import Any, Final

from .passwords import without_addresses, without_passwords

MAX_CHARS: Final = 4_096
"""The most characters of a message that are logged."""
PAUSE_S: Final = 60.0
"""The default time between two log lines about one failure, in seconds."""
MAX_SUBJECTS: Final = 1_000
"""The most subjects that a `Throttle` remembers; one more clears it."""


def escaped(text: str, max_chars: int = MAX_CHARS) -> str:
    """Return a text with unprintable characters escaped as in Python, cut to at most `max_chars` characters."""
    if len(text) <= max_chars and text.isprintable():
        return text
    clean = "".join(map(_printable, text[: max_chars + 1]))
    if len(clean) <= max_chars:
        return clean
    return clean[: max_chars - 1] + "\u2026"


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()


def safe_text(value: object, *, is_message: bool = False) -> str:
    """Return the `repr` of a value, or the text of a message, without passwords; if that raises, a word on its type.

    The objects of drivers and users that appear in reports must not make the report fail.
    """
    try:
        if is_message:
            return without_addresses(str(value))
        return without_passwords(repr(value))
    except Exception as error:
        return f"<{type(value).__name__} that cannot be written: {type(error).__name__}>"


class Throttle:
    """Limits the rate of log lines per subject, where the same line could be repeated with every request.

    Args:
        pause: The minimum time between two lines about a subject, in the unit of `now` of `left_out`.
    """

    def __init__(self, pause: float = PAUSE_S) -> None:
        self._pause = pause
        self._next: dict[object, tuple[float, int]] = {}

    def left_out(self, subject: object, now: float) -> str | None:
        """Return the end of a line about a subject, with the number of suppressed lines, if any; None to suppress it.

        If the clock has stepped back to before the last line, that line does not suppress any other.
        """
        next_time, left_out = self._next.get(subject, (now, 0))
        if next_time - self._pause <= now < next_time:
            self._next[subject] = next_time, left_out + 1
            return None
        if len(self._next) >= MAX_SUBJECTS:
            self._next.clear()
        self._next[subject] = now + self._pause, 0
        if not left_out:
            return ""
        return f" (and {left_out} more since the last such line)"


class _PackageLogger(logging.LoggerAdapter[logging.Logger]):
    """Begins each message with the package's name, because some log formats show only messages."""

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[str, MutableMapping[str, Any]]:
        return f"slidegate: {without_addresses(str(msg))}", kwargs


logger: Final = _PackageLogger(logging.getLogger("slidegate"))
"""The logger of the whole package."""


_failures: Final = Throttle()


def log_failure(text: str, error: Exception, now_s: float) -> None:
    """Log what failed where nobody foresaw it, in one line, once a minute for each text and type of error.

    A traceback would have to be searched for passwords, also in the values of other libraries.
    """
    left_out = _failures.left_out((text, type(error)), now_s)
    if left_out is not None:
        where = [f"{basename(frame.filename)}:{frame.lineno}" for frame in extract_tb(error.__traceback__, limit=-1)]
        logger.error("%s: %s (%s)%s", text, escaped(safe_text(error)), *where or ["?"], left_out)


@contextmanager
def net(text: str, clock: Callable[[], float]) -> Iterator[None]:
    """Log what ends a turn of a task that lives long, and raise nothing, so that the task goes on with the next.

    Args:
        text: What failed.
        clock: Returns seconds.
    """
    try:
        yield
    except Exception as error:
        log_failure(text, error, clock())
