"""LMDB stores: those of one test at one path are those of one process."""

import pytest


@pytest.fixture
def kind() -> str:
    return "lmdb"
