"""Leases in a storm: four processes on one server, one of them 60 ms away, which are stopped in the middle of leases
and killed, while keys are reset, banned and refunded. No window has more than its amount, by the server's time."""

import asyncio
import os
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from slidegate import Decision, Limit, StoreError
from slidegate.core import Bucket
from slidegate.stores.redis import RedisStore

from ...contract.player import settle
from ...fault_proxy import FaultProxy
from ...redis_servers import BOUND_S, HOST, RedisServer, needs_redis
from ...soak.checks import most_inside
from .stores import eventually, fresh_prefix

pytestmark = [needs_redis, pytest.mark.skipif(sys.platform == "win32", reason="no SIGSTOP")]
WORKERS: Final = 4
FAR: Final = WORKERS - 1
UNSURE_US: Final = 5_000
"""A hit during which its process stood so long is left out, because nobody knows when it was admitted."""
WITHIN_US: Final = 1_005_000
"""How long after a ban or a reset others may spend what they have leased, and 5 ms for the clocks."""


AMOUNT: Final = 400
WINDOW_US: Final = 2_000_000
LONG: Final = 4
"""The long limit has a window so many times as long, and three times the amount."""
EXACT: Final = 40
TASKS: Final = 8
HITS_A_SECOND: Final = 1_000

_SHORT: Final = Limit(AMOUNT, "2s", resolution=8)
LIMITS: Final = {
    "hot": (_SHORT,),
    "two": (_SHORT, Limit(3 * AMOUNT, f"{2 * LONG}s", resolution=8)),
    "reset": (_SHORT,),
    "ban": (_SHORT,),
    "exact": (Limit(EXACT, "2s"),),
    "refund": (_SHORT,),
}
WEIGHTS: Final = (4, 2, 2, 2, 1, 2)
CHECKS: Final = {key: ((Bucket("storm", limits), key, 1),) for key, limits in LIMITS.items()}


class Worker:
    def __init__(self, store: RedisStore, seed: int) -> None:
        self.store, self.rnd, self.ends = store, random.Random(seed), asyncio.Event()
        self.lines = list[str]()

    async def run(self) -> None:
        while not self.ends.is_set():
            await asyncio.sleep(self.rnd.expovariate(HITS_A_SECOND / TASKS / 10))
            for turn in range(self.rnd.choice((1, 1, 1, 4, 40))):
                if turn:
                    busy_until_s = time.perf_counter() + 2e-4  # work without an await, in which it may be stopped
                    while time.perf_counter() < busy_until_s:
                        pass
                (key,) = self.rnd.choices([*LIMITS], WEIGHTS)
                try:
                    await self.hit(key)
                except StoreError:
                    await asyncio.sleep(0.01)

    async def hit(self, key: str) -> None:
        began_us = time.time_ns() // 1_000
        answer: Any = self.store.hit(CHECKS[key])
        ended_us = time.time_ns() // 1_000
        decision = await settle(answer)
        if not decision.allowed:
            return
        end_us = min(mark for _, _, mark, _ in decision.readings)
        if not isinstance(answer, Decision):
            began_us = ended_us = decision.now_us
            end_us = 0
        if key == "refund" and self.rnd.random() < 0.5:
            if self.rnd.random() < 0.3:
                await asyncio.sleep(self.rnd.random() * 0.2)
            if await settle(self.store.refund(decision.begin_refund())):
                return
        self.lines.append(f"{key} {began_us} {ended_us} {end_us}\n")

    async def write(self, log: int) -> None:
        while not self.ends.is_set():
            await asyncio.sleep(0.01)
            lines, self.lines = self.lines, []
            os.write(log, "".join(lines).encode())


async def work(address: str, prefix: str, path: str, seed: int) -> None:
    """Hit some keys until SIGTERM comes; write a line for each admitted hit: its key, and the numbers of `Row`."""
    store = RedisStore(address, prefix=prefix, leases=True, timeout="5s")
    worker = Worker(store, seed)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.ends.set)
    await settle(store.hit(CHECKS["hot"]))  # connected
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    await asyncio.gather(worker.write(log), *(worker.run() for _ in range(TASKS)))
    os.write(log, "".join(worker.lines).encode())
    await store.close()


def run(*given: Any) -> None:
    asyncio.run(work(*given))


class Row(NamedTuple):
    """An admitted hit: the earliest and the latest moment, and the end of its slice if nobody was asked, else 0."""

    from_us: int
    to_us: int
    end_us: int


class Storm:
    def __init__(self, server: RedisServer, folder: Path, seed: int) -> None:
        self.server, self.folder, self.seed, self.rnd = server, folder, seed, random.Random(seed)
        self.prefix = fresh_prefix()
        self.proxy = FaultProxy(server.port)
        self.workers = dict[int, BaseProcess]()
        self.started = self.stops = self.kills = 0
        self.resets, self.bans = list[tuple[int, int]](), list[tuple[int, int]]()
        self.banned_us = 0  # since when the banned key is banned; 0 if it is not

    def start(self, place: int) -> None:
        port = self.proxy.port if place == FAR else self.server.port
        self.started += 1
        given = f"redis://{HOST}:{port}/0", self.prefix, str(self.folder / f"{self.started}"), self.seed + self.started
        self.workers[place] = get_context("spawn").Process(target=run, args=given)
        self.workers[place].start()

    async def rage(self, seconds: float) -> None:
        """Stop, kill, reset and ban for some time, from when all workers are at work, and wait for their end."""
        await self.proxy.accept()
        self.proxy.delay_s = 0.06
        operator = RedisStore(self.server.url, prefix=self.prefix, timeout="5s")
        try:
            for place in range(WORKERS):
                self.start(place)
            await eventually(lambda: len([*self.folder.iterdir()]) == WORKERS, BOUND_S)
            until_s = time.monotonic() + seconds
            while time.monotonic() < until_s:
                await asyncio.sleep(self.rnd.random() * 0.25)
                with suppress(StoreError):
                    await self.happen(operator)
            for worker in self.workers.values():
                worker.terminate()
            await eventually(lambda: not any(worker.is_alive() for worker in self.workers.values()), BOUND_S)
        finally:
            for worker in self.workers.values():
                worker.kill()
                worker.join()
            await operator.close()
            await self.proxy.refuse()

    async def happen(self, operator: RedisStore) -> None:
        place, what = self.rnd.randrange(WORKERS), self.rnd.random()
        began_us = time.time_ns() // 1_000
        if what < 0.35:  # for less than a slice, or for several
            os.kill(self.workers[place].pid or 0, signal.SIGSTOP)
            self.stops += 1
            await asyncio.sleep(self.rnd.choice((0.1, 0.3, 0.6, 1.0)) * (0.5 + self.rnd.random()))
            os.kill(self.workers[place].pid or 0, signal.SIGCONT)
        elif what < 0.40:
            self.workers[place].kill()
            self.workers[place].join()
            self.kills += 1
            self.start(place)
        elif what < 0.55:
            await operator.reset("reset")
            self.resets.append((began_us, time.time_ns() // 1_000))
        elif what < 0.65 and not self.banned_us:
            await operator.bans.ban("ban", None, "", "ann")
            self.banned_us = time.time_ns() // 1_000
        elif what < 0.65:
            self.bans.append((self.banned_us, began_us))
            self.banned_us = 0
            await operator.bans.unban("ban", "ann")

    def rows(self) -> dict[str, list[Row]]:
        found = defaultdict[str, list[Row]](list)
        for path in self.folder.iterdir():
            for line in path.read_text().splitlines():
                key, *numbers = line.split()
                if len(numbers) == 3:  # else it was killed while it wrote
                    found[key].append(Row(*map(int, numbers)))
        return found


def most(rows: list[Row], window_us: int, begins: Callable[[float], bool] = lambda us: True) -> int:
    sure = [(row.from_us, row.to_us) for row in rows if row.to_us - row.from_us < UNSURE_US]
    return most_inside(sure, window_us - 1, begins)[0]


async def weather(server: RedisServer, folder: Path, seconds: float, seed: int) -> None:
    storm = Storm(server, folder, seed)
    await storm.rage(seconds)
    rows = storm.rows()
    admitted = [row for found in rows.values() for row in found]
    leased = [row for row in admitted if row.end_us]
    assert [row for row in leased if row.from_us > row.end_us] == [], "units were spent after their slice"

    def is_clear(at_us: float) -> bool:
        return not any(began < at_us + WINDOW_US and at_us < ended + WITHIN_US for began, ended in storm.resets)

    worst = {key: most(found, WINDOW_US) for key, found in rows.items()}
    worst["reset"] = most(rows["reset"], WINDOW_US, is_clear)
    longest = most(rows["two"], LONG * WINDOW_US)
    late_us = [row.from_us - began for began, ended in storm.bans for row in rows["ban"] if began < row.from_us < ended]
    latest_us = max(late_us, default=0)
    print(  # noqa: T201 - for long runs
        f"{seconds:.0f} s, seed {seed}: {len(admitted)} admitted, {len(leased)} of them without asking; "
        f"{storm.stops} stops, {storm.kills} kills, {len(storm.resets)} resets, {len(storm.bans)} bans; "
        f"most in a window of {AMOUNT}: {worst}; {longest} of {3 * AMOUNT} in a long one; {latest_us} us after a ban"
    )
    assert worst.pop("exact") <= EXACT
    assert max(worst.values()) <= AMOUNT
    assert longest <= 3 * AMOUNT
    assert latest_us <= WITHIN_US
    assert len(leased) > len(admitted) / 50, "leases were in use"


@pytest.mark.all
async def test_no_window_has_more_than_its_amount_in_a_storm(server: RedisServer, tmp_path: Path) -> None:
    await weather(server, tmp_path, 8, random.SystemRandom().getrandbits(16))


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(1, 37))
async def test_no_window_has_more_than_its_amount_in_any_storm(server: RedisServer, tmp_path: Path, seed: int) -> None:
    await weather(server, tmp_path, 60, seed)
