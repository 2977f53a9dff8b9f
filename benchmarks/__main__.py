"""Run a benchmark: `python3 dev.py bench NAME [flags]`.

A benchmark is a module in this package with `tables(options)`, which yields tables. `PACKAGES` lists the packages whose
versions are shown, and `arguments(parser)` adds flags. The candidates of a table are measured alternately.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Final

from .table import closing

NAMES: Final = ("real", "limiter", "server", "lmdb", "redis", "memory", "networks", "startup")


def main() -> int:
    """Run one benchmark, and print each table when it is complete."""
    parser = argparse.ArgumentParser(prog="dev.py bench", description=__doc__, add_help=False)
    parser.add_argument("name", choices=NAMES)
    name = parser.parse_args(sys.argv[1:2]).name
    flags = sys.argv[2:]
    module = importlib.import_module(f"benchmarks.{name}")
    parser = argparse.ArgumentParser(prog=f"dev.py bench {name}", description=module.__doc__)
    getattr(module, "arguments", lambda parser: None)(parser)
    options = parser.parse_args(flags)
    measured = closing(name, flags, getattr(module, "PACKAGES", ()))
    for table in module.tables(options):
        print(f"\n{table.markdown()}", flush=True)
    print(f"\n{measured}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
