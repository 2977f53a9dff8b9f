"""The number of bans is known without a look at each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slidegate import MemoryStore
from slidegate.stores.lmdb import LmdbStore
from slidegate.stores.redis import RedisStore
from slidegate.testing import FakeClock
from slidegate.testing.contract.player import settle

from ..redis_servers import needs_redis

SECOND_US = 1_000_000


@pytest.mark.parametrize("kind", ["memory", "lmdb", pytest.param("redis", marks=needs_redis)])
async def test_bans_in_force_are_counted(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    clock = FakeClock(10**15)
    kinds: dict[str, Callable[[], Any]] = {
        "memory": lambda: MemoryStore(clock=clock),
        "lmdb": lambda: LmdbStore(tmp_path / "lmdb", clock=clock),
        "redis": lambda: RedisStore(request.getfixturevalue("server").url, prefix="counted", clock=clock, timeout=20),
    }
    store = kinds[kind]()
    for number in range(5):
        await settle(store.bans.ban(f"user:{number}", 10 * SECOND_US, "why", "me"))
    await settle(store.bans.ban("user:ever", None, "why", "me"))
    await settle(store.bans.unban("user:3", "me"))
    await settle(store.bans.active())
    assert store.bans.count() == 5
    await settle(store.close())


def test_bans_that_have_ended_are_forgotten_by_counting() -> None:
    clock = FakeClock(10**15)
    bans = MemoryStore(clock=clock).bans
    for number in range(2_500):
        bans.ban(f"user:{number}", SECOND_US, "why", "me")
    bans.ban("user:ever", None, "why", "me")
    clock.advance("2s")
    assert [bans.count() for _ in range(3)] == [1_501, 501, 1], "1,000 are forgotten at each look"
    assert [ban.key for ban in bans.active()] == ["user:ever"]
