"""A table of figures: numbers as numbers, so that a page and a chart can be made of the same ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Cell = str | int | float | None
"""None is an empty cell."""


@dataclass(frozen=True, slots=True)
class Table:
    """Figures of one run of one benchmark.

    Attributes:
        title: The heading above it; empty for none.
        columns: The format of the numbers of each column (``".2f"``, ``",d"``) by its name, and ``""`` for a column of
            text, which stands on the left. Whole numbers are shown whole. The first column names the rows.
        rows: A list of cells for each row. Text in a column of numbers is shown as it is.
        note: What has to be said below it; empty for nothing.
    """

    title: str
    columns: dict[str, str]
    rows: list[list[Cell]]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title!r}: {row!r} has {len(row)} cells; expected {len(self.columns)}")

    def markdown(self) -> str:
        """Return the table as Markdown, with its heading and its note."""
        rules = ["---:" if form else "---" for form in self.columns.values()]
        bodies = [[shown(*pair) for pair in zip(row, self.columns.values(), strict=True)] for row in self.rows]
        grid = "\n".join(line(cells) for cells in ([*self.columns], rules, *bodies))
        return "\n\n".join(part for part in (self.title and f"### {self.title}", grid, self.note) if part)

    def number(self, row: str, column: str) -> float | None:
        """Return a number by the name of its row and its column; None where there is none."""
        if column not in self.columns:
            return None
        place = list(self.columns).index(column)
        found = next((cells[place] for cells in self.rows if cells[0] == row), None)
        return float(found) if isinstance(found, int | float) else None

    @classmethod
    def of_json(cls, found: dict[str, Any]) -> Table:
        """Return the table that `dataclasses.asdict` has made a dict of."""
        return cls(found["title"], found["columns"], found["rows"], found["note"])


def line(cells: list[str]) -> str:
    """Return one line of a Markdown table."""
    return f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|"


def shown(cell: Cell, form: str) -> str:
    """Return the text of a cell."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    return format(cell, ",d" if isinstance(cell, int) else form)
