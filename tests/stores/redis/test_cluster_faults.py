"""A cluster whose connections are late, stall and are reset, whose nodes die, and whose slot is on its way.

Every node is reached through a proxy, and tells clients the proxy's port.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from slidegate import Limiter
from slidegate.core import Reason
from slidegate.stores.redis import RedisStore
from slidegate.testing import RecordingObserver

from ...fault_proxy import FaultProxy, in_front_of
from ...redis_servers import RedisCluster, RedisServer, needs_redis
from .stores import eventually

pytestmark = [needs_redis, pytest.mark.all]

TICK_S: Final = 0.02
BACK_TICKS: Final = 100
"""Two seconds: every worker is back by then after the last fault."""
NEVER_TICKS: Final = 3_000
"""A minute: a worker that is not back by then never will be. On a busy machine many requests outlast their deadline."""
LIMIT: Final = "1000/hour"


@pytest.fixture(scope="module")
def nodes() -> Iterator[RedisCluster]:
    with RedisCluster(fronted=True) as cluster:
        yield cluster


class Scene:
    def __init__(self, cluster: RedisCluster, proxies: list[FaultProxy]) -> None:
        self.cluster, self.proxies = cluster, proxies
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)

    @property
    def keeper(self) -> RedisServer:
        """The server with the keys of a store."""
        return self.cluster.owner(self.cluster.slot_of("slidegate"))

    def proxy_of(self, server: RedisServer) -> FaultProxy:
        return self.proxies[self.cluster.servers.index(server)]


@pytest.fixture
async def scene(nodes: RedisCluster) -> AsyncIterator[Scene]:
    for server in nodes.servers:
        server.command("FLUSHALL")
    async with in_front_of(nodes.servers) as proxies:
        yield Scene(nodes, proxies)


def limiter_at(scene: Scene, deadline: str, heard: RecordingObserver) -> Limiter:
    """Return a limiter that denies what the store does not decide."""
    store = RedisStore(scene.url)
    return Limiter(store, secret=b"s" * 32, deadline=deadline, on_error="deny", observers=[heard])


class Limiters:
    """Limiters as workers have them, at work from the moment when they are made."""

    def __init__(self, scene: Scene, count: int) -> None:
        self.all = [limiter_at(scene, "50ms", RecordingObserver()) for _ in range(count)]
        self.keys = ["user:1", "user:2", "user:3"]
        self._busy = [asyncio.create_task(self._work(limiter)) for limiter in self.all]

    async def _work(self, limiter: Limiter) -> None:
        while True:
            await asyncio.gather(*(limiter.hit(key, LIMIT) for key in self.keys))
            await asyncio.sleep(0.005)

    async def back(self, most_ticks: int) -> list[int]:
        """Return for each limiter after how many ticks the store answered for every key, -1 if that is too many."""
        return await asyncio.gather(*(self._back(limiter, most_ticks) for limiter in self.all))

    async def _back(self, limiter: Limiter, most_ticks: int) -> int:
        for tick in range(most_ticks):
            decisions = await asyncio.gather(*(limiter.hit(key, LIMIT) for key in self.keys))
            if all(decision.reason is not Reason.UNAVAILABLE for decision in decisions):
                return tick
            await asyncio.sleep(TICK_S)
        return -1

    async def close(self) -> None:
        for task in self._busy:
            task.cancel()
        await asyncio.gather(*self._busy, return_exceptions=True)
        for limiter in self.all:
            await limiter.close()


async def rage(scene: Scene, rng: random.Random, moves: int) -> None:
    """Let everything happen between clients and nodes for a while, and end with all well but some latency."""
    for _ in range(moves):
        proxy = rng.choice(scene.proxies)
        proxy.delay_s = rng.uniform(0.001, 0.012)
        match rng.randrange(6):
            case 0 | 1:
                proxy.drop()
            case 2:
                proxy.cut_after(rng.randrange(2_000))
            case 3:
                proxy.freeze()
            case 4:
                await proxy.refuse()
                await proxy.accept()
        await asyncio.sleep(rng.uniform(0.0, 0.03))
        if rng.random() < 0.5:
            for other in scene.proxies:
                other.thaw()
    for proxy in scene.proxies:
        proxy.cut_no_more()
        proxy.thaw()
        proxy.delay_s = 0.001


@pytest.mark.parametrize(
    ("rounds", "most_ticks"), [(3, NEVER_TICKS), pytest.param(60, BACK_TICKS, marks=pytest.mark.deep)]
)
async def test_every_worker_that_starts_amid_faults_is_back_after_the_last_one(
    rounds: int, most_ticks: int, scene: Scene, rng: random.Random
) -> None:
    for number in range(rounds):
        limiters = Limiters(scene, 6)
        try:
            await rage(scene, rng, 12)
            late = await limiters.back(most_ticks)
        finally:
            await limiters.close()
        assert -1 not in late, f"round {number}: {late}"


@asynccontextmanager
async def troubled(proxy: FaultProxy, trouble: str = "dead") -> AsyncIterator[None]:
    """Nobody listens, or ("hung") connections are taken, and nothing comes back."""
    if trouble == "dead":
        await proxy.refuse()
    else:
        proxy.freeze()
    try:
        yield
    finally:
        if trouble == "dead":
            await proxy.accept()
        else:
            proxy.drop()
            proxy.thaw()


@pytest.mark.parametrize("trouble", ["dead", "hung"])
@pytest.mark.parametrize("keeps", [False, True], ids=["another node", "the node with the keys"])
async def test_only_the_node_with_the_keys_matters_and_is_found_again(keeps: bool, trouble: str, scene: Scene) -> None:
    heard, keeper = RecordingObserver(without=["refused"]), scene.keeper
    sick = keeper if keeps else next(server for server in scene.cluster.servers if server is not keeper)
    async with limiter_at(scene, "500ms", heard) as limiter:

        async def is_served() -> bool:
            return (await limiter.hit("user:1", LIMIT)).reason is Reason.OK

        await eventually(is_served)
        before = len(heard.kinds)  # a busy machine connects slowly
        async with troubled(scene.proxy_of(sick), trouble):
            served = [await is_served() for _ in range(10)]
            assert served == [not keeps] * 10
        await eventually(is_served)
    told = [kind for kind in heard.kinds[before:] if kind != "store_late"]
    assert told[:1] + told[-1:] == (["store_failed", "store_recovered"] if keeps else [])


async def test_while_the_slot_moves_bans_and_counts_go_along(scene: Scene) -> None:
    source = scene.keeper
    target = next(server for server in scene.cluster.servers if server is not source)
    slot = scene.cluster.slot_of("slidegate")
    async with limiter_at(scene, "10s", RecordingObserver()) as limiter:
        assert (await limiter.hit("user:1", LIMIT)).remaining == 999
        await limiter.ban("198.51.100.7", "1h")
        with scene.cluster.migrating(slot, target):
            assert (await limiter.hit("user:1", LIMIT)).remaining == 998
        assert (await limiter.hit("user:1", LIMIT)).remaining == 997
        await limiter.ban("198.51.100.8", "1h")
        assert {found.key async for found in limiter.bans()} == {"198.51.100.7", "198.51.100.8"}
        scene.cluster.move_slot(slot, source)
        assert (await limiter.hit("198.51.100.7", LIMIT)).reason is Reason.BANNED
        await limiter.unban("198.51.100.7")
        assert (await limiter.hit("198.51.100.7", LIMIT)).allowed
