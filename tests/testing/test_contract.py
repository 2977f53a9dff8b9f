"""What the contract of stores finds in a wrong one."""

import asyncio
import random

import pytest

from slidegate import BanPolicy
from slidegate.stores.memory.store import MemoryStore

from ..contract.ban_player import BanPlayer
from ..contract.programs import Choices
from ..reference.ban_model import BanModel

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
POLICY = BanPolicy("3/60s", "10s", factor=2, forgive="100s")


def played(drawn: bytes) -> list[str]:
    """Play drawn choices to a memory store, and return the moves."""
    player = BanPlayer(lambda clock: MemoryStore(clock=clock), Choices(drawn))
    asyncio.run(player.play())
    return player.moves


def test_a_difference_is_shown_with_the_moves_that_led_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = random.Random(7).randbytes(600)
    assert any(move.startswith("a peek of") for move in played(drawn))
    monkeypatch.setattr(BanModel, "refusing", lambda *_: [])
    with pytest.raises(AssertionError, match="the store returned False, the reference True") as caught:
        played(drawn)
    moves = [line for line in str(caught.value).splitlines() if line.startswith("  ")]
    assert moves[-1].startswith(("  a peek of ", "  a hit of "))
    assert len(moves) > 1
