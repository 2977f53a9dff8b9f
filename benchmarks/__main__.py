"""Run benchmarks: `python3 dev.py bench [NAME]`.

A benchmark is a module here with `tables(options)`, which yields `report.tables.Table`; `PACKAGES` names those whose
versions stand below, `arguments(parser)` adds flags, and `FOR_THE_PAGE` are flags with which it runs where all of them
do. All candidates of a table take turns in it.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

from .report import chart, comparison, figures, page

ROOT: Final = Path(__file__).resolve().parents[1]
NAMES: Final = ("real", "server", "floods", "lmdb", "redis", "memory", "networks", "startup")
"""In the order of the page."""


def run(name: str, flags: list[str], save: bool) -> None:
    """Run one benchmark, print its tables as they come, and save them if it ended well."""
    module = importlib.import_module(f"benchmarks.{name}")
    parser = argparse.ArgumentParser(prog=f"dev.py bench {name}", description=module.__doc__)
    getattr(module, "arguments", lambda parser: None)(parser)
    options = parser.parse_args(flags)
    ran_on, tables = figures.machine(), []
    for table in module.tables(options):
        print(f"\n{table.markdown()}", flush=True)
        tables.append(table)
    command = shlex.join(["python3", "dev.py", "bench", name, *flags])
    found = figures.figures(command, ran_on, getattr(module, "PACKAGES", ()), tables)
    print(f"\n{found.closing()}")
    if save:
        figures.save(name, found)


def run_all(save: bool) -> int:
    """Run every benchmark in a process of its own; return 1 if one failed."""
    failed = []
    for name in NAMES:
        print(f"\n## {name}", flush=True)
        flags = getattr(importlib.import_module(f"benchmarks.{name}"), "FOR_THE_PAGE", ())
        command = [sys.executable, "-m", "benchmarks", name, *flags, *(["--save"] if save else [])]
        if subprocess.run(command, cwd=ROOT).returncode:
            failed.append(name)
    print(f"\nfailed: {', '.join(failed)}" if failed else "\nall benchmarks ended well")
    return int(bool(failed))


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="dev.py bench", description=__doc__, epilog="Other flags belong to the benchmark.", add_help=False
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help=f"{', '.join(NAMES)}; without one, all of them")
    parser.add_argument("--save", action="store_true", help="save the figures, and write them into docs/benchmarks.md")
    parser.add_argument(
        "--write",
        action="store_true",
        help="write docs/benchmarks.md and the table of README.md from the saved figures",
    )
    options, flags = parser.parse_known_args()
    if options.name and options.name not in NAMES:
        parser.error(f"{options.name!r} is no benchmark; expected one of: {', '.join(NAMES)}")
    if not options.name and {"-h", "--help"} & set(flags):
        parser.print_help()
        return 0
    if not options.name and flags:
        parser.error(f"{flags[0]!r} belongs to one benchmark; expected its name before")
    code = 0
    if options.name:
        run(options.name, flags, options.save)
    elif not options.write:
        code = run_all(options.save)
    if options.save or options.write:
        page.write()
        chart.write()
        comparison.write()
    return code


if __name__ == "__main__":
    sys.exit(main())
