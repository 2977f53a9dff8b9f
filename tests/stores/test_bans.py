"""Where there is no room: how many bans are in force, and may be; and cells that keys without windows share."""

import asyncio
import itertools
import random
from heapq import heapify, heappop, heappush
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slidegate import BanPolicy, MemoryStore
from slidegate.core import Ban, parse_address
from slidegate.testing import FakeClock, RecordingObserver

from ..contract.player import Player, listed, same, settle, views_of
from ..contract.programs import MINUTE_US, SECOND_US, Move, Program, Question, Step, programs
from ..contract.store_contract import bucket
from ..redis_servers import AT_REDIS
from .conftest import Opened

AT_ONCE, PLENTY = BanPolicy("1/minute", "10m"), bucket("1000000/hour")
ALL = pytest.mark.parametrize("kind", ["memory", "lmdb", AT_REDIS])
HERE = pytest.mark.parametrize("kind", ["memory", "lmdb"])


async def strike(store: Any, policy: BanPolicy, *keys: str, weight: int = 1) -> list[bool]:
    return [await settle(store.bans.strike(policy, key, weight, "why")) is not None for key in keys]


async def levels_of(store: Any) -> Any:
    if isinstance(store, MemoryStore):
        return store.bans.rows.level_count()
    return await settle(store._batcher.run(lambda transaction: transaction.ban_rows.level_count(), needs_room=False))


async def active(store: Any) -> list[Any]:
    return list(await settle(listed(store)))


async def fill(store: Any, policy: BanPolicy, most: int, keys: list[str]) -> int:
    """Strike each key, which bans it where there is room; return how many were not banned."""
    full = 0
    for key in keys:
        before = len(await active(store))
        (made,) = await strike(store, policy, key)
        assert made == (before < most), (key, before, most)
        full += not made
    return full


@ALL
async def test_max_bans_is_how_many_automatic_bans_are_in_force(
    opened: Opened, rng: random.Random, observer: RecordingObserver
) -> None:
    """Whatever was imported, or banned by hand, again or for ever, and however many bans end at once."""
    clock, wall = FakeClock(10**15), FakeClock(2 * 10**15)
    most = rng.choice((1, 10, 100))
    store = opened(max_bans=most, clock=clock, wall_clock=wall)
    for turn in range(60):
        many = rng.choice((1, 3, most, 2 * most))
        match rng.choice(("strike", "strike", "strike", "hand", "load", "again", "unban", "wait", "wait", "suspend")):
            case "strike":
                policy = BanPolicy("1/minute", rng.choice(("10s", "1m")), name=f"p{turn % 3}")
                await fill(store, policy, most, [f"user:{turn}:{number}" for number in range(min(many, 20))])
            case "hand":
                for number in range(many):
                    await settle(store.bans.ban(f"hand:{number}", rng.choice((1, 30, 90)) * SECOND_US, "why", "me"))
                assert {f"hand:{number}" for number in range(many)} <= {ban.key for ban in await active(store)}
            case "load":
                bans = [Ban(f"load:{number}", "", "me", 0, 0, rng.choice((None, 10**17))) for number in range(many)]
                assert await settle(store.bans.load(bans)) == many
                assert {ban.key for ban in bans} <= {ban.key for ban in await active(store)}
            case "again":
                for number in range(30):
                    await settle(store.bans.ban("again", (30 - number) * SECOND_US, "why", "me"))
            case "unban":
                for ban in (await active(store))[:many]:
                    await settle(store.bans.unban(ban.key, "me"))
            case moved:
                span_us = rng.choice((1, 15, 70)) * SECOND_US
                wall.advance(us=span_us)
                clock.advance(us=span_us if moved == "wait" else 0)
    assert len(await active(store)) <= store.bans.count()
    before = observer.kinds.count("bans_full")
    assert await fill(store, AT_ONCE, most, [f"last:{number}" for number in range(most + 9)]) >= 9
    assert observer.kinds.count("bans_full") <= before + 1, "what goes on and on is reported once"
    assert "bans_full" in observer.kinds


@ALL
async def test_an_imported_network_whose_ban_begins_in_the_future_lifts_no_other(opened: Opened) -> None:
    clock = FakeClock(2 * 10**15)
    ahead, store = opened("ahead", clock=clock), opened("store", clock=FakeClock(10**15))
    await settle(ahead.bans.ban("192.0.0.0/8", None, "", "ann"))
    await settle(store.bans.ban("14.0.0.0/9", 4 * SECOND_US, "", "ann"))
    await settle(store.bans.load(await active(ahead)))
    for address in ("14.17.48.66", "192.0.2.9"):
        assert await settle(store.bans.find([parse_address(address)])), address


@pytest.mark.parametrize(("kind", "most"), [("memory", 128), ("lmdb", 32)])
async def test_bans_that_are_over_go_by_requests_and_counting_alone_a_few_at_a_time(opened: Opened, most: int) -> None:
    clock = FakeClock(10**15)
    store = opened(clock=clock)
    for number in range(200):
        key = f"10.0.{number}.0/24" if number % 2 else f"user:{number}"
        await settle(store.bans.ban(key, SECOND_US, "why", "me"))
    await settle(store.bans.ban("user:ever", None, "why", "me"))
    clock.advance("2s")
    counts = [201]
    while counts[-1] > 1:
        assert (await settle(store.hit(((bucket("1000/hour"), "user:free", 1),)))).allowed
        clock.advance("100ms")
        counts.append(store.bans.count())
        assert counts[-2] - counts[-1] <= most
        assert len(counts) < 200
    assert [ban.key for ban in await active(store)] == ["user:ever"]


NETWORKS = ["192.0.2.0/24", "198.51.100.0/25", "2001:db8::/48"]


async def views_of_bans(store: Any, subjects: list[str]) -> dict[str, dict[str, bool]]:
    listed = {ban.key for ban in await active(store)}
    views: dict[str, dict[str, bool]] = {"listed": {key: key in listed for key in subjects}, "found": {}, "refused": {}}
    for key in subjects:
        subject = parse_address(key.partition("/")[0]) if "/" in key else key
        views["found"][key] = await settle(store.bans.find([key])) is not None
        views["refused"][key] = not await settle(store.hit(((PLENTY, "user:who", 1),), [subject]))
    return views


@ALL
async def test_a_ban_is_in_force_for_every_question_or_for_none(opened: Opened, kind: str, rng: random.Random) -> None:
    """Also where Unix time was set back, whatever has swept the ban meanwhile, and whichever worker is asked."""
    start_us = 10**15
    clock, wall = FakeClock(start_us), FakeClock(start_us)
    workers = [opened(clock=clock, wall_clock=wall) for _ in range(1 if kind == "memory" else 2)]
    # In Redis, the row of a key that has ended outlives its entry in the list.
    subjects = NETWORKS if kind == "redis" else [*NETWORKS, "user:ann", "user:bob"]
    done: list[object] = []
    for turn in range(120):
        key, worker = rng.choice(subjects), rng.choice(workers)
        clock.advance(us=SECOND_US)
        done.append((doing := rng.choice(("ban", "ban", "unban", "later", "back", "sweep", "join")), key))
        match doing:
            case "ban":
                await settle(worker.bans.ban(key, rng.choice((2 * SECOND_US, 5 * SECOND_US, None)), "", "me"))
            case "unban":
                listed = (await views_of_bans(worker, subjects))["listed"][key]
                assert await settle(worker.bans.unban(key, "me")) is listed, done
            case "later":
                wall.advance(us=rng.choice((1, 3, 6)) * SECOND_US)
            case "back":
                wall.set(max(wall.now_us - rng.choice((1, 3, 6)) * SECOND_US, start_us))
            case "sweep":
                for _ in range(4):
                    await settle(worker.hit(((PLENTY, f"user:{turn}", 1),)))
            case "join" if len(workers) > 1:
                workers = [opened(clock=clock, wall_clock=wall), *workers[:3]]
        seen = [await views_of_bans(each, subjects) for each in workers]
        for view in ("listed", "found", "refused"):
            assert [each[view] for each in seen] == [seen[0]["listed"]] * len(seen), (view, done)


@HERE
async def test_strikes_that_have_left_take_no_room_of_others(opened: Opened, observer: RecordingObserver) -> None:
    clock = FakeClock(10**15)
    store = opened(max_keys=10, clock=clock)
    old, new = (BanPolicy("3/minute", "10m", name=name) for name in ("old", "new"))
    await strike(store, old, *(f"user:{number}" for number in range(8)))
    await strike(store, old, *(f"user:{number}" for number in range(0, 8, 2)), weight=2)  # a banned key has none left
    for _ in range(3):  # in memory a window goes at most two windows after its last strike
        clock.advance("2m")
        await strike(store, old, "sweeps")
    clock.advance("2m")
    await strike(store, new, *(f"attacker:{number}" for number in range(8)), weight=2)
    assert "strikes_dropped" not in observer.kinds
    assert await strike(store, new, "attacker:0") == [True]


@HERE
async def test_a_strike_without_room_for_a_window_is_not_counted_and_nobody_shares_one(opened: Opened) -> None:
    observer, store = RecordingObserver(without=["banned", "keys_shared"]), opened(max_keys=4, clock=FakeClock(10**15))
    store.observe(observer)
    one, two = (BanPolicy("2/minute", "10m", name=name) for name in ("one", "two"))
    for policy in (one, two):
        await strike(store, policy, "user:ann", "user:bob")
    assert observer.kinds == []
    for number in range(5_000):
        assert await strike(store, one, f"user:{number}", weight=2) == [False]
    assert observer.kinds == ["strikes_dropped"]
    assert observer.events[-1].details == {"max_keys": 4}
    assert (await settle(store.hit(((bucket("5/minute"), "user:eve", 1),)))).allowed, "which a shared cell counts"
    assert await settle(store.bans.unban("user:bob", "ann"))
    assert await strike(store, two, "user:dan", "user:eve") == [False, False]
    assert observer.kinds == ["strikes_dropped"], "a key that is forgiven leaves room"
    assert await strike(store, one, "user:ann") == [True]
    assert await strike(store, two, "user:ann", "user:dan", "user:eve") == [False, True, True]


@HERE
async def test_as_many_levels_are_kept_as_bans_and_no_others(opened: Opened) -> None:
    clock = FakeClock(10**15)
    store = opened(max_bans=4, clock=clock)
    policy = BanPolicy("1/minute", "10m", factor=1, forgive="1d")
    for levels in ([1, 1, 1, 1, 1, 1], [2, 2, 2, 2, 1, 1], [3, 3, 3, 3, 1, 1]):
        for number, level in enumerate(levels):
            ban = await settle(store.bans.strike(policy, f"user:{number}", 1, "why"))
            assert ban.level == level
            clock.advance("10m")
        assert await levels_of(store) == 4
    clock.advance("4d")
    assert await strike(store, policy, "user:5") == [True]
    clock.advance("10m")
    assert (await settle(store.bans.strike(policy, "user:5", 1, "why"))).level == 2, "those that have fallen leave room"


# -- shared cells ------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Opens a store of so many windows, given its clock; and of so many cells, where keys meet that have none."""
    numbers = itertools.count()

    def small(clock: FakeClock, max_keys: int, cells: int = 1) -> Any:
        monkeypatch.setattr("slidegate.stores.shared.SHARED_CELLS", cells)
        return opened(str(next(numbers)), clock=clock, max_keys=max_keys)

    return small


@HERE
@pytest.mark.interpreted("a constant that the test replaces is a part of the compiled code")
def test_what_a_flood_leaves_goes_in_two_windows(small: Opened, rng: random.Random) -> None:
    clock, start_us = FakeClock(), 10**12
    store, limited = small(clock, 120, cells=3), bucket("10/minute")
    # Everybody comes back after 20 to 80 seconds, often with no window left; those of the flood never come again.
    coming = [(start_us + rng.randrange(MINUTE_US), f"honest-{number}") for number in range(100)]
    coming += [(start_us + 2 * MINUTE_US + rng.randrange(MINUTE_US), f"fresh-{number}") for number in range(1_000)]
    heapify(coming)
    refused = [0] * 15
    while coming[0][0] < start_us + len(refused) * MINUTE_US:
        at_us, key = heappop(coming)
        clock.set(at_us)
        passes = store.hit(((limited, key, 1),))
        if key.startswith("honest"):
            refused[(at_us - start_us) // MINUTE_US] += not passes
            heappush(coming, (at_us + rng.randrange(20 * SECOND_US, 80 * SECOND_US), key))
    assert refused[:2] == [0, 0]
    assert refused[2] + refused[3] > 0, "the flood did nothing, so this shows nothing"
    assert refused[5:] == [0] * 10, refused


@HERE
@pytest.mark.interpreted("a constant that the test replaces is a part of the compiled code")
def test_a_key_that_was_reset_has_no_units_of_the_cell_of_other_keys(small: Opened) -> None:
    limited = bucket("5/minute")
    store = small(FakeClock(10**12), 1)
    for key in ("user:1", "user:2", "user:3", "user:3"):  # the last two have no window of their own
        store.hit(((limited, key, 1),))
    assert store.reset("user:1")
    assert [store.hit(((limited, key, 1),)).remaining for key in ("user:3", "user:1")] == [1, 4]


class Crowded(Player):
    """Plays to a store with room for few windows. It may refuse more than the reference, and never less than it has to.

    `Player` checks the bound, that a wait is exact, and that a look says what a hit would.
    """

    def _agree(self, answered: object, expected: object) -> None:
        """Let the store answer by what it counts for several keys together."""

    async def _play(self, move: Move) -> None:
        if isinstance(move, Step):
            for _ in range(8):
                await settle(self.store.hit(()))  # so that what is empty goes
        await super()._play(move)

    async def _reset(self, key: str | None, rule: int | None = None) -> None:
        await super()._reset(key, rule)
        if key is None:
            for rule, whose in self.named:
                if not self.buckets[rule].is_permit:
                    used = [view.used for view in await views_of(self.store, whose, self.buckets[rule])]
                    assert not any(used), "cells are forgotten as well"
            if isinstance(self.store, MemoryStore) and not any(bucket.is_permit for bucket in self.buckets):
                assert self.store.key_count() == 0

    async def _ask(self, question: Question, patient: bool, plain: bool) -> None:
        one_key_a_rule = {check[0]: check for check in question}.values()  # two keys may meet in one cell
        await super()._ask(tuple(one_key_a_rule), patient, plain)

    async def _hit(self, question: Question, plain: bool = False) -> int | None:
        peeked = await settle(self.store.peek(self._checks(question, plain)))
        wait_us = await super()._hit(question, plain)
        decision, _ = self.charged[-1]
        same((peeked.reason, peeked.states), (decision.reason, decision.states))
        return wait_us


@HERE
def test_nobody_passes_a_bound_between_cells_and_windows(small: Opened) -> None:
    with asyncio.Runner() as runner:

        @settings(deadline=None)
        @given(programs(), st.sampled_from((1, 2, 3, 8)))
        def check(program: Program, max_keys: int) -> None:
            clock = FakeClock(program.start_us)
            store = small(clock, max_keys, cells=2)
            runner.run(Crowded(store, clock, program).play())
            store.reset_all()
            for number in range(max_keys):
                store.hit(((bucket("5/minute"), f"user:{number}", 1),))
            assert not isinstance(store, MemoryStore) or store.key_count() == max_keys, "each has a window of its own"
            store.close()

        check()
