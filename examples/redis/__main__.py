"""``python -m examples.redis``: two processes, one limit; then Redis is killed, and comes back."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Column, Table

from .walk import find_redis, walk


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the walk-through; return 0, 1 if a request failed, or 2 if there is no Redis to start."""
    parser = argparse.ArgumentParser(prog="python -m examples.redis", description=__doc__)
    parser.add_argument("--program", default=find_redis(), help="a redis-server or a valkey-server; by default of PATH")
    program: str | None = parser.parse_args(arguments).program
    if program is None:
        sys.stderr.write("redis: there is no redis-server; install one, or name a program with --program\n")
        return 2
    table = Table("", *(Column(name, justify="right") for name in ("Passed", "Refused", "Failed", "Slowest")))
    failed = 0
    console = Console()
    with console.status("Requests go to two processes in turn"):
        for step in walk(program):
            counts = (str(count) for count in (step.passed, step.refused, step.failed))
            table.add_row(step.what, *counts, f"{1_000 * step.slowest_s:.0f} ms")
            failed += step.failed
    console.print(table)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
