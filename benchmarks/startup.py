"""The time of `import slidegate`, compared with `import starlette.applications`, a part of which it imports too.

It measures the processor time of fresh interpreters, alternately. Other programs can only increase that, so the minimum
of all rounds counts. `-I` ignores the environment, and the bytecode of every module is already cached.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator

from .table import Cell, Table
from .versions import ROOT

PACKAGES = ("starlette",)


def spent_ms(code: str) -> float:
    """Return the processor time of a new interpreter that runs some code, in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    path = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); "
    subprocess.run([sys.executable, "-I", "-c", path + code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1_000


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=30)


def tables(options: Namespace) -> Iterator[Table]:
    """Measure both imports and an empty interpreter, whose time is subtracted."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    asked = ("pass", "import starlette.applications", "import slidegate")
    rounds = [[spent_ms(code) for code in asked] for _ in range(options.rounds + 1)]
    nothing, starlette, ours = map(min, zip(*rounds[1:], strict=True))
    ratio = (ours - nothing) / (starlette - nothing)
    rows: list[list[Cell]] = [
        ["`import starlette.applications` adds", starlette - nothing, None, None],
        ["`import slidegate` adds, with what it needs of Starlette", ours - nothing, ratio, "≤1.4"],
    ]
    yield Table("", {"what": "", "least ms": ".1f", "ratio": ".2f", "asked": ""}, rows)
