"""Permits over several workers: how leases are renewed, and how they come back, also from the dead."""

import asyncio
import gc
import random
from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from slidegate import Decision, Quota, parse_limits
from slidegate.core import Bucket, Concurrency, Reason, StoreUnavailable, parse_duration_us
from slidegate.stores import leases
from slidegate.stores.leases import HeldPermits
from slidegate.stores.redis import batch
from slidegate.stores.redis.batch import MAX_IN_CALL
from slidegate.testing import FakeClock, RecordingObserver

from ..contract.player import settle, shown_with
from ..contract.programs import YEAR_2100_US, Choices
from ..redis_servers import RedisCluster, RedisServer, needs_redis, needs_valkey
from ..virtual_time import turns
from .conftest import Opened
from .memory.test_store import calls_of

TWO = Bucket("render", [Concurrency(2)])
WINDOW = Bucket("window", parse_limits("100/minute"))
LEASE_US = 10_000_000
LONG_US = 600_000_000
"""A lease that no test lasts for."""


REDIS = [pytest.param(name, marks=needs_redis) for name in ("server", "cluster")]
REDIS += [pytest.param("valkey", marks=needs_valkey)]


@pytest.fixture(params=["lmdb", *REDIS])
def hire(request: pytest.FixtureRequest, opened_as: Opened, clock: FakeClock) -> Opened:
    """Open stores on the same data, each as a process of its own has it, with one clock."""
    return partial(opened_as, request.param, clock=clock)


@pytest.fixture
def in_file(opened_as: Opened, clock: FakeClock) -> Opened:
    return partial(opened_as, "lmdb", clock=clock)


@pytest.fixture
def servers(hire: Any, request: pytest.FixtureRequest) -> list[RedisServer]:
    running = request.getfixturevalue(hire.args[0])
    return running.masters if isinstance(running, RedisCluster) else [running]


IN_REDIS = pytest.mark.parametrize("hire", REDIS, indirect=True)


async def take(store: Any, key: str = "ann", *others: tuple[Bucket, str, int], bucket: Bucket = TWO) -> Decision:
    return await settle(store.hit(((bucket, key, 1), *others)))


def take_now(store: Any, key: str = "ann") -> Any:
    return store.hit(((TWO, key, 1),))


async def renew(store: Any) -> None:
    await settle(store.renew_permits())


async def leave(store: Any, *held: Decision) -> list[bool]:
    return [await settle(store.refund(each.begin_refund())) for each in held]


class Program:
    """Workers that take the two permits of a key at random times, renew, lose or hand back what they have, or end."""

    def __init__(self, hire: Opened, clock: FakeClock, key: str, choices: Choices) -> None:
        self.hire, self.clock, self.key, self.choices, self.moves = hire, clock, key, choices, list[object]()
        self.held: dict[Any, list[Decision]] = defaultdict(list)
        # The units that each has written, until when they count, and until when they may: some write more often.
        self.written: dict[Any, tuple[int, int, int]] = defaultdict(lambda: (0, 0, 0))
        self.at_work = [hire(permit_lease="10m") for _ in range(3)]

    async def play(self) -> None:
        with shown_with(self.moves, self.clock, [TWO]):
            while self.choices:
                store, kind = self.choices.pick(self.at_work), self.choices.below(16)
                self.moves.append((self.at_work.index(store), kind))
                await (self.ask(store) if kind < 6 else self.move(store, kind))
                assert store.permits_held() == len(self.held[store])

    def write(self, store: Any) -> None:
        until_us = self.clock() + LONG_US
        self.written[store] = len(self.held[store]), until_us, until_us

    async def ask(self, store: Any) -> None:
        now_us, mine, (units, surely_us, perhaps_us) = self.clock(), self.held[store], self.written[store]
        others = [one for other, one in self.written.items() if other is not store]
        least, most = (len(mine) + sum(one[0] for one in others if one[side] > now_us) for side in (1, 2))
        is_old = units != len(mine) or perhaps_us <= now_us
        # Beside a window as well, no refusal is given from memory.
        decision = await take(store, self.key, *[(WINDOW, self.key, 0)] * self.choices.below(2))
        assert (most < 2) <= decision.allowed <= (least < 2), f"{least} to {most} were taken, and {decision}"
        if decision.allowed:
            mine.append(decision)
        if decision.allowed or is_old:
            self.write(store)
        else:
            self.written[store] = units, surely_us, max(perhaps_us, now_us + LONG_US)

    async def move(self, store: Any, kind: int) -> None:
        mine = self.held[store]
        match kind:
            case 6 | 7 | 8:
                self.clock.advance(us=self.choices.pick((LONG_US // 3, 1, LONG_US - 1, LONG_US)))
            case 9 if self.choices.below(4):
                await renew(store)
                self.write(store)
            case 9:  # what has ended may have been forgotten
                for other, (units, surely_us, perhaps_us) in self.written.items():
                    self.written[other] = units, surely_us * (surely_us > self.clock()), perhaps_us
                self.clock.now_us -= 3 * LONG_US
            case 10 if self.choices.below(2):
                await settle(self.choices.pick((store.reset_all, partial(store.reset, self.key)))())
            case 10:  # it is killed, and another comes
                self.at_work[self.at_work.index(store)] = self.hire(permit_lease="10m")
            case 11 | 12 if mine:  # nobody hands back what it had; or somebody tries to while the store is away
                mine.pop(0).begin_refund() if kind == 11 else mine.pop()
                await turns(10)
                gc.collect(0)
            case _ if mine:
                back = leave(store, mine.pop(self.choices.below(len(mine))))
                assert await (back if kind < 15 else asyncio.to_thread(asyncio.run, back)) == [True]
                self.write(store)


async def test_the_amount_holds_and_what_the_dead_had_comes_back(
    hire: Opened, clock: FakeClock, observer: RecordingObserver, rng: random.Random
) -> None:
    """A worker that renews in time keeps its permits, and one that was stopped for longer counts them again."""
    for number in range(25):
        await Program(hire, clock, f"user:{number}", Choices(rng.randbytes(150))).play()
        assert observer.events == []


async def test_calls_that_are_in_flight_together_lose_no_permit(hire: Opened, rng: random.Random) -> None:
    """Each contains the count of its worker, which those before it change."""
    seven, counts = Bucket("seven", [Concurrency(7)]), [0]

    async def work(store: Any) -> None:
        for _ in range(40):
            decision = await take(store, bucket=seven)
            counts.append(counts[-1] + decision.allowed)
            await turns(rng.randrange(10))
            if decision.allowed:
                counts.append(counts[-1] - 1)
                assert await leave(store, decision) == [True]
            if rng.random() < 0.1:
                await renew(store)

    await asyncio.gather(*(work(store) for store in (hire(), hire()) for _ in range(12)))
    assert 3 < max(counts) <= 7
    held = [await take(hire(), bucket=seven) for _ in range(8)]
    assert [decision.allowed for decision in held] == [True] * 7 + [False]


@pytest.mark.parametrize("way", ["hit", "charge"])
async def test_leases_are_renewed(way: str, hire: Opened, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of a hit that had to wait longer than to its renewal, as one does that finds the files held."""
    monkeypatch.setattr(leases, "parse_duration_us", lambda value, *of: parse_duration_us(value))  # in real time
    holds, other = (hire(permit_lease="100ms") for _ in range(2))
    waiting: AbstractContextManager[object] = nullcontext()
    if type(holds).__name__ == "LmdbStore" and way == "hit":
        from .lmdb.processes import gate_held  # not every Python has LMDB

        waiting = gate_held(holds)
    with waiting:
        taking = [asyncio.ensure_future(settle(getattr(holds, way)(((TWO, "ann", 1),)))) for _ in range(2)]
        await asyncio.sleep(0.05)
    held = await asyncio.gather(*taking)
    for _ in range(30):  # by the event loop's time; the clock moves no faster, and waits for the store's answers
        await asyncio.sleep(0.005)
        clock.advance(us=5_000)
        assert not await take(other)
    assert await leave(holds, *held) == [True, True]


def test_under_trio_leases_are_renewed_too(in_file: Opened, clock: FakeClock) -> None:
    holds, other = (in_file(permit_lease="1s") for _ in range(2))

    async def main() -> None:
        held = [take_now(holds), take_now(holds)]
        for _ in range(60):
            await trio.sleep(0.05)
            clock.advance(us=50_000)
            assert not take_now(other)
        assert all(held)

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_without_an_event_loop_questions_renew_all_permits(in_file: Opened, clock: FakeClock) -> None:
    holds, other = in_file(), in_file()
    held = [take_now(holds), take_now(holds)]
    for _ in range(5):
        clock.advance(us=LEASE_US // 2)
        assert take_now(holds, "bob")
        assert not take_now(other)
    assert all(held)


def test_a_hit_costs_the_same_however_many_permits_of_its_key_are_held(in_file: Opened) -> None:
    store, many = in_file(), Bucket("many", [Concurrency(10_000)])
    held = [store.hit(((many, "ann", 1),)) for _ in range(10)]
    take_one_more = lambda: held.append(store.hit(((many, "ann", 1),)))  # noqa: E731
    few = min(calls_of(take_one_more) for _ in range(20))
    held += [store.hit(((many, "ann", 1),)) for _ in range(4_000)]
    assert min(calls_of(take_one_more) for _ in range(20)) <= few
    assert store.permits_held() == len(held)


@pytest.mark.parametrize("on_loop", [True, False])
def test_thousands_of_rows_are_renewed_in_short_transactions(
    in_file: Opened, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, on_loop: bool
) -> None:
    from slidegate.stores.lmdb.windows import RENEWED_AT_ONCE, WindowRows

    holds, other, keys = in_file(), in_file(), [f"user:{number}" for number in range(1_000)]
    held = [take_now(holds, key) for key in keys for _ in range(2)]
    clock.advance(us=LEASE_US - 1)
    puts, save = list[int](), WindowRows.save

    def counted(rows: WindowRows) -> None:
        puts.append(len(rows.permits))
        save(rows)

    monkeypatch.setattr(WindowRows, "save", counted)
    asyncio.run(renew(holds)) if on_loop else holds.renew_permits()
    assert max(puts) == RENEWED_AT_ONCE
    assert sum(puts) == len(keys)
    clock.advance(us=LEASE_US - 1)
    assert not any(take_now(other, key) for key in keys)
    assert len(held) == holds.permits_held()


async def test_whatever_fails_in_the_transaction_of_others_no_more_than_the_amount_is_held(
    in_file: Opened, rng: random.Random, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    """The others are done again, each by itself, from what was there before; or none can be committed."""
    from .lmdb.processes import Faulty, gate_held

    is_failing, held = [False], list[Decision]()
    # No quota is counted without a clock of the system; this one is an iterator, which comes to its end.
    store = in_file(wall_clock=lambda: next(iter(() if is_failing[-1] else (YEAR_2100_US,))))
    day, counts, full = Bucket("day", (Quota("1000/day"),)), store._env.counts, False
    disk = Faulty(counts.lmdb, OSError("the disk is full"), lambda call: full and call == "commit")

    fail = partial(store.hit, ((day, "ann", 1),))

    def leave() -> Any:
        return store.refund(held.pop().begin_refund()) if held else True

    monkeypatch.setattr(counts, "lmdb", disk)
    for _ in range(250):
        full = False
        await settle(store.renew_permits())
        clock.advance(us=rng.choice((0, LEASE_US // 2 + 1)))  # after which the next question renews the lease
        await settle(store.renew_permits())
        jobs = [partial(take_now, store), store.renew_permits, leave, fail]
        chosen, full = rng.choices(jobs, weights=(4, 2, 1, 2), k=rng.randint(2, 6)), rng.random() < 0.2
        is_failing.append(True)
        with gate_held(store):  # so that all are asked in one transaction
            asked = [asyncio.ensure_future(settle(job())) for job in chosen]
            await turns(10)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        is_failing.pop()
        for job, answer in zip(chosen, answers, strict=True):
            assert job is not fail or type(answer) in (RuntimeError, StoreUnavailable)
        held += [answer for answer in answers if isinstance(answer, Decision) and answer.allowed]
        if full:
            del answers, answer, asked
            gc.collect(0)
        assert len(held) <= 2
        assert store.permits_held() == len(held)
    full = False
    while held:
        assert await settle(store.refund(held.pop().begin_refund())) is True
    taken = [await take(store) for _ in range(3)]
    assert [*map(bool, taken)] == [True, True, False]


def test_a_file_does_not_grow_by_permits_that_nobody_has(in_file: Opened, clock: FakeClock) -> None:
    """Those that were handed back, and those of the dead under keys that nobody asks for."""
    here, used, of_the_dead = in_file(), list[int](), list[Decision]()
    for turn in range(6):
        worker = in_file()
        held = [take_now(worker, f"user:{turn}-{number}") for number in range(500)]
        used.append(here._env.counts.used())
        if turn % 2:
            assert all(worker.refund(decision.begin_refund()) for decision in held)
        else:
            of_the_dead += held
            clock.advance(us=LEASE_US)
        for _ in range(20):
            here.renew_permits()
    assert used[-1] < 1.5 * used[0]


@IN_REDIS
async def test_a_foreign_value_stops_no_renewals(hire: Opened, clock: FakeClock, servers: list[RedisServer]) -> None:
    holds, other = (hire(readable=True, prefix="foreign") for _ in range(2))
    held = [await take(holds, key) for key in ("ann", "bob", "eve")]
    ((name, owner),) = [(name, at) for at in servers for name in at.command("KEYS", "{foreign}:w:bob*")]
    owner.command("DEL", name)
    owner.command("SET", name, "of somebody else")
    clock.advance(us=LEASE_US - 1)
    with pytest.raises(StoreUnavailable):
        await renew(holds)
    clock.advance(us=LEASE_US - 1)
    assert [(await take(other, key)).remaining for key in ("ann", "eve")] == [0, 0]
    owner.command("DEL", name)
    await renew(holds)
    assert (await take(other, "bob")).remaining == 0, "it is written again"
    assert await leave(holds, *held) == [True, True, True]


@IN_REDIS
async def test_thousands_of_permits_are_renewed_in_a_few_calls(
    hire: Opened,
    clock: FakeClock,
    servers: list[RedisServer],
    observer: RecordingObserver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch, "MAX_WAITING", 200)
    holds, other = (hire(permit_lease="10m") for _ in range(2))
    many = Bucket("many", [Concurrency(700)])
    held = [await take(holds, bucket=many) for _ in range(700)]
    for first in range(0, 1_000, 100):
        held += await asyncio.gather(*(take(holds, f"user:{number}") for number in range(first, first + 100)))
    clock.advance(us=LONG_US - 1)
    for server in servers:
        server.command("CONFIG", "RESETSTAT")
    await renew(holds)
    calls = sum(server.calls().get(name, 0) for server in servers for name in ("eval", "evalsha"))
    assert calls <= -(-1_001 // MAX_IN_CALL) + 2, "and what has changed, once a second"
    clock.advance(us=LONG_US - 1)
    assert not await take(other, bucket=many)
    assert (await take(other, "user:77")).remaining == 0
    assert holds.permits_held() == 1_700 == len(held)
    renewing = asyncio.ensure_future(renew(holds))
    await turns(10)
    for decision in reversed(held[:700]):
        await settle(holds.refund(decision.begin_refund()))
    await renewing
    assert (await take(other, bucket=many)).remaining == 699, "what was handed back meanwhile is not put back"
    assert observer.events == []


def test_a_row_without_permits_is_renewed_once_more() -> None:
    held = HeldPermits(LEASE_US, lambda: None)
    decision = Decision(True, Reason.OK, 0, ((TWO, "ann", 2),), [(2, 0, 0, 0)], None)
    held.hold(decision, lambda bucket, key: "row")
    assert decision.begin_refund()
    assert (held.units("row"), held.rows()) == (0, ["row"]), "a look writes nothing"
    assert (held.units_to_write("row"), held.rows()) == (0, [])
