"""Leases in a storm: four processes on one server, one of them 60 ms away, which are stopped in the middle of leases
and killed, while keys are reset, banned and refunded. No window has more than its amount, by the server's time."""

import asyncio
import random
import signal
import subprocess
import sys
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from slidegate import StoreError
from slidegate.stores.redis import RedisStore

from ...fault_proxy import FaultProxy
from ...redis_servers import HOST, RedisServer, needs_redis
from .stores import eventually, fresh_prefix
from .storm_worker import AMOUNT, EXACT, LONG, WINDOW_US

pytestmark = [needs_redis, pytest.mark.skipif(sys.platform == "win32", reason="no SIGSTOP")]
ROOT: Final = Path(__file__).resolve().parents[3]
WORKERS: Final = 4
FAR: Final = WORKERS - 1
UNSURE_US: Final = 5_000
"""A hit during which its process stood so long is left out, because nobody knows when it was admitted."""
BOUND_S: Final = 60
WITHIN_US: Final = 1_005_000
"""How long after a ban or a reset others may spend what they have leased, and 5 ms for the clocks."""


class Row(NamedTuple):
    """An admitted hit: the earliest and the latest moment, and the end of its slice if nobody was asked, else 0."""

    from_us: int
    to_us: int
    end_us: int


class Storm:
    """The workers, and what happens to them."""

    def __init__(self, server: RedisServer, folder: Path, seed: int) -> None:
        self.server, self.folder, self.seed, self.rnd = server, folder, seed, random.Random(seed)
        self.prefix = fresh_prefix()
        self.proxy = FaultProxy(server.port)
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        self.started = self.stops = self.kills = 0
        self.resets = list[tuple[int, int]]()
        self.bans = list[tuple[int, int]]()
        self.banned_us = 0
        """Since when the banned key is banned; 0 if it is not."""

    def start(self, place: int) -> None:
        """Start a worker."""
        address = self.server.url
        if place == FAR:
            address = f"redis://{HOST}:{self.proxy.port}/0"
        self.started += 1
        given = address, self.prefix, str(self.folder / f"{self.started}"), str(self.seed + self.started)
        command = [sys.executable, "-m", "tests.stores.redis.storm_worker", *given]
        self.workers[place] = subprocess.Popen(command, cwd=ROOT)

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
            await eventually(lambda: all(worker.poll() is not None for worker in self.workers.values()), BOUND_S)
        finally:
            for worker in self.workers.values():
                worker.kill()
                worker.wait()
            await operator.close()
            await self.proxy.refuse()

    async def happen(self, operator: RedisStore) -> None:
        """Do one of what may happen."""
        place, what = self.rnd.randrange(WORKERS), self.rnd.random()
        began_us = time.time_ns() // 1_000
        if what < 0.35:
            await self.stop(self.workers[place])
        elif what < 0.40:
            self.workers[place].kill()
            self.workers[place].wait()
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

    async def stop(self, worker: subprocess.Popen[bytes]) -> None:
        """Stop a worker, for less than a slice or for several."""
        worker.send_signal(signal.SIGSTOP)
        self.stops += 1
        await asyncio.sleep(self.rnd.choice((0.1, 0.3, 0.6, 1.0)) * (0.5 + self.rnd.random()))
        worker.send_signal(signal.SIGCONT)

    def rows(self) -> dict[str, list[Row]]:
        """Return the admitted hits of each key."""
        found = defaultdict[str, list[Row]](list)
        for path in self.folder.iterdir():
            for line in path.read_text().splitlines():
                key, *numbers = line.split()
                if len(numbers) == 3:  # else it was killed while it wrote
                    found[key].append(Row(*map(int, numbers)))
        return found


def most(rows: list[Row], window_us: int, begins: Callable[[int], bool] = lambda us: True) -> int:
    """Return the most hits that were certainly in one window."""
    sure = [row for row in rows if row.to_us - row.from_us < UNSURE_US]
    first, last = sorted(row.from_us for row in sure), sorted(row.to_us for row in sure)
    counts = [bisect_left(last, at + window_us) - bisect_left(first, at) for at in first if begins(at)]
    return max(counts, default=0)


async def weather(server: RedisServer, folder: Path, seconds: float, seed: int) -> None:
    storm = Storm(server, folder, seed)
    await storm.rage(seconds)
    rows = storm.rows()
    admitted = [row for found in rows.values() for row in found]
    leased = [row for row in admitted if row.end_us]
    assert [row for row in leased if row.from_us > row.end_us] == [], "units were spent after their slice"

    def is_clear(at_us: int) -> bool:
        """No reset is in the window that begins then, nor a second before it."""
        return not any(began < at_us + WINDOW_US and at_us < ended + WITHIN_US for began, ended in storm.resets)

    worst = {key: most(found, WINDOW_US) for key, found in rows.items()}
    worst["reset"] = most(rows["reset"], WINDOW_US, is_clear)
    longest = most(rows["two"], LONG * WINDOW_US)
    after_bans_us = [
        row.from_us - began for began, ended in storm.bans for row in rows["ban"] if began < row.from_us < ended
    ]
    after_ban_ms = max(after_bans_us, default=0) // 1_000
    print(  # noqa: T201 - for who runs it for long
        f"{seconds:.0f} s, seed {seed}: {len(admitted)} admitted, {len(leased)} of them without asking; "
        f"{storm.stops} stops, {storm.kills} kills, {len(storm.resets)} resets, {len(storm.bans)} bans; "
        f"most in a window of {AMOUNT}: {worst}; {longest} of {3 * AMOUNT} in a long one; {after_ban_ms} ms after a ban"
    )
    assert worst.pop("exact") <= EXACT
    assert max(worst.values()) <= AMOUNT
    assert longest <= 3 * AMOUNT
    assert max(after_bans_us, default=0) <= WITHIN_US
    assert len(leased) > len(admitted) / 50, "leases were in use"


@pytest.mark.all
async def test_no_window_has_more_than_its_amount_in_a_storm(server: RedisServer, tmp_path: Path) -> None:
    await weather(server, tmp_path, 8, random.SystemRandom().getrandbits(16))


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(1, 31))
async def test_no_window_has_more_than_its_amount_in_a_long_storm(
    server: RedisServer, tmp_path: Path, seed: int
) -> None:
    await weather(server, tmp_path, 60, seed)
