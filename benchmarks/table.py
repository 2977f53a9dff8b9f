"""A table of results as Markdown, and the line below it about how they were measured."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

Cell = str | int | float | None
"""None is an empty cell."""


@dataclass(frozen=True, slots=True)
class Table:
    """Results of one run of a benchmark.

    Attributes:
        title: The heading; empty for none.
        columns: The number format of each column by name, such as ``".2f"``; ``""`` for a column of text.
        rows: The cells of each row.
    """

    title: str
    columns: dict[str, str]
    rows: Sequence[Sequence[Cell]]

    def markdown(self) -> str:
        """Return the table as Markdown, with its heading."""
        rules = ["---:" if form else "---" for form in self.columns.values()]
        bodies = [[shown(*pair) for pair in zip(row, self.columns.values(), strict=True)] for row in self.rows]
        grid = "\n".join(f"| {' | '.join(cells)} |" for cells in ([*self.columns], rules, *bodies))
        return f"### {self.title}\n\n{grid}" if self.title else grid


def shown(cell: Cell, form: str) -> str:
    """Return the text of a cell; integers ignore the format of the column."""
    if cell is None or isinstance(cell, str):
        return cell or ""
    return format(cell, ",d" if isinstance(cell, int) else form)


def closing(name: str, flags: Sequence[str], packages: Sequence[str]) -> str:
    """Return how, when and where a benchmark was measured. Call it before the run, which changes the load average."""
    found = [f"{platform.python_implementation()} {platform.python_version()}"]
    for package in packages:
        with suppress(PackageNotFoundError):
            found.append(f"{package} {version(package)}")
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    command = shlex.join(["python3", "dev.py", "bench", name, *flags])
    return f"`{command}`, {datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores{load}, {', '.join(found)}."
