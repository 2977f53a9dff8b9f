"""What tests of the middleware share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory of static files."""
    files = tmp_path / "downloads"
    files.mkdir()
    (files / "a.js").write_text("1")
    return files
