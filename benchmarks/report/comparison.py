"""Writes the table of the README: slidegate beside others, by the facts of docs/coming_from and the saved figures.

A line ``<!-- comparison -->`` opens its place, and ``<!-- end of comparison -->`` closes it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from .figures import FOLDER, Figures, load
from .tables import Table

ROOT: Final = FOLDER.parents[1]
README: Final = ROOT / "README.md"
PAGES: Final = "docs/coming_from"
PLACE: Final = re.compile(r"(?P<opens><!-- comparison -->\n).*?(?P<closes><!-- end of comparison -->)", re.DOTALL)
OURS: Final = "slidegate"
OTHERS: Final = {
    "slowapi": "slowapi",
    "limits `moving-window`": "limits",
    "fastapi-limiter": "fastapi_limiter",
    "fastapi-guard": "fastapi_guard",
    "asgi-ratelimit": "index",
}
"""The others by their names in the overview, and the pages about them."""
QUESTIONS: Final = {
    "Most in any minute": "Most requests of one client in any minute",
    "`Retry-After`; when one is admitted": "`Retry-After`; when the client is really let in",
    "Twice as often": "A client that asks twice as often as it may, where 500 are allowed: admitted",
    "`5/minute` and `50/hour`": "`5/minute` and `50/hour` together allow 50: admitted",
}
"""Columns of the overview, by how they begin, and what the README calls them."""
ROWS: Final = {
    "on Starlette": {
        "slidegate": ("default", "refused by a limit"),
        "slowapi": ("slowapi", "slowapi, refused"),
        "asgi-ratelimit": ("asgi-ratelimit", "asgi-ratelimit, refused"),
        "fastapi-guard": ("fastapi-guard", "fastapi-guard, refused"),
    },
    "at an endpoint of FastAPI": {
        "slidegate": ("decorator", "decorator, refused"),
        "fastapi-limiter": ("fastapi-limiter", "fastapi-limiter, refused"),
    },
}
"""Rows of `bench real`, admitted and refused, by the names of the libraries."""
KNOWN: Final[dict[str, list[str]]] = {
    "Counts for several hosts in": [
        "Redis, Valkey, Redis Cluster",
        "the storages of limits",
        "Redis, Valkey, MongoDB",
        "Redis, by pyrate-limiter",
        "Redis",
        "Redis",
    ],
    "Bans": [
        "longer each time; addresses, networks, keys",
        "none",
        "none",
        "none",
        "addresses, always as long",
        "`block_time`, always as long",
    ],
    "Tries limits on your access logs": ["`slidegate simulate`, `suggest`", "no", "no", "no", "no", "no"],
}
"""What nobody has to measure, in the order of `OURS` and `OTHERS`; the pages say the same."""

Grid = list[list[str]]


def grids(text: str) -> list[Grid]:
    """Return the tables of a page, as cells without the line below the heads."""
    found: list[Grid] = []
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        lines = [[cell.strip() for cell in line.strip().strip("|").split(" |")] for line in block.splitlines()]
        found.append([cells for cells in lines if not set("".join(cells)) <= set("-: |")])
    return found


def fact(text: str, row: str, column: str) -> str:
    """Return a cell of the tables of a page, by its row and by the beginning of its column's head.

    Raises:
        LookupError: There is no such cell.
    """
    for heads, *rows in grids(text):
        for head, cells in ((head, cells) for cells in rows for head in heads):
            if head.startswith(column) and cells[0] == row:
                return cells[heads.index(head)]
    raise LookupError(f"no table has the row {row!r} and the column {column!r}")


def added(figures: Figures, rows: tuple[str, ...]) -> str:
    """Return what a system adds to a request, by the names of rows; an empty text where it was not measured."""
    found = [figures.number(row, "source us") for row in rows]
    return "; ".join("" if us is None else f"{us:+.0f}" for us in found)


def table(overview: str, figures: Figures) -> Table:
    """Return the table.

    Args:
        overview: The text of docs/coming_from/index.md.
        figures: Those of `bench real`.
    """
    systems = [OURS, *OTHERS]
    rows = [
        [called, *(fact(overview, system, question) for system in systems)] for question, called in QUESTIONS.items()
    ]
    for what, measured in ROWS.items():
        costs = [added(figures, measured.get(system, ())) for system in systems]
        rows.append([f"Microseconds that it adds {what}: admitted; refused", *costs])
    rows.extend([what, *said] for what, said in KNOWN.items())
    links = [f"[{system}]({PAGES}/{page}.md)" for system, page in OTHERS.items()]
    return Table("", dict.fromkeys(["", OURS, *links], ""), [[*row] for row in rows])


def filled(text: str) -> str:
    """Return the README with the table in its place."""
    shown = table((ROOT / PAGES / "index.md").read_text("utf-8"), load("real")).markdown()
    return PLACE.sub(lambda found: f"{found['opens']}\n{shown}\n\n{found['closes']}", text)


def write(page: Path = README) -> None:
    """Write the table into the README."""
    page.write_text(filled(page.read_text("utf-8")), "utf-8")
