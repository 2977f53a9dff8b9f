"""Compares other rate limiters with slidegate under one virtual clock: ``python3 dev.py example migrations``.

It prints the tables of docs/coming_from. ``--json FILE`` also writes them to a file, ``--pages`` into the pages.
"""

from __future__ import annotations

import argparse
import json
import logging
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table as Shown

from . import asking
from .facts import measured
from .pages import write


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(prog="python3 dev.py example migrations", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the tables to a file")
    parser.add_argument("--pages", action="store_true", help="write the tables into docs/coming_from")
    chosen = parser.parse_args()
    logging.disable(logging.ERROR)  # thousands of refusals would be logged
    tables = measured()
    asking.loop.close()
    console = Console()
    for name, of_page in tables.items():
        for table in of_page:
            shown = Shown(*table.head, title=name.replace("_", "-"))
            for row in table.rows:
                shown.add_row(*row)
            console.print(shown)
    if chosen.json:
        chosen.json.write_text(json.dumps({name: list(map(asdict, found)) for name, found in tables.items()}), "utf-8")
    if chosen.pages:
        write(tables)


if __name__ == "__main__":
    main()
