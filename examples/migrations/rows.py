"""The rows and tables that the pages show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .asking import System


@dataclass(frozen=True)
class Row:
    """A measurement, the result of the other library, and ours."""

    question: str
    theirs: str
    ours: str


@dataclass(frozen=True)
class Table:
    """A table of a page.

    Args:
        head: The column headings.
        rows: The cells of each row.
    """

    head: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def of(number: float) -> str:
    """Format a number for a table."""
    return f"{number:,.2f}".rstrip("0").rstrip(".") if isinstance(number, float) else f"{number:,}"


def apart(system: System, paths: Iterable[str], times: int) -> str:
    """Return how many of `times` requests to each path pass."""
    return of(sum(system.ask(path).passed for path in paths for _ in range(times)))
