"""Which tests a machine or a Python cannot run, and how many of them a run may have.

A test that fails because Windows has no LMDB, or because requirements/*.in leave a package out for which this Python
has no wheel, is skipped with that reason; of a file of texts only the entries that need it are not compared. So that
nothing else disappears this way, skips.txt has for each Python the most tests that a run may skip; with CI=true a run
with more of them fails.
"""

import os
import re
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Final, TypeVar

import pytest

Report = TypeVar("Report", pytest.CollectReport, pytest.TestReport)

POSIX_ALONE: Final = re.compile(r"LmdbStore needs POSIX|No module named '(?:fcntl|grp|pty|pwd|resource|termios|tty)'")
WITHOUT_WHEEL: Final = [name for name in ("lmdb", "tree_sitter") if find_spec(name) is None]
"""Packages that are not installed, because there is no wheel for this Python."""
needs_lmdb: Final = pytest.mark.skipif("lmdb" in WITHOUT_WHEEL, reason="lmdb has no wheel for this Python")
"""For tests whose failure would not say so."""
MOST: Final = Path(__file__).with_name("skips.txt")


PYTHON: Final = sysconfig.get_python_version() + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else "")
"""As skips.txt names it: 3.14, or 3.14t where it is free-threaded and has fewer wheels."""


def missing_here(text: str) -> str | None:
    """Return what this machine lacks according to the text of a failure."""
    if os.name == "nt" and (found := POSIX_ALONE.search(text)):
        return found[0]
    for name in WITHOUT_WHEEL:
        if re.search(rf"(?:needs the package|No module named|import of) '?{name}", text):
            return f"{name} has no wheel for Python {PYTHON}"
    return None


def skipped_where_missing(report: Report) -> Report:
    """Return the report of a skip where a test failed because this machine lacks something."""
    missing = missing_here(report.longreprtext) if report.failed else None
    if missing:
        report.outcome, report.longrepr = "skipped", (report.nodeid, 0, f"Skipped: {missing}")
    return report


def most_skipped() -> int | None:
    """Return how many tests may be skipped with this Python on Linux; None if skips.txt does not say."""
    lines = MOST.read_text("utf-8").splitlines()
    rows = dict(line.split()[:2] for line in lines if line and not line.startswith("#"))
    return int(rows[PYTHON]) if sys.platform == "linux" and PYTHON in rows else None
