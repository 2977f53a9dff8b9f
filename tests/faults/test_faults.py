"""What workers go through when their store has faults: how long until they are back, and the longest wait of a request.

    python3 dev.py faults -k "LMDB or resets"

16 tasks hit a limiter with a deadline of 50 ms and `on_error="deny"`, without a break, while its store has a fault. Its
line says how many hits the store did not decide, when it decided all of them again after the fault was over, how long
the longest hit took, and by how much the event loop itself was late at most: what a busy machine adds to any wait.
Wrong are hits that passed beyond a limit of 1,000 an hour, or in spite of a ban.
"""

import asyncio
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import pytest

from slidegate import Limiter
from slidegate.core import Reason
from slidegate.stores.lmdb import LmdbStore

from ..redis_servers import ReplicaPair, Sentinel, until
from ..stores.forked import child
from ..stores.redis.faults import FAULTS, Deployment, on_a_cluster, on_a_server

KEYS = [f"user:{number}" for number in range(16)]
"""A task hits each."""
UNBOUND, BANNED = "1000000/second", "user:eve"
BOUND = 1_000
"""How many hits of one more key pass in an hour; they are used up amid the fault, and asked for until the end."""
BEFORE_S, STOPPED_S, AFTER_S, TICK_S = 0.5, 1.5, 3.0, 0.001
QUIET_S = 0.3
"""A busy machine keeps a hit from its deadline now and then; so long without one, and the worker is back."""


class Scene(NamedTuple):
    """A store at an address, and a fault, which comes back when it is over.

    Attributes:
        lives: How often the store counts from 0, where the fault takes its data away.
        keeps_bans: Whether a ban outlives that.
    """

    url: str
    fault: Callable[[], Awaitable[object]]
    lives: int = 1
    keeps_bans: bool = True


@dataclass
class Record:
    """What hits went through: when they were undecided, since when the fault is over, and how late answers were."""

    ended_s: float = 0.0
    hits: int = 0
    undecided_s: list[float] = field(default_factory=list)
    longest_s: float = 0.0
    late_s: float = 0.0
    wrong: int = 0

    @property
    def back_s(self) -> float:
        """How long after the fault hits were undecided, until all of them were decided for a while."""
        back_s = self.ended_s
        for undecided_s in self.undecided_s:
            if undecided_s > back_s + QUIET_S:
                break
            back_s = max(back_s, undecided_s)
        return back_s - self.ended_s


async def play(scene: Scene) -> Record:
    record, counted, passed = Record(), 0, 0

    async def hit(key: str) -> None:
        while not is_over:
            started_s = time.monotonic()
            is_undecided = (await limiter.hit(key, UNBOUND)).reason is Reason.UNAVAILABLE
            now_s = time.monotonic()
            record.hits += 1
            record.longest_s = max(record.longest_s, now_s - started_s)
            record.undecided_s += [now_s] * is_undecided
            # The pause of the breaker is no work for the machine; a store that answers at once lets nobody else run.
            await asyncio.sleep(TICK_S if is_undecided else 0)

    async def check() -> None:
        nonlocal counted, passed
        while not is_over:
            counted += (await limiter.hit("everyone", f"{BOUND}/hour")).allowed
            passed += (await limiter.hit(BANNED, UNBOUND)).allowed
            due_s = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            record.late_s = max(record.late_s, time.monotonic() - due_s)

    async with Limiter.from_url(scene.url, secret=b"s" * 32, deadline="50ms", on_error="deny") as limiter:
        await limiter.ban(BANNED, "1h")
        for key in (BANNED, *KEYS):
            while (await limiter.hit(key, UNBOUND)).reason is Reason.UNAVAILABLE:
                pass
        is_over, tasks = False, [asyncio.create_task(one) for one in (*map(hit, KEYS), check())]
        await asyncio.sleep(BEFORE_S)
        await scene.fault()
        record.ended_s = time.monotonic()
        await asyncio.sleep(AFTER_S)
        is_over = True
        await asyncio.gather(*tasks)
    record.wrong = max(counted - BOUND * scene.lives, 0) + passed * scene.keeps_bans
    return record


# -- LMDB: other workers of the host -----------------------------------------------------------------------------------


async def writer(path: str, stands_s: float, ends_by: signal.Signals = signal.SIGCONT) -> None:
    """Fork a worker that begins a transaction and stands still for a while, and then kill it."""

    def begin() -> object:
        own = LmdbStore(path)
        while not own._env.gate.enter():
            time.sleep(TICK_S)
        return own

    with ExitStack() as stack:
        await asyncio.to_thread(stack.enter_context, child(begin, ends_by))
        await asyncio.sleep(stands_s)


async def writers_that_are_killed(path: str) -> None:
    for _ in range(20):
        await writer(path, 0.005)


@asynccontextmanager
async def in_a_file(fault: Callable[[str], Awaitable[None]]) -> AsyncIterator[Scene]:
    with tempfile.TemporaryDirectory() as path:
        yield Scene(f"lmdb://{path}/store", partial(fault, f"{path}/store"))


# -- Redis: servers of their own, and the wire to them -----------------------------------------------------------------


async def stopped(deployment: Deployment) -> None:
    """Stop the last server: of a cluster, not that with the keys of the store, which alone matters."""
    async with FAULTS["hang"][0](Deployment("", deployment.servers[-1:], [])):
        await asyncio.sleep(STOPPED_S)


async def restarted(deployment: Deployment) -> None:
    deployment.server.kill()
    await asyncio.to_thread(deployment.server.start)


async def resets(every_s: float, late_s: float, deployment: Deployment) -> None:
    """Reset all connections again and again for two seconds; answers are late, and stay so."""
    for proxy in deployment.proxies:
        proxy.delay_s = late_s
    for _ in range(round(2 / every_s)):
        for proxy in deployment.proxies:
            proxy.drop()
        await asyncio.sleep(every_s)


@asynccontextmanager
async def at(where: Any, fault: Callable[[Deployment], Awaitable[None]], *data_are_lost: Any) -> AsyncIterator[Scene]:
    async with where() as deployment:
        yield Scene(deployment.url, partial(fault, deployment), *data_are_lost)


@asynccontextmanager
async def behind_a_sentinel_that_promotes() -> AsyncIterator[Scene]:
    with ReplicaPair() as pair, Sentinel(pair.master) as sentinel:
        until(lambda: sentinel.command("SENTINEL", "REPLICAS", "mymaster"), "the sentinel knows the replica")

        async def promote() -> None:
            await asyncio.to_thread(pair.wait_copied)
            pair.master.kill()
            await asyncio.to_thread(until, lambda: pair.replica.info("replication")["role"] == "master", "a new master")

        # What comes until the master is killed may be gone.
        yield Scene(f"redis+sentinel://127.0.0.1:{sentinel.port}/mymaster", promote, lives=2)


SCENES: dict[str, Callable[[], AbstractAsyncContextManager[Scene]]] = {
    "LMDB: 20 writers killed": partial(in_a_file, writers_that_are_killed),
    "LMDB: writer stopped 1.5 s (SIGSTOP)": partial(in_a_file, lambda path: writer(path, STOPPED_S, signal.SIGSTOP)),
    "Redis: stopped 1.5 s (SIGSTOP)": partial(at, on_a_server, stopped),
    "Redis: killed and restarted": partial(at, on_a_server, restarted, 2, False),
    "Redis: resets each 50 ms": partial(at, on_a_server, partial(resets, 0.05, 0.0)),
    "Redis: resets, answers 12 ms late": partial(at, on_a_server, partial(resets, 0.05, 0.012)),
    "Redis: cluster: resets each 12 ms": partial(at, on_a_cluster, partial(resets, 0.012, 0.012)),
    "Redis: cluster: one master stopped": partial(at, on_a_cluster, stopped),
    "Redis: sentinels promote": behind_a_sentinel_that_promotes,
}


UNNOTICED = ("LMDB: 20 writers killed", "Redis: cluster: one master stopped")
"""Nobody needs the server that is stopped, and few need a gate just then."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.all if "LMDB" in name else pytest.mark.deep) for name in SCENES]
)
async def test_no_decision_amid_faults_is_wrong(name: str) -> None:
    async with SCENES[name]() as scene:
        record = await play(scene)
    counts = f"{record.hits:,} hits, {len(record.undecided_s):,} undecided, {record.wrong} wrong"
    times_ms = f"the longest {record.longest_s * 1_000:.0f} ms, the loop {record.late_s * 1_000:.0f} ms late"
    print(f"\n{name}: {counts}; back after {record.back_s:.2f} s; {times_ms}", end=" ")  # noqa: T201
    assert record.wrong == 0
    assert record.hits > len(record.undecided_s)
    assert record.undecided_s or name in UNNOTICED, "the fault did nothing, so this shows nothing"
