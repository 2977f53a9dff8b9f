"""Stores of each kind, for tests of limiters on them, and what their work takes between two requests."""

import asyncio
import sys
from types import FrameType
from typing import Any

import pytest

from ..stores.conftest import observer, opened_as  # noqa: F401 - fixtures


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many functions of this thread each iteration of the event loop has called."""
    counted = [0]
    run = asyncio.Handle._run

    def count(frame: FrameType, event: str, argument: object) -> None:
        counted[-1] += event == "call"

    def counting(handle: Any) -> None:
        counted.append(0)
        sys.setprofile(count)
        try:
            run(handle)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(asyncio.Handle, "_run", counting)
    return counted
