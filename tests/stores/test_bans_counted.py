"""How many bans are in force: counted without a look at each of them, and as many as `max_bans` says."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slidegate import BanPolicy, MemoryStore
from slidegate.stores.lmdb import LmdbStore
from slidegate.stores.redis import RedisStore
from slidegate.testing import FakeClock, RecordingObserver
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


AT_ONCE = BanPolicy("1/minute", "10m", jitter=0, max_rate="1000000/s")


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_bans_that_have_ended_hold_no_places(kind: str, tmp_path: Path) -> None:
    clock = FakeClock(10**15)

    def opened() -> Any:
        if kind == "memory":
            return MemoryStore(max_bans=300, clock=clock)
        return LmdbStore(tmp_path / "lmdb", max_bans=300, clock=clock)

    store = opened()
    for number in range(700):
        store.bans.ban(f"user:{number}", SECOND_US, "why", "me")
    clock.advance("2s")
    rows = list(store.bans.dump())
    if kind == "lmdb":
        store.close()
        store = opened()  # a worker that has not read the bans yet, and where no event loop runs
    assert [bool(store.bans.strike(AT_ONCE, f"attacker:{number}", 1, "why")) for number in range(302)] == [
        True
    ] * 300 + [
        False,
        False,
    ]
    assert store.bans.load(rows) == 0
    store.close()


def fill(store: Any, policy: BanPolicy, most: int, keys: list[str]) -> int:
    """Strike each key, which bans it where there is room; return how many were not banned."""
    full = 0
    for key in keys:
        before = len(list(store.bans.active()))
        made = store.bans.strike(policy, key, 1, "why") is not None
        assert made == (before < most), (key, before, most)
        full += not made
    return full


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_max_bans_is_how_many_automatic_bans_are_in_force(kind: str, tmp_path: Path, rng: random.Random) -> None:
    """By either clock, whatever was banned by hand, again or for ever, and however many bans end at once."""
    clock, wall = FakeClock(10**15), FakeClock(2 * 10**15)
    clocks: dict[str, Any] = {"clock": clock, "wall_clock": wall}
    most = rng.choice((1, 10, 100))
    store: Any = MemoryStore(max_bans=most, **clocks)
    if kind == "lmdb":
        store = LmdbStore(tmp_path / "lmdb", max_bans=most, **clocks)
    for turn in range(60):
        many = rng.choice((1, 3, most, 2 * most))
        match rng.choice(("strike", "strike", "strike", "hand", "again", "unban", "wait", "wait", "suspend")):
            case "strike":
                policy = BanPolicy(
                    "1/minute", rng.choice(("10s", "1m")), jitter=0, max_rate="1000000/s", name=f"p{turn % 3}"
                )
                fill(store, policy, most, [f"user:{turn}:{number}" for number in range(min(many, 20))])
            case "hand":
                for number in range(many):
                    store.bans.ban(f"hand:{number}", rng.choice((1, 30, 90)) * SECOND_US, "why", "me")
            case "again":
                for number in range(30):
                    store.bans.ban("again", (30 - number) * SECOND_US, "why", "me")
            case "unban":
                for ban in list(store.bans.active())[:many]:
                    store.bans.unban(ban.key, "me")
            case moved:
                span_us = rng.choice((1, 15, 70)) * SECOND_US
                wall.advance(us=span_us)
                clock.advance(us=span_us if moved == "wait" else 0)
    assert fill(store, AT_ONCE, most, [f"last:{number}" for number in range(most + 1)])
    store.close()


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_prefixes_are_a_tenth_of_all_bans_at_most(kind: str, tmp_path: Path) -> None:
    clock, heard = FakeClock(10**15), RecordingObserver()

    def opened(name: str) -> Any:
        if kind == "memory":
            return MemoryStore(max_bans=100, clock=clock)
        return LmdbStore(tmp_path / name, max_bans=100, clock=clock)

    policy = BanPolicy("1/minute", "10m", jitter=0, max_rate="1000000/s", prefix_after="2/1h")

    def strike(bans: Any, *numbers: int) -> list[str]:
        """Strike two addresses of each network, and return the networks that are banned."""
        for number in numbers:
            for last in rng.sample(range(256), 2):
                bans.strike(policy, f"10.0.{number}.{last}", 1, "why", f"10.0.{number}.0/24")
        return [ban.key for ban in bans.active() if "/" in ban.key]

    rng, store, after = random.Random(1), opened("store"), opened("after")
    store.observe(heard)
    assert strike(store.bans, *range(15)) == [f"10.0.{number}.0/24" for number in range(10)]
    (full,) = [event for event in heard.events if event.kind == "bans_full"]
    assert full.details["key"] == "10.0.10.0/24"
    assert full.message.startswith("no room for prefixes (one in 10) is left among 100 bans")
    after.bans.load(store.bans.dump())
    assert len(strike(after.bans, 99)) == 10
    assert after.bans.unban("10.0.3.0/24", "eve")
    after.bans.ban("10.0.4.0/24", 3_600 * SECOND_US, "", "eve")  # no longer the policy's own
    assert len(strike(after.bans, 99, 98, 97)) == 11
    clock.advance("2h")
    assert len(strike(after.bans, *range(50, 65))) == 10
    store.close()
    after.close()


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_strikes_that_have_left_hold_no_places_for_those_of_other_policies(kind: str, tmp_path: Path) -> None:
    clock, heard = FakeClock(10**15), RecordingObserver()
    store: Any = MemoryStore(max_bans=10, clock=clock)
    if kind == "lmdb":
        store = LmdbStore(tmp_path / "lmdb", max_bans=10, clock=clock)
    store.observe(heard)
    old, new = (BanPolicy("3/minute", "10m", jitter=0, name=name) for name in ("old", "new"))
    for number in range(4):
        store.bans.strike(old, f"user:{number}", 1, "why")
    clock.advance("2m")
    for number in range(10):
        store.bans.strike(new, f"attacker:{number}", 2, "why")
    assert "strikes_dropped" not in heard.kinds
    assert store.bans.strike(new, "attacker:0", 1, "why")
    store.close()


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_the_strikes_of_a_key_count_once_for_each_policy_and_its_ban_once(kind: str, tmp_path: Path) -> None:
    clock, heard = FakeClock(10**15), RecordingObserver()
    store: Any = MemoryStore(max_bans=4, clock=clock)
    if kind == "lmdb":
        store = LmdbStore(tmp_path / "lmdb", max_bans=4, clock=clock)
    store.observe(heard)
    policies = [BanPolicy("2/minute", "10m", jitter=0, name=name) for name in ("one", "two")]
    for key in ("ann", "bob"):
        for policy in policies:
            store.bans.strike(policy, key, 1, "why")
    assert heard.kinds == []
    store.bans.strike(policies[0], "eve", 1, "why")
    assert heard.kinds == ["strikes_dropped"]
    assert [bool(store.bans.strike(policy, "bob", 1, "why")) for policy in policies] == [True, False]
    assert [bool(store.bans.strike(AT_ONCE, key, 1, "why")) for key in ("a", "b", "c", "d")] == [True] * 3 + [False]
    store.close()
