"""Run a benchmark: `python3 dev.py bench NAME [flags]`; `NAME --help` lists the flags.

A benchmark is a module of this package with `main(parser)`, which adds flags, parses them, measures the candidates of
each table alternately and prints the table.
"""

import argparse
import importlib
import os
import platform
import shlex
import sys
from typing import Final

NAMES: Final = ("real", "bytecodes", "limiter", "lmdb", "redis", "memory")


def main() -> None:
    """Run one benchmark, and print how it was measured."""
    command = shlex.join(["python3", "dev.py", "bench", *sys.argv[1:]])
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0  # before the run, which changes it
    parser = argparse.ArgumentParser(prog="dev.py bench", description=__doc__, add_help=False)
    parser.add_argument("name", choices=NAMES)
    name = parser.parse_args(sys.argv[1:2]).name
    del sys.argv[1]
    module = importlib.import_module(f"benchmarks.{name}")
    module.main(argparse.ArgumentParser(prog=f"dev.py bench {name}", description=module.__doc__))
    print(f"\n`{command}`, {os.cpu_count()} cores, load {load:.1f}, CPython {platform.python_version()}.")


if __name__ == "__main__":
    main()
