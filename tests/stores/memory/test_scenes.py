"""The scenes of `scenes`, played to a memory store as it is."""

from __future__ import annotations

import pytest

from slidegate.core import new_window
from slidegate.stores.memory.store import MemoryStore

from .scenes import SCENES, NewStore, nothing_is_handed_back_twice, seconds_are_rounded


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_scene(scene: NewStore) -> None:
    scene(MemoryStore)


def test_nothing_is_handed_back_twice() -> None:
    nothing_is_handed_back_twice(new_window)


def test_seconds_are_rounded() -> None:
    seconds_are_rounded()
