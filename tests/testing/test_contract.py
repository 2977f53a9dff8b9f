"""The models of the store contract, worked out by hand, and what the contract finds in a wrong store."""

import asyncio
import random

import pytest

from slidegate import BanPolicy
from slidegate.core import Bucket, Reason, parse_limits
from slidegate.stores.memory.store import MemoryStore

from ..contract.ban_player import BanPlayer
from ..contract.programs import Choices
from ..reference.ban_model import BanModel, Stand
from ..reference.model import Model, Verdict
from ..reference.model_window import Answer

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
POLICY = BanPolicy("3/60s", "10s", factor=2, forgive="100s")


def test_the_reference_on_traffic_worked_out_by_hand() -> None:
    model = Model()
    checks = [(Bucket("rule", parse_limits("3/minute; 100/minute @6")), "ann", 2)]
    verdict, charged = model.hit(checks, 5)
    full = Answer(remaining=98, retry_after_us=0, more_after_us=70_000_000 - 5, reset_after_us=70_000_000 - 5)
    assert verdict == Verdict(True, Reason.OK, 0, (Answer(1, 0, MINUTE_US, MINUTE_US), full))
    verdict, nothing = model.hit(checks, 15)
    assert (verdict.allowed, verdict.retry_after_us, nothing) == (False, MINUTE_US - 10, [])
    assert model.peek(checks, MINUTE_US + 5).allowed
    assert not model.peek(checks, MINUTE_US + 4).allowed
    assert model.refund(charged, 20) is True
    assert model.refund(charged, 20) is False
    assert model.peek(checks, 20).allowed


def struck(model: BanModel, key: str, *at_s: int) -> list[tuple[int, int] | None]:
    """Strike at the given times; return level and length in seconds of each ban."""
    made = [model.strike(POLICY, key, 1, at * SECOND_US) for at in at_s]
    return [ban and (ban.level, ((ban.until_us or 0) - ban.since_us) // SECOND_US) for ban in made]


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
