"""LMDB stores: those of one test at one path are those of one process."""

from functools import partial
from typing import Any

import pytest

from ..conftest import Opened


@pytest.fixture
def opened(opened_as: Opened) -> Opened:
    """Open LMDB stores; all are closed at the end of the test."""
    return partial(opened_as, "lmdb")


@pytest.fixture
def store(opened: Opened) -> Any:
    """Return a store; at a place that was made, where a test asks for that first."""
    return opened()
