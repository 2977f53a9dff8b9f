"""The scenes of `scenes`, played to a memory store as it is."""

from __future__ import annotations

import pytest

from slidegate.stores.memory.store import MemoryStore

from .scenes import SCENES, NewStore, seconds_are_rounded


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_scene(scene: NewStore) -> None:
    scene(MemoryStore)


def test_seconds_are_rounded() -> None:
    seconds_are_rounded()
