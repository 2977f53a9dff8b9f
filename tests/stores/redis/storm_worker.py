"""A worker of the storm: it hits some keys, and writes when each hit was admitted, by the clock of this machine.

    python -m tests.stores.redis.storm_worker ADDRESS PREFIX FILE SEED

It ends when it is asked to, by SIGTERM.

A line of the file has the key, the earliest and the latest moment of the admission, and the end of its slice if nobody
was asked for it, else 0.
"""

import asyncio
import os
import random
import signal
import sys
import time
from typing import Any, Final

from slidegate import Decision, Limit, StoreError
from slidegate.core import Bucket
from slidegate.stores.redis import RedisStore

from ...contract.player import settle

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
    """Hits a store until it is ended."""

    def __init__(self, store: RedisStore, seed: int) -> None:
        self.store, self.rnd, self.has_ended = store, random.Random(seed), False
        self.lines = list[str]()

    async def run(self) -> None:
        while not self.has_ended:
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
        end_us = 0
        if isinstance(answer, Decision):
            end_us = min(mark for _, _, mark, _ in decision.readings)
        else:
            began_us = ended_us = decision.now_us
        if key == "refund" and self.rnd.random() < 0.5:
            if self.rnd.random() < 0.3:
                await asyncio.sleep(self.rnd.random() * 0.2)
            if await settle(self.store.refund(decision.begin_refund())):
                return
        self.lines.append(f"{key} {began_us} {ended_us} {end_us}\n")

    def end(self) -> None:
        self.has_ended = True

    async def write(self, log: int) -> None:
        while not self.has_ended:
            await asyncio.sleep(0.01)
            lines, self.lines = self.lines, []
            os.write(log, "".join(lines).encode())


async def main(address: str, prefix: str, path: str, seed: str) -> None:
    store = RedisStore(address, prefix=prefix, leases=True, timeout="5s")
    worker = Worker(store, int(seed))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.end)
    await settle(store.hit(CHECKS["hot"]))  # connected
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    await asyncio.gather(worker.write(log), *(worker.run() for _ in range(TASKS)))
    os.write(log, "".join(worker.lines).encode())
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
