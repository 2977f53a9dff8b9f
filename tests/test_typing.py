"""The public API as type checkers see it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def mypy(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run mypy as the project is configured."""
    return subprocess.run(
        [sys.executable, "-m", "mypy", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_what_users_write_has_the_types_they_are_told() -> None:
    run = mypy("tests/typing")
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize(
    "line",
    [
        "assert_type(Limit(5, '1m').amount, str)",
        "RateLimitMiddleware(print, limits='5/minute')",
        "Limiter(MemoryStore(), observer=[])",
        "Rule(path=None)",
        "await_me: int = Limiter().hit('user:42', '5/minute')",
    ],
)
def test_a_wrong_use_is_an_error(line: str, tmp_path: Path) -> None:
    names = "Limit, Limiter, MemoryStore, RateLimitMiddleware, Rule"
    program = tmp_path / "program.py"
    program.write_text(f"from typing import assert_type\nfrom slidegate import {names}\n{line}\n")
    run = mypy(str(program))
    assert run.returncode == 1, run.stderr
    assert run.stdout.count("error:") == 1, run.stdout
