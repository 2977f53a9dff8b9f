"""LMDB stores: those of one test at one path are those of one process."""

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
