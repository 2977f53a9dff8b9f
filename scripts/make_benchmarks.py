"""Draws the chart of benchmarks/README.md, and writes what it says, from the first rows of the table on that page.

The cells of the table are edited by hand, from what `bench` prints. `--check` only compares. README and
docs/reference/api.md round the same numbers.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

from benchmarks import chart

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "benchmarks" / "README.md"
CHART: Final = ROOT / "docs" / "images" / "added"
DRAWN: Final = "Microseconds that a limit adds to a request"
ALTERNATIVE: Final = re.compile(r"(?<=Microseconds that a limit adds: )[^\"]+")


def read(page: str) -> dict[str, dict[str, list[str]]]:
    """Return the cells of the table by group and row: for the source, and for the wheel or an empty text."""
    groups: dict[str, dict[str, list[str]]] = {}
    for name, *cells in re.findall(r"^\| (.+?) \| (.*?) ?\| (.*?) ?\|$", page, re.MULTILINE):
        if name.startswith("**"):
            rows = groups[name.strip("*")] = {}
        elif groups:
            rows[name] = cells
    return groups


def made() -> dict[Path, str]:
    """Return the texts of the page and of its pictures."""
    page = PAGE.read_text("utf-8")
    bars = []
    for label, (source, compiled) in read(page)[DRAWN].items():
        bars.append((label, float(source)))
        if compiled:
            bars.append((f"{label}, compiled", float(compiled)))
    said = "; ".join(f"{label} {us}" for label, us in bars)
    return {PAGE: ALTERNATIVE.sub(f"{said}.", page), **chart.drawn(CHART, DRAWN, bars)}


def main(arguments: list[str]) -> int:
    """Write the page and the chart, or compare them; return the exit code."""
    files = made()
    if "--check" in arguments:
        return int(any(path.read_text("utf-8") != text for path, text in files.items()))
    for path, text in files.items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
