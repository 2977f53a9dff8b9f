"""Each benchmark that needs no server runs small, and shows a table and how it was measured."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"networks": ["--count", "50", "--rounds", "1"], "startup": ["--rounds", "1"]}
LONGER = {"lmdb": ["--rounds", "1", "--hits", "640"], "memory": ["--keys", "20000"]}


@pytest.mark.parametrize(
    ("name", "flags"),
    [*SMALL.items(), *(pytest.param(name, flags, marks=pytest.mark.deep) for name, flags in LONGER.items())],
)
def test_a_small_run_of_a_benchmark_ends_well(name: str, flags: list[str]) -> None:
    # A process of its own: benchmarks fork, silence the log and change the garbage collector.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    line = [sys.executable, "-m", "benchmarks", name, *flags]
    ended = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"^\| -", ended.stdout, re.MULTILINE)
    assert f"`python3 dev.py bench {name}" in ended.stdout
