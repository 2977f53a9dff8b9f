"""Writes the table of the README: slidegate beside others, by the facts of docs/coming_from and the saved figures.

A line ``<!-- comparison -->`` opens its place, and ``<!-- end of comparison -->`` closes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
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
    "asgi-ratelimit": "asgi_ratelimit",
}
"""The others by their names in the overview, and the pages about them."""
QUESTIONS: Final = {
    "Most requests of one client in any minute": "Most requests of one client in any minute",
    "Most in any second": "Most of them in one second",
    "`Retry-After`; when one is admitted": "`Retry-After`; when the client is really let in",
}
"""Columns of the overview, and what the README calls them."""
TWO: Final = "`5/minute` and `50/hour`"
MIDDLEWARES: Final = {
    "slidegate": "slidegate",
    "slowapi": "slowapi (ASGI middleware)",
    "asgi-ratelimit": "asgi-ratelimit",
}
ENDPOINTS: Final = {
    "slidegate": "slidegate at the endpoint of FastAPI",
    "fastapi-limiter": "fastapi-limiter at the endpoint",
}
"""Rows of the benchmark by the names of the libraries."""
KNOWN: Final[dict[str, list[str]]] = {
    "Counts for several hosts in": [
        "Redis, Valkey, Redis Cluster",
        "the storages of limits",
        "Redis, Valkey, MongoDB",
        "Redis, by pyrate-limiter",
        "Redis",
    ],
    "Bans": ["longer each time; addresses, networks, keys", "none", "none", "none", "`block_time`, always as long"],
    "Tries limits on your access logs": ["`slidegate simulate`, `suggest`", "no", "no", "no", "no"],
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
    """Return a cell of the tables of a page, by the beginning of its row and by the head of its column.

    Raises:
        LookupError: There is no such cell.
    """
    for heads, *rows in grids(text):
        for cells in rows:
            if column in heads and cells[0].startswith(row):
                return cells[heads.index(column)]
    raise LookupError(f"no table has the row {row!r} and the column {column!r}")


def added(figures: Figures, names: dict[str, str], system: str) -> str:
    """Return what a system adds to a request, admitted and refused; an empty text where it was not measured."""
    if system not in names:
        return ""
    tables = [figures.table(f"One request, {outcome}") for outcome in ("admitted", "refused")]
    return "; ".join(f"{table.number(names[system], 'added us'):+.0f}" for table in tables)


def table(read: Callable[[str], str], figures: Figures) -> Table:
    """Return the table.

    Args:
        read: Returns the text of a page of docs/coming_from.
        figures: Those of the benchmark of the middleware.
    """
    systems = [OURS, *OTHERS]
    rows: list[list[str]] = [
        [called, *(fact(read("index"), system, question) for system in systems)]
        for question, called in QUESTIONS.items()
    ]
    columns = {"slowapi": "slowapi", "limits `moving-window`": "`moving-window`"}
    two = [fact(read(page), TWO, columns.get(system, system)) for system, page in OTHERS.items()]
    rows.append([f"{TWO} together allow 50: admitted", fact(read("slowapi"), TWO, OURS), *two])
    for what, names in (("on Starlette", MIDDLEWARES), ("at an endpoint of FastAPI", ENDPOINTS)):
        costs = [added(figures, names, system) for system in systems]
        rows.append([f"Microseconds that it adds {what}: admitted; refused", *costs])
    rows.extend([what, *said] for what, said in KNOWN.items())
    links = [f"[{system}]({PAGES}/{page}.md)" for system, page in OTHERS.items()]
    return Table("", dict.fromkeys(["", OURS, *links], ""), [[*row] for row in rows])


def filled(text: str) -> str:
    """Return the README with the table in its place."""
    shown = table(lambda page: (ROOT / PAGES / f"{page}.md").read_text("utf-8"), load("middleware")).markdown()
    return PLACE.sub(lambda found: f"{found['opens']}\n{shown}\n\n{found['closes']}", text)


def write(page: Path = README) -> None:
    """Write the table into the README."""
    page.write_text(filled(page.read_text("utf-8")), "utf-8")
