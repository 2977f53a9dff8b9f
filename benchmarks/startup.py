"""What `import slidegate` takes, beside `import starlette.applications`, which it needs a part of.

Fresh interpreters take turns, and each says how much processor time it spent. Other programs can only add to that, so
the least of all rounds counts. `-I` keeps the environment out, and the bytecode of every module is there already.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

from .report.tables import Cell, Table

PACKAGES = ("starlette",)
SOURCE = Path(__file__).resolve().parents[1] / "src"


def spent_ms(code: str) -> float:
    """Return the processor time of an interpreter that runs some code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(SOURCE)!r}); {code}"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1_000


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=30)


def tables(options: Namespace) -> Iterator[Table]:
    """Measure the three; the time of the empty interpreter is taken off the other two."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    asked = {"nothing": "pass", "starlette": "import starlette.applications", "slidegate": "import slidegate"}
    taken: dict[str, list[float]] = {name: [] for name in asked}
    for number in range(options.rounds + 1):
        for name, code in asked.items():
            took_ms = spent_ms(code)
            if number:
                taken[name].append(took_ms)
    least = {name: min(rounds_ms) for name, rounds_ms in taken.items()}
    starlette_ms, slidegate_ms = (least[name] - least["nothing"] for name in ("starlette", "slidegate"))
    ratio = slidegate_ms / starlette_ms
    rows: list[list[Cell]] = [
        ["`import starlette.applications` adds", starlette_ms, None, None],
        ["`import slidegate` adds, with what it needs of Starlette", slidegate_ms, ratio, "≤1.5"],
    ]
    yield Table("", {"what": "", "least ms": ".1f", "ratio": ".2f", "asked": ""}, rows)
