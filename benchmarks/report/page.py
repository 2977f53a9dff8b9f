"""Writes the tables of docs/benchmarks.md from the saved figures; the prose around them is written by hand.

A line ``<!-- figures: NAME -->`` opens the place of a benchmark's tables, and ``<!-- end of figures -->`` closes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from .figures import FOLDER, Figures, load

PAGE: Final = FOLDER.parents[1] / "docs" / "benchmarks.md"
PLACE: Final = re.compile(
    r"(?P<opens><!-- figures: (?P<name>\w+) -->\n).*?(?P<closes><!-- end of figures -->)", re.DOTALL
)


def filled(text: str, read: Callable[[str], Figures] = load) -> str:
    """Return a page with the tables of the saved figures in their places."""

    def tables(found: re.Match[str]) -> str:
        return f"{found['opens']}\n{read(found['name']).markdown()}\n\n{found['closes']}"

    return PLACE.sub(tables, text)


def write(page: Path = PAGE) -> None:
    """Write the tables into the page."""
    page.write_text(filled(page.read_text("utf-8")), "utf-8")
