"""Writes the table of benchmarks/README.md, its chart and what the chart says, from benchmarks/numbers.json.

`--check` only compares. `python3 dev.py bench real --other compiled --chart` writes the microseconds of that file; the
cells of its tables are edited by hand, from what `bench` prints. README and docs/first_steps.md round the same numbers.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks import chart

ROOT: Final = Path(__file__).resolve().parents[1]
NUMBERS: Final = ROOT / "benchmarks" / "numbers.json"
PAGE: Final = ROOT / "benchmarks" / "README.md"
CHART: Final = ROOT / "docs" / "images" / "added"
BARS: Final = {
    "default": "slidegate",
    "asgi-ratelimit": "asgi-ratelimit",
    "dependency": "slidegate, FastAPI dependency",
    "fastapi-limiter": "fastapi-limiter, dependency",
}
"""The rows of the chart, with their labels."""
TABLE: Final = re.compile(r"(?<=\|---\|---:\|---:\|\n)(?:\|.*\n)+")
ALTERNATIVE: Final = re.compile(r"(?<=Microseconds that a limit adds: )[^\"]+")


def read() -> Any:
    """Return the numbers: `us`, what a limit adds to a request, and the cells of the `tables`."""
    return json.loads(NUMBERS.read_text("utf-8"))


def write(numbers: Any) -> None:
    """Write the numbers, a row on a line."""
    us = [f"    {json.dumps(name)}: {json.dumps(found)}" for name, found in numbers["us"].items()]
    tables = []
    for title, rows in numbers["tables"].items():
        lines = [f"      {json.dumps(name)}: {json.dumps(cells)}" for name, cells in rows.items()]
        tables.append(f"    {json.dumps(title)}: {{\n" + ",\n".join(lines) + "\n    }")
    text = '{\n  "us": {\n' + ",\n".join(us) + '\n  },\n  "tables": {\n' + ",\n".join(tables) + "\n  }\n}\n"
    NUMBERS.write_text(text, "utf-8")


def bars(numbers: Any) -> list[tuple[str, float]]:
    """Return the bars of the chart: peers as they are in the processes of the source."""
    return [
        (label if version == "source" else f"{label}, {version}", us)
        for name, label in BARS.items()
        for version, us in numbers["us"][name].items()
    ]


def made(page: str, numbers: Any) -> str:
    """Return the page with the numbers."""
    lines = []
    for title, rows in numbers["tables"].items():
        lines.append(f"| **{title}** | | |\n")
        for name, cells in rows.items():
            shown = "".join(f" {cell} |" if cell else " |" for cell in cells)
            lines.append(f"| {name} |{shown}\n")
    us = numbers["us"]
    ours, endpoint = us["default"], us["dependency"]
    said = (
        f"slidegate {ours['source']}, compiled {ours['compiled']}, asgi-ratelimit {us['asgi-ratelimit']['source']}; "
        f"as a dependency {endpoint['source']}, {endpoint['compiled']}, "
        f"fastapi-limiter {us['fastapi-limiter']['source']}."
    )
    return ALTERNATIVE.sub(said, TABLE.sub(lambda _: "".join(lines), page))


def main(arguments: list[str]) -> int:
    """Write the page and the chart, or compare them; return the exit code."""
    numbers, before = read(), PAGE.read_text("utf-8")
    files = chart.drawn(CHART, "Microseconds that a limit adds to a request", bars(numbers))
    files[PAGE] = made(before, numbers)
    if "--check" in arguments:
        return int(any(path.read_text("utf-8") != text for path, text in files.items()))
    for path, text in files.items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
