"""Writes the tables into docs/coming_from; the text around them is written by hand.

The tables of a page are between the lines ``<!-- measured -->`` and ``<!-- end of measured -->``.
"""

from __future__ import annotations

import re
from pathlib import Path

from .rows import Table

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "coming_from"
PLACE = re.compile(r"(?P<opens><!-- measured -->\n).*?(?P<closes><!-- end of measured -->)", re.DOTALL)


def filled(text: str, tables: list[Table]) -> str:
    """Return a page with its tables replaced."""
    shown = "\n\n".join(table.markdown() for table in tables)
    return PLACE.sub(lambda found: f"{found['opens']}\n{shown}\n\n{found['closes']}", text)


def write(tables: dict[str, list[Table]]) -> None:
    """Write all tables into their pages."""
    for name, of_page in tables.items():
        page = FOLDER / f"{name}.md"
        page.write_text(filled(page.read_text("utf-8"), of_page), "utf-8")
