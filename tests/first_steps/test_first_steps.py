"""The README and the page for newcomers, followed to the letter: a fresh checkout, an empty home, a new environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..pages.test_readme import QUICK_START
from ..redis_servers import free_port
from .walk import Walk, steps

pytestmark = pytest.mark.all

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"first steps": (ROOT / "docs" / "first_steps.md").read_text("utf-8"), "README": QUICK_START}
ASK_S = 120
"""How long a question to the package index may take."""


def checkout(place: Path) -> None:
    """Copy the checkout without what git ignores."""
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text("utf-8").splitlines()]
    shutil.copytree(ROOT, place, ignore=shutil.ignore_patterns(".git", *ignored))


def environment(programs: Path) -> dict[str, str]:
    """Return the environment of a newcomer: this Python is `python3`, and nothing of this run is set."""
    programs.mkdir()
    # A script and no link: it finds its library wherever it is called from.
    python = programs / "python3"
    python.write_text(f'#!/bin/sh\nexec "{Path(sys._base_executable).resolve()}" "$@"\n', "utf-8")  # type: ignore[attr-defined]
    python.chmod(0o755)
    ours = ("PIP_", "SSL_", "REQUESTS_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
    kept = {name: value for name, value in os.environ.items() if name.upper().startswith(ours)}
    return {**kept, "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "dumb"}


def index_answers(place: Path) -> bool:
    """Return whether pip finds the package that builds slidegate."""
    ask = ["-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--timeout", "15", "--retries", "1"]
    try:
        asked = subprocess.run(
            [sys.executable, *ask, "--dest", str(place), "hatchling"], capture_output=True, timeout=ASK_S
        )
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0


@pytest.mark.parametrize("page", PAGES)
def test_the_page_works_command_by_command(page: str, tmp_path: Path) -> None:
    if os.environ.get("CI") != "true" and not index_answers(tmp_path / "asked"):
        pytest.skip("no package index answers, and the pages install from one")
    home = tmp_path / "home"
    home.mkdir()
    checkout(home / "slidegate")
    walk = Walk(home, free_port(), environment(tmp_path / "programs"))
    try:
        for step in steps(PAGES[page]):
            walk.take(step)
    finally:
        walk.interrupt()
