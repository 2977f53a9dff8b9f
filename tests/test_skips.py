"""What this Python has no wheel for leaves out its own tests alone, by name, and never more than are expected."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .skips import PYTHON

ROOT = Path(__file__).resolve().parents[1]
HIDDEN = """
import sys
from pathlib import Path
sys.modules["lmdb"] = None
import pytest
from tests import skips
skips.MOST = Path(sys.argv[1])
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""
NEEDED = (
    "tests/stores/lmdb/test_kept.py",
    "tests/stores/test_open_store.py::test_options_and_addresses_that_cannot_work_are_refused_with_what_would",
    "tests/limiter/test_sync.py::test_no_thread_starts_for_a_store_that_needs_none",
)


@pytest.mark.skipif(sys.platform != "linux", reason="the numbers are those of Linux")
@pytest.mark.parametrize("ci", ["true", pytest.param("", marks=pytest.mark.all)])
@pytest.mark.parametrize("most", [2, 1])
def test_tests_that_need_what_has_no_wheel_are_skipped_and_counted(most: int, ci: str, tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    numbers.write_text(f"{PYTHON} {most}\n", "utf-8")
    command = [sys.executable, "-c", HIDDEN, str(numbers), *NEEDED]
    environment = {**os.environ, "CI": ci}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert "2 passed, 2 skipped" in ended.stdout, ended.stdout
    assert "lmdb has no wheel for Python" in ended.stdout
    assert ("at most 1 may be" in ended.stdout) == (most == 1)
    assert ended.returncode == (most == 1 and ci == "true")


@pytest.mark.skipif(sys.platform != "linux", reason="the numbers are those of Linux")
def test_what_only_the_source_can_run_counts_as_no_skip_of_a_compiled_run(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    numbers.write_text(f"{PYTHON} 0\n", "utf-8")
    command = [sys.executable, "-c", HIDDEN, str(numbers), "-m", "interpreted and not deep", "tests/web/test_bounds.py"]
    environment = {**os.environ, "SLIDEGATE_COMPILED": "1", "CI": "true"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert re.search(r"\b[1-9]\d* skipped", ended.stdout), ended.stdout
    assert ended.returncode == 0, ended.stdout
