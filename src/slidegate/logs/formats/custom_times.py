"""The times that a format string may ask for, as nginx and Apache write them.

Apache writes one time in several pieces where its fraction of a second is wanted, as in
``[%{%d/%b/%Y:%T}t.%{msec_frac}t %{%z}t]``, so the pieces of a line are read together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple

from ...core.errors import ConfigurationError, quoted
from ..log_times import MAX_TIME_CHARACTERS, moment_us, text_time_us
from .parts import scaled

_WORDS: Final = r'[^]["]{1,64}?'
_NUMBER: Final = r"[0-9.]{1,32}+"
_FRACTIONS_US: Final = {"msec_frac": 1_000, "usec_frac": 1}


class TimePiece(NamedTuple):
    """A time, or a piece of one, in a line."""

    shape: str
    """The pattern of its text."""
    strftime: str = ""
    """Its format, where it is written by one."""
    fraction_us: int = 0
    """For a fraction of a second its unit, in microseconds."""
    brackets: bool = False
    """Whether its text has brackets around it."""


NGINX_TIMES: Final = {
    "time_local": TimePiece(_WORDS), "time_iso8601": TimePiece(_WORDS), "msec": TimePiece(_NUMBER),
}  # fmt: skip
"""The times of nginx, by the name of the variable."""


def apache_time(asked: str | None) -> TimePiece:
    """Return how Apache's ``%{...}t`` is written.

    Args:
        asked: The text in the braces: a format of ``strftime``, or ``sec``, ``msec``, ``usec``, ``msec_frac``,
            ``usec_frac``; None for ``%t`` alone, which writes brackets around the time.
    """
    if not asked:
        return TimePiece(rf"\[{_WORDS}\]", brackets=True)
    name = asked.removeprefix("begin:").removeprefix("end:")
    if name in ("sec", "msec", "usec"):
        return TimePiece(_NUMBER)
    if name in _FRACTIONS_US:
        return TimePiece(r"[0-9]{3}|[0-9]{6}", fraction_us=_FRACTIONS_US[name])
    written = name
    for short, long in (("%T", "%H:%M:%S"), ("%F", "%Y-%m-%d"), ("%R", "%H:%M"), ("%D", "%m/%d/%y"), ("%e", "%d")):
        written = written.replace(short, long)
    return TimePiece(_WORDS, strftime=written)


def time_of_pieces(pieces: Sequence[TimePiece]) -> Callable[[Sequence[str]], int | None]:
    """Return a function that makes one time, in microseconds since 1970, of the texts of its pieces.

    Args:
        pieces: The pieces that a line has, in their order.

    Raises:
        ConfigurationError: The time would have no zone, or its format cannot be read.
    """
    formats = [piece.strftime for piece in pieces if piece.strftime]
    written = " ".join(formats)
    if formats and "%z" not in written:
        raise ConfigurationError(
            f"the time {quoted(formats[0])} has no zone, so nobody knows which moment it means; expected one with %z, "
            "such as %{%Y-%m-%dT%H:%M:%S%z}t, or %{msec}t"
        )

    @lru_cache(maxsize=1_024)
    def read(text: str) -> int | None:
        try:
            return moment_us(datetime.strptime(text, written))
        except ValueError:
            return None

    def time_us(texts: Sequence[str]) -> int | None:
        if sum(map(len, texts)) > MAX_TIME_CHARACTERS:
            return None
        parts = list(zip(pieces, texts, strict=True))
        whole = [text for piece, text in parts if piece.strftime]
        if whole:
            found = read(" ".join(whole))
        else:
            found = next((text_time_us(text.strip("[]")) for piece, text in parts if not piece.fraction_us), None)
        fractions = [scaled(text, piece.fraction_us) or 0 for piece, text in parts if piece.fraction_us]
        # A whole time that comes with a fraction has none of its own, or the same one.
        return found if found is None or not fractions else found // 1_000_000 * 1_000_000 + fractions[0]

    return time_us
