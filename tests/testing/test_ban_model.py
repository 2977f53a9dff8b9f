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

POLICY = BanPolicy("3/60s", "10s", factor=2, jitter=0, forgive="100s", prefix_after="2/1h", max_rate="2/1000s")
SECOND_US = 1_000_000


def struck(model: BanModel, key: str, *at_s: int) -> list[tuple[int, int] | None]:
    """Strike at moments; return level and length in seconds of each ban that was made."""
    made = [model.strike(POLICY, key, 1, "", at * SECOND_US) for at in at_s]
    return [ban and (ban.level, ((ban.ends_us or 0) - ban.at_us) // SECOND_US) for ban in made]


def test_the_reference_on_strikes_worked_out_by_hand() -> None:
    model = BanModel()
    assert struck(model, "ann", 0, 30, 59) == [None, None, (1, 10)]
    assert model.stand(POLICY, "ann", 59 * SECOND_US) == Stand(1, 0)
    assert struck(model, "ann", 60, 68, 69, 70, 71) == [None, None, None, None, (2, 20)]  # the ban ends at 69
    assert [model.stand(POLICY, "ann", at_s * SECOND_US).level for at_s in (190, 191, 290, 291)] == [2, 1, 1, 0]
    assert struck(model, "bob", 0, 60, 100) == [None, None, None]
    assert struck(model, "bob", 110, 111) == [None, None]  # the policy has made two bans
    assert model.stand(POLICY, "bob", 111 * SECOND_US) == Stand(0, 3)
    assert struck(model, "bob", 1_060, 1_061, 1_062) == [None, None, (1, 10)]
    assert model.changes == [("banned", "ann", "abuse"), ("banned", "ann", "abuse"), ("banned", "bob", "abuse")]


def test_the_reference_on_bans_by_hand_and_networks() -> None:
    model = BanModel()
    model.ban("192.0.2.0/24", 10, "eve", 0)
    model.ban("192.0.2.7", None, "eve", 0)
    assert [len(model.hit(client, 9)) for client in ("192.0.2.7", "192.0.2.8", "192.0.3.7", "user:ann")] == [2, 1, 0, 0]
    assert [len(model.hit(client, 10)) for client in ("192.0.2.7", "192.0.2.8")] == [1, 0]
    assert model.knows([POLICY], "192.0.2.7", 10)
    model.unban("192.0.2.7", "eve", 10)
    assert not model.knows([POLICY], "192.0.2.7", 10)
    assert model.active(10) == []


def test_the_reference_forgets_a_ban_that_another_took_the_place_of_like_any_other() -> None:
    model, policy = BanModel(), BanPolicy("3/1s", "10s", jitter=0, forgive="1s")
    model.strike(policy, "ann", 3, "", 0)
    model.ban("ann", 2 * SECOND_US, "eve", 0)
    model.strike(policy, "ann", 1, "", 3 * SECOND_US)  # clean time runs from here, and the first ban would end at 10 s
    assert model.knows([policy], "ann", 3 * SECOND_US)
    assert model.stand(policy, "ann", 7 * SECOND_US) == Stand(0, 0)
    assert not model.knows([policy], "ann", 7 * SECOND_US)


def test_the_reference_on_prefixes() -> None:
    model, policy = BanModel(), BanPolicy("1/60s", "10s", jitter=0, prefix_after="2/1h", prolong=True)
    for last in (7, 8):
        model.strike(policy, f"192.0.2.{last}", 1, "192.0.2.0/24", 0)
    assert [(ban.key, ban.by) for ban in model.active(0)] == [
        ("192.0.2.7", "abuse"),
        ("192.0.2.8", "abuse"),
        ("192.0.2.0/24", "abuse/prefix"),
    ]
    model.hit("192.0.2.8", 4 * SECOND_US)
    assert [(ban.ends_us or 0) // SECOND_US for ban in model.active(4 * SECOND_US)] == [10, 14, 10]


def played(drawn: bytes) -> list[str]:
    """Play what is drawn to a memory store, and return the moves."""
    player = BanPlayer(lambda clock: MemoryStore(clock=clock), Choices(drawn))
    asyncio.run(player.play())
    return player.moves


def test_drawn_bytes_make_the_same_program_every_time() -> None:
    drawn = bytes(range(256)) * 2
    assert played(drawn) == played(drawn)
    assert len(played(drawn)) > 20
    assert played(b"") == played(bytes(500)) == []


def test_a_difference_is_shown_with_the_moves_that_led_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = random.Random(7).randbytes(600)
    assert any(move.startswith("a peek of") for move in played(drawn))
    monkeypatch.setattr(BanModel, "peek", lambda *_: [])
    with pytest.raises(AssertionError, match="the store says False, the reference True") as caught:
        played(drawn)
    moves = [line for line in str(caught.value).splitlines() if line.startswith("  ")]
    assert moves[-1].startswith(("  a peek of ", "  a hit of "))
    assert len(moves) > 1
