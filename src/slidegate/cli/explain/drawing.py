"""Courses of clients as lines of text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .courses import Spent

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_ASCII: Final = " .:-=+*#@"


def drawn(course: Iterable[Spent], start_us: int, span_us: int, columns: int, *, unicode: bool) -> str:
    """Return one line, in which each column stands for a part of the span and its height for the units there.

    Args:
        course: The units, none of them before the start.
        start_us: The moment of the first column.
        span_us: The length that is drawn.
        columns: The width of the line.
        unicode: Whether block characters can be shown.
    """
    heights = [0] * columns
    for spent in course:
        heights[min((spent.at_us - start_us) * columns // span_us, columns - 1)] += spent.units
    steps = _BLOCKS if unicode else _ASCII
    top = max(*heights, 1)
    # Rounded up: a column with one unit is never blank.
    return "".join(steps[-(-height * (len(steps) - 1) // top)] for height in heights)


def axis(span: str, columns: int) -> str:
    """Return the line below: 0 on the left, the end of the span on the right."""
    return "0" + span.rjust(columns - 1)
