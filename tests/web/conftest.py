"""What tests of the middleware share."""

from pathlib import Path

import pytest

from slidegate import _watcher as watcher

from ..stores.conftest import observer, opened_as  # noqa: F401 - fixtures


@pytest.fixture(autouse=True)
def _clock_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give followed files their own clock back after a test."""
    monkeypatch.setattr(watcher, "now_s", watcher.now_s)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory of static files."""
    files = tmp_path / "downloads"
    files.mkdir()
    (files / "a.js").write_text("1")
    return files
