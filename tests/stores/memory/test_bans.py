"""Bans in the memory store: how much it keeps, its two clocks, threads, and what it tells."""

import gc
import json
import tracemalloc
from collections import Counter
from datetime import UTC, datetime
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any

import pytest

from slidegate import BanPolicy, MemoryStore
from slidegate.core import Bucket, Decision, Reason, parse_address, parse_limits
from slidegate.core.addresses import canonical_key, format_network
from slidegate.core.bans.rows import to_rows
from slidegate.testing import FakeClock, RecordingObserver

from ...hurry import at_once, hurried

SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US
DAY_US = 24 * HOUR_US
NEW_YEAR_US = 4_102_444_800 * SECOND_US

PLAIN = BanPolicy("3/minute", "10m", factor=2)
AT_ONCE = BanPolicy("1/minute", "10m")
BUCKET = Bucket("rule", parse_limits("5/minute"))


def tracked_below(*roots: object) -> Counter[str]:
    """Return the types of the objects that the garbage collector walks below some objects, with how many there are."""
    for _ in range(3):
        gc.collect()  # tuples are left out from then on, those in others first
    found: Counter[str] = Counter()
    waiting, seen = list(roots), set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) not in seen and gc.is_tracked(one):
            seen.add(id(one))
            found[type(one).__name__] += 1
            if not isinstance(one, (type, FunctionType, MethodType, BuiltinMethodType, ModuleType)):
                waiting += gc.get_referents(one)
    return found


class Scene:
    """A memory store with two clocks that are told apart, and ears."""

    def __init__(self, max_bans: int = 1_000, max_keys: int = 100_000, now_us: int = 50 * SECOND_US) -> None:
        self.clock, self.wall = FakeClock(now_us), FakeClock(NEW_YEAR_US)
        self.store = MemoryStore(max_bans=max_bans, max_keys=max_keys, clock=self.clock, wall_clock=self.wall)
        self.bans = self.store.bans
        self.observer = RecordingObserver()
        self.store.observe(self.observer)

    def advance(self, span: str | None = None, *, us: int = 0) -> None:
        """Let time go on by both clocks."""
        for clock in (self.clock, self.wall):
            clock.advance(span, us=us)

    def strike(self, key: str, policy: BanPolicy = AT_ONCE, times: int = 1) -> int | None:
        """Strike, and return the level of the ban that the last strike made."""
        made = None
        for _ in range(times):
            made = self.bans.strike(policy, key, 1, "why")
        return made and made.level

    def hit(self, client: str) -> Decision:
        parsed = parse_address(client)
        return self.store.hit(((BUCKET, canonical_key(client), 1),), () if parsed is None else (parsed,))

    def rows(self) -> list[Any]:
        read: list[Any] = json.loads(json.dumps([*to_rows(self.bans.active())]))
        return read

    def active(self) -> list[str]:
        return [ban.key for ban in self.bans.active()]


def test_a_flood_of_bans_pushes_none_out_and_holds_no_more_than_it_may() -> None:
    strikes, max_bans = 6_000, 1_000
    scene = Scene(max_bans, max_keys=max_bans)
    scene.bans.ban("user:first", None, "", "eve")
    first = int.from_bytes(bytes.fromhex("20010db8"), "big") << 96
    tracemalloc.start()
    try:
        for number in range(strikes):
            scene.strike(format_network(6, first + (number << 64), 64))
            if number == strikes // 2:
                half, _ = tracemalloc.get_traced_memory()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held - half < 100 * max_bans + 200_000
    assert held < 3_000 * max_bans + 1_000_000
    scene.bans.ban("user:last", None, "", "eve")
    scene.bans.ban("192.0.2.7", HOUR_US, "", "eve")
    active = scene.active()
    assert len(active) == max_bans + 2
    assert {"user:first", "user:last", "192.0.2.7", "2001:db8::/64"} <= set(active)
    assert not scene.hit("2001:db8::7")
    unbanned = format_network(6, first + (strikes - 1 << 64), 64)
    assert [scene.hit(unbanned).reason for _ in range(6)] == [Reason.OK] * 5 + [Reason.LIMITED]
    kinds = Counter(scene.observer.kinds)
    assert kinds == {"banned": max_bans + 2, "bans_full": 1, "strikes_dropped": 1, "keys_shared": 1}


def test_bans_that_are_over_are_let_go() -> None:
    scene = Scene()
    for number in range(500):
        scene.strike(f"user:{number}")
        scene.bans.ban(f"192.0.2.{number % 200}", HOUR_US, "", "eve")
    scene.advance("1h")
    for number in range(1_000):
        scene.bans.ban(f"198.51.100.{number % 200}", SECOND_US, "", "eve")
    assert len(scene.bans.rows.bans) == 200


def test_strikes_that_are_over_are_let_go_also_behind_keys_that_were_banned() -> None:
    scene = Scene(max_keys=190)  # room for those of three minutes, and for little more
    for number in range(20):
        scene.strike(f"banned:{number}", PLAIN, 3)
    for number in range(5_000):
        scene.strike(f"user:{number}", PLAIN)
        scene.advance("1s")
    assert "strikes_dropped" not in scene.observer.kinds
    assert scene.strike("banned:0", PLAIN, 3) == 2


def test_bans_come_and_go_while_threads_ask() -> None:
    scene = Scene()

    def work(thread: int) -> None:
        if thread == 0:
            for number in range(300):
                scene.bans.ban(f"192.0.2.{number % 16}", None, "", "eve")
                scene.bans.unban(f"192.0.2.{number % 16}", "eve")
        else:
            for number in range(300):
                scene.hit(f"192.0.2.{number % 16}")
                scene.bans.active()
                scene.rows()

    with hurried(collecting=False):
        at_once(work)
    assert (scene.observer.kinds, scene.active()) == (["banned", "unbanned"] * 300, [])


def test_bans_and_unbans_are_told_with_who_and_why() -> None:
    scene = Scene()
    scene.strike("ann", PLAIN, 3)
    scene.bans.ban("192.0.2.0/24", None, "by request", "eve")
    scene.bans.unban("ann", "bob")
    scene.bans.unban("ann", "bob")
    assert [(event.kind, event.message) for event in scene.observer.events] == [
        ("banned", "ann is banned until 2100-01-01T00:10:00Z by abuse: why"),
        ("banned", "192.0.2.0/24 is banned for ever by eve: by request"),
        ("unbanned", "ann was unbanned by bob"),
    ]
    details = [dict(event.details) for event in scene.observer.events]
    assert details[0].pop("until") == datetime(2100, 1, 1, 0, 10, tzinfo=UTC)
    assert details == [
        {"key": "ann", "by": "abuse", "reason": "why", "ban_level": 1},
        {"key": "192.0.2.0/24", "by": "eve", "reason": "by request", "ban_level": 0, "until": None},
        {"key": "ann", "by": "bob", "was_by": "abuse"},
    ]


@pytest.mark.parametrize("kind", ["bans_full", "strikes_dropped"])
def test_that_there_is_no_room_is_told_once_a_minute(kind: str) -> None:
    scene = Scene(5) if kind == "bans_full" else Scene(max_keys=5)
    policy = AT_ONCE if kind == "bans_full" else BanPolicy("3/hour", "10m")
    for number in range(300):
        scene.strike(f"user:{number}", policy)
        scene.advance(us=SECOND_US // 2)  # two and a half minutes
    reported = [event for event in scene.observer.events if event.kind == kind]
    assert len(reported) == 3
    scene.wall.advance(us=-DAY_US)
    scene.strike("user:later", policy)
    assert len([event for event in scene.observer.events if event.kind == kind]) == 4, (
        "also where the clock is set back"
    )
    most = "max_bans" if kind == "bans_full" else "max_keys"
    assert reported[0].details[most] == 5
    assert reported[0].message.startswith(f"all 5 {most[4:]} are in use")
    assert reported[0].message.endswith(f"raise {most}")


def test_the_garbage_collector_walks_no_bans_or_strikes() -> None:
    scene = Scene(10_000)
    before = tracked_below(scene.bans.rows, scene.store._tables)
    policy = BanPolicy("2/minute", "10m")
    for number in range(3_000):
        client = f"192.0.{number >> 8}.{number & 255}"
        scene.strike(client, policy, 1 + number % 2)
        scene.bans.ban(f"user:{number}", None, "why", "eve")
    for number in range(0, 3_000, 2):
        scene.bans.unban(f"user:{number}", "eve")
    assert len(list(scene.bans.active())) == 3_000
    # From CPython 3.14 on it walks every dict, also one of bytes alone: there are a few for each shard.
    assert (tracked_below(scene.bans.rows, scene.store._tables) - before).total() < 300
