"""The reference for bans: it has to be right before it can judge."""

from __future__ import annotations

import asyncio
import random

import pytest

from slidegate.core.bans.policy import BanPolicy
from slidegate.stores.memory.store import MemoryStore
from slidegate.testing.contract.ban_player import BanPlayer
from slidegate.testing.contract.programs import Choices
from slidegate.testing.reference.ban_model import BanModel, Stand

POLICY = BanPolicy("3/60s", "10s", factor=2, forgive="100s")
SECOND_US = 1_000_000


def struck(model: BanModel, key: str, *at_s: int) -> list[tuple[int, int] | None]:
    """Strike at moments; return level and length in seconds of each ban that was made."""
    made = [model.strike(POLICY, key, 1, at * SECOND_US) for at in at_s]
    return [ban and (ban.level, ((ban.ends_us or 0) - ban.at_us) // SECOND_US) for ban in made]


def test_the_reference_on_strikes_worked_out_by_hand() -> None:
    model = BanModel()
    assert struck(model, "ann", 0, 30, 59) == [None, None, (1, 10)]
    assert model.stand(POLICY, "ann", 59 * SECOND_US) == Stand(1, 0)
    assert struck(model, "ann", 60, 68, 69, 70, 71) == [None, None, None, None, (2, 20)]  # the ban ends at 69
    assert [model.stand(POLICY, "ann", at_s * SECOND_US).level for at_s in (190, 191, 290, 291)] == [2, 1, 1, 0]
    assert struck(model, "bob", 0, 60, 100) == [None, None, None]
    assert model.stand(POLICY, "bob", 111 * SECOND_US) == Stand(0, 2)
    assert struck(model, "bob", 1_060, 1_061, 1_062) == [None, None, (1, 10)]
    assert model.changes == [("banned", "ann"), ("banned", "ann"), ("banned", "bob")]


def played(drawn: bytes) -> list[str]:
    """Play what is drawn to a memory store, and return the moves."""
    player = BanPlayer(lambda clock: MemoryStore(clock=clock), Choices(drawn))
    asyncio.run(player.play())
    return player.moves


def test_a_difference_is_shown_with_the_moves_that_led_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = random.Random(7).randbytes(600)
    assert any(move.startswith("a peek of") for move in played(drawn))
    monkeypatch.setattr(BanModel, "refusing", lambda *_: [])
    with pytest.raises(AssertionError, match="the store says False, the reference True") as caught:
        played(drawn)
    moves = [line for line in str(caught.value).splitlines() if line.startswith("  ")]
    assert moves[-1].startswith(("  a peek of ", "  a hit of "))
    assert len(moves) > 1
