"""LMDB stores: those of one test at one path are those of one process."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slidegate.testing import RecordingObserver

from ..conftest import Opened


@pytest.fixture
def observer() -> RecordingObserver:
    """What the stores of a test tell."""
    return RecordingObserver()


@pytest.fixture
def opened(opened_as: Opened, observer: RecordingObserver) -> Opened:
    """Open LMDB stores; all are closed at the end of the test."""

    def opened(name: str = "store", **options: Any) -> Any:
        store = opened_as("lmdb", name, **options)
        store.observe(observer)
        return store

    return opened


@pytest.fixture
def store(opened: Opened) -> Any:
    """Return a store; at a place that was made, where a test asks for that first."""
    return opened()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from .test_boot import Machine  # Windows has none

    made = Machine(tmp_path / "lmdb", monkeypatch)
    yield made
    made.close()
