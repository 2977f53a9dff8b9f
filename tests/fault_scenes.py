"""What workers go through when Redis has faults: how long until they are back, and the longest wait of a request.

    python3 dev.py faults [--runs 3] [SCENE ...]

16 tasks hit a limiter with a deadline of 50 ms and `on_error="deny"`, without a break, while a server of their own has
a fault. A line of the table says how many hits the store did not decide, when it decided all of them again after the
fault was over, how long the longest hit took, and by how much the event loop itself was late at most: what a busy
machine adds to any wait.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from redis.crc import key_slot

from slidegate import Limiter, Reason

from .fault_proxy import FaultProxy
from .redis_servers import RedisCluster, RedisServer, ReplicaPair, Sentinel, until

TASKS: Final = 16
DEADLINE: Final = "50ms"
BEFORE_S: Final = 0.5
AFTER_S: Final = 3.0
LATE_S: Final = 0.012
STOPPED_S: Final = 1.5
TICK_S: Final = 0.001
QUIET_S: Final = 0.3
"""A busy machine keeps a hit from its deadline now and then; so long without one, and the worker is back."""


@dataclass
class Record:
    """What hits went through.

    Attributes:
        ended_s: When the fault was over.
        hits: How many there were.
        undecided_s: When hits ended that the store did not decide.
        longest_s: How long the longest hit took.
        late_s: By how much the event loop was late at most.
    """

    ended_s: float = 0.0
    hits: int = 0
    undecided_s: list[float] = field(default_factory=list)
    longest_s: float = 0.0
    late_s: float = 0.0

    @property
    def back_s(self) -> float:
        """How long after the fault hits were undecided, until all of them were decided for a while."""
        back_s = self.ended_s
        for undecided_s in self.undecided_s:
            if undecided_s > back_s + QUIET_S:
                break
            back_s = max(back_s, undecided_s)
        return back_s - self.ended_s


Fault: TypeAlias = Callable[[], Awaitable[object]]


@dataclass
class Scene:
    """Where hits go, and what happens meanwhile.

    Attributes:
        url: The address of the store.
        fault: Comes back when the fault is over.
        keys: What is hit.
    """

    url: str
    fault: Fault
    keys: Sequence[str] = tuple(f"user:{number}" for number in range(TASKS))


SceneMaker: TypeAlias = Callable[[], AbstractAsyncContextManager[Scene]]


async def played(scene: Scene) -> Record:
    """Hit while a fault comes and goes."""
    record, over = Record(), asyncio.Event()

    async def work(limiter: Limiter, key: str) -> None:
        while not over.is_set():
            started_s = time.monotonic()
            decision = await limiter.hit(key, "1000000/second")
            now_s = time.monotonic()
            record.hits += 1
            record.longest_s = max(record.longest_s, now_s - started_s)
            if decision.reason is Reason.UNAVAILABLE:
                record.undecided_s.append(now_s)
                await asyncio.sleep(TICK_S)  # the pause of the breaker is no work for the machine

    async def watch() -> None:
        while not over.is_set():
            due_s = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            record.late_s = max(record.late_s, time.monotonic() - due_s)

    async with Limiter.from_url(scene.url, secret=b"s" * 32, deadline=DEADLINE, on_error="deny") as limiter:
        for key in scene.keys:
            while (await limiter.hit(key, "1000000/second")).reason is Reason.UNAVAILABLE:
                pass
        tasks = [asyncio.create_task(work(limiter, key)) for key in scene.keys]
        tasks.append(asyncio.create_task(watch()))
        await asyncio.sleep(BEFORE_S)
        await scene.fault()
        record.ended_s = time.monotonic()
        await asyncio.sleep(AFTER_S)
        over.set()
        await asyncio.gather(*tasks)
    return record


# -- scenes ----------------------------------------------------------------------------------------------------------


async def stopped(server: RedisServer) -> None:
    """Stop a server (SIGSTOP) for a while."""
    server.pause()
    await asyncio.sleep(STOPPED_S)
    server.resume()


async def resets(proxies: Sequence[FaultProxy], every_s: float, late_s: float) -> None:
    """Reset all connections again and again for two seconds; answers are late, and stay so."""
    for proxy in proxies:
        proxy.delay_s = late_s
    for _ in range(round(2 / every_s)):
        for proxy in proxies:
            proxy.drop()
        await asyncio.sleep(every_s)


@asynccontextmanager
async def a_server_that_stops() -> AsyncIterator[Scene]:
    with RedisServer() as server:
        yield Scene(server.url, lambda: stopped(server))


@asynccontextmanager
async def a_server_that_is_killed() -> AsyncIterator[Scene]:
    async def restart() -> None:
        server.kill()
        await asyncio.to_thread(server.start)

    with RedisServer() as server:
        yield Scene(server.url, restart)


@asynccontextmanager
async def scripts_that_are_forgotten() -> AsyncIterator[Scene]:
    async def forget() -> None:
        for _ in range(5):
            server.command("SCRIPT", "FLUSH")
            await asyncio.sleep(0.1)

    with RedisServer() as server:
        yield Scene(server.url, forget)


def connections_that_are_reset(late_s: float) -> SceneMaker:
    @asynccontextmanager
    async def scene() -> AsyncIterator[Scene]:
        with RedisServer() as server:
            async with FaultProxy(server.port) as proxy:
                yield Scene(f"redis://127.0.0.1:{proxy.port}/0", lambda: resets([proxy], 0.05, late_s))

    return scene


@asynccontextmanager
async def a_cluster_whose_connections_are_reset() -> AsyncIterator[Scene]:
    with RedisCluster(fronted=True) as cluster:
        async with AsyncExitStack() as stack:
            proxies = [FaultProxy(server.port) for server in cluster.servers]
            for server, proxy in zip(cluster.servers, proxies, strict=True):
                proxy.port = server.front or 0
                await stack.enter_async_context(proxy)
            hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
            yield Scene(f"redis+cluster://{hosts}", lambda: resets(proxies, LATE_S, LATE_S))


@asynccontextmanager
async def a_master_of_three_that_stops() -> AsyncIterator[Scene]:
    """Only keys of the other two are hit."""
    with RedisCluster() as cluster:
        keeper = cluster.owner(cluster.slot_of("slidegate:4:{bans}"))
        sick = next(server for server in cluster.servers if server is not keeper)
        drawn = (f"user:{number}" for number in range(1_000))
        keys = [key for key in drawn if cluster.owner(key_slot(key.encode())) is not sick][:TASKS]
        yield Scene(f"{cluster.url}?readable=true", lambda: stopped(sick), keys)


@asynccontextmanager
async def sentinels_that_promote() -> AsyncIterator[Scene]:
    with ReplicaPair() as pair, Sentinel(pair.master) as sentinel:
        until(lambda: sentinel.command("SENTINEL", "REPLICAS", "gate"), "the sentinel knows the replica")

        async def promote() -> None:
            pair.master.kill()
            await asyncio.to_thread(until, lambda: pair.replica.info("replication")["role"] == "master", "a new master")

        yield Scene(f"redis+sentinel://127.0.0.1:{sentinel.port}/gate", promote)


SCENES: Final[dict[str, SceneMaker]] = {
    "stopped 1.5 s (SIGSTOP)": a_server_that_stops,
    "killed and restarted": a_server_that_is_killed,
    "NOSCRIPT five times": scripts_that_are_forgotten,
    "resets each 50 ms": connections_that_are_reset(0.0),
    "resets, answers 12 ms late": connections_that_are_reset(LATE_S),
    "cluster: resets each 12 ms": a_cluster_whose_connections_are_reset,
    "cluster: one master stopped": a_master_of_three_that_stops,
    "sentinels promote": sentinels_that_promote,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="dev.py faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help="parts of their names; by default all")
    parser.add_argument("--runs", type=int, default=1, help="how often each is played")
    options = parser.parse_args()
    logging.disable()
    print(f"{'scene':30}{'hits':>8}{'undecided':>11}{'back after s':>14}{'longest ms':>12}{'loop late ms':>14}")
    for name, scene in SCENES.items():
        if options.scenes and not any(part in name for part in options.scenes):
            continue
        for _ in range(options.runs):
            record = asyncio.run(_run(scene))
            waits = f"{record.longest_s * 1000:>12.0f}{record.late_s * 1000:>14.0f}"
            print(f"{name:30}{record.hits:>8,}{len(record.undecided_s):>11,}{record.back_s:>14.2f}{waits}", flush=True)


async def _run(scene: SceneMaker) -> Record:
    async with scene() as made:
        return await played(made)


if __name__ == "__main__":
    main()
