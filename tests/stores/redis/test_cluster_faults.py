"""A cluster whose connections are late, stall and are reset, whose nodes die, and whose slots are on their way.

Every node is reached through a proxy, and tells clients the proxy's port.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from typing import Final

import pytest
from redis.crc import key_slot

from slidegate import BanPolicy, Limiter
from slidegate.core import Reason, StoreUnavailable
from slidegate.stores.redis import RedisStore
from slidegate.testing import RecordingObserver

from ...fault_proxy import FaultProxy
from ...redis_servers import BOUND_S, RedisCluster, RedisServer, needs_redis
from .stores import eventually

pytestmark = [needs_redis, pytest.mark.all]

TICK_S: Final = 0.02
BACK_TICKS: Final = 100
"""Two seconds: every worker is back by then after the last fault."""
NEVER_TICKS: Final = 3_000
"""A minute: a worker that is not back by then never will be. On a busy machine many requests outlast their deadline."""
LIMIT: Final = "1000/hour"
PLENTY: Final = "1000000/hour"


@pytest.fixture(scope="module")
def nodes() -> Iterator[RedisCluster]:
    with RedisCluster(fronted=True) as cluster:
        yield cluster


class Scene:
    def __init__(self, cluster: RedisCluster, proxies: list[FaultProxy]) -> None:
        self.cluster, self.proxies = cluster, proxies
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)

    def key_on(self, server: RedisServer, key: str = "user:{}") -> str:
        """Return a client whose windows are on a server; stores have to be readable."""
        keys = (key.format(number) for number in range(1, 250))
        return next(key for key in keys if self.cluster.owner(key_slot(key.encode())) is server)

    @property
    def keeper(self) -> RedisServer:
        return self.cluster.owner(self.cluster.slot_of("slidegate:9:{bans}"))

    def proxy_of(self, server: RedisServer) -> FaultProxy:
        return self.proxies[self.cluster.servers.index(server)]


@pytest.fixture
async def scene(nodes: RedisCluster) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        proxies = [FaultProxy(server.port) for server in nodes.servers]
        for server, proxy in zip(nodes.servers, proxies, strict=True):
            server.command("FLUSHALL")
            assert server.front is not None
            proxy.port = server.front
            await stack.enter_async_context(proxy)
        yield Scene(nodes, proxies)


def limiter_at(scene: Scene, deadline: str, heard: RecordingObserver) -> Limiter:
    """Return a limiter that denies what the store does not decide."""
    store = RedisStore(scene.url, readable=True)
    return Limiter(store, secret=b"s" * 32, deadline=deadline, on_error="deny", observers=[heard])


class Limiters:
    """Limiters as workers have them, at work from the moment when they are made."""

    def __init__(self, scene: Scene, count: int) -> None:
        self.all = [limiter_at(scene, "50ms", RecordingObserver()) for _ in range(count)]
        self.keys = [scene.key_on(server) for server in scene.cluster.servers]
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


class Site:
    def __init__(self, scene: Scene, deadline: str = "200ms") -> None:
        self.heard = RecordingObserver(without=["refused"])
        self.limiter = limiter_at(scene, deadline, self.heard)
        self.keys = {server: scene.key_on(server) for server in scene.cluster.servers}

    async def ready(self) -> None:
        """Come back when the store answers for every node: a busy machine connects slowly."""

        async def all_are_served() -> bool:
            return set((await self.served()).values()) == {1}

        await eventually(all_are_served)

    async def refuses(self, key: str) -> bool:
        return (await self.limiter.hit(key, PLENTY, cost=0)).reason is Reason.BANNED

    async def served(self, count: int = 1) -> dict[RedisServer, int]:
        """Return how many of so many requests at the same time for each node were decided by the store."""
        asked = [(server, key) for server, key in self.keys.items() for _ in range(count)]
        async with asyncio.timeout(BOUND_S):
            decisions = await asyncio.gather(*(self.limiter.hit(key, LIMIT) for _, key in asked))
        found = dict.fromkeys(self.keys, 0)
        for (server, _), decision in zip(asked, decisions, strict=True):
            found[server] += decision.reason is not Reason.UNAVAILABLE
        return found


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


@pytest.mark.parametrize(
    ("trouble", "keeps_bans"),
    [
        pytest.param("dead", False, id="dead, without bans"),
        pytest.param("hung", True, id="hung, with the bans"),
        pytest.param("dead", True, id="dead, with the bans", marks=pytest.mark.deep),
        pytest.param("hung", False, id="hung, without bans", marks=pytest.mark.deep),
    ],
)
async def test_one_node_of_three_takes_nobody_else_off_the_store(trouble: str, keeps_bans: bool, scene: Scene) -> None:
    keeper = scene.keeper
    sick = keeper if keeps_bans else next(server for server in scene.cluster.servers if server is not keeper)
    site = Site(scene, deadline="500ms")
    async with site.limiter:
        await site.ready()
        async with troubled(scene.proxy_of(sick), trouble):
            # More than a second, after which the list of bans is old.
            for _ in range(25):
                found = await site.served(4)
                assert found.pop(sick) == 0
                assert set(found.values()) == {4}, "a node that is well decides"
                await asyncio.sleep(0.05)
            # What a strike counts follows the policy, and limits go on.
            with pytest.raises(StoreUnavailable) if keeps_bans else nullcontext():
                assert await site.limiter.strike("user:1", BanPolicy("1/1h", "1h"))
        await site.ready()
        assert set((await site.served(5)).values()) == {5}
    assert ("bans_unread" in site.heard.kinds) is keeps_bans
    assert ("store_late" if trouble == "hung" else "store_error") in site.heard.kinds
    assert "store_failed" not in site.heard.kinds


@pytest.mark.parametrize("banned", ["198.51.100.0/24", "each client"])
async def test_bans_hold_for_clients_of_other_nodes_while_the_node_with_the_bans_is_gone(
    banned: str, scene: Scene
) -> None:
    site = Site(scene)
    clients = {server: scene.key_on(server, "198.51.100.{}") for server in scene.cluster.servers}
    own = clients.pop(scene.keeper)
    async with site.limiter:
        await site.ready()
        for target in (banned,) if "/" in banned else (own, *clients.values()):
            await site.limiter.ban(target, "1h")
        for client in (own, *clients.values()):
            await eventually(partial(site.refuses, client))
        async with troubled(scene.proxy_of(scene.keeper)):
            for _ in range(30):
                for client in clients.values():
                    assert (await site.limiter.hit(client, LIMIT)).reason is Reason.BANNED
                await asyncio.sleep(0.05)
            assert (await site.limiter.hit(own, LIMIT)).reason is Reason.UNAVAILABLE, "nobody knows of its ban"
        await eventually(partial(site.refuses, own))


@pytest.mark.parametrize("some_have_gone", [False, True])
async def test_while_the_slot_of_the_bans_moves_limits_go_on_and_commands_wait(
    some_have_gone: bool, scene: Scene
) -> None:
    site = Site(scene)
    source = scene.keeper
    target = next(server for server in scene.cluster.servers if server is not source)
    slot = scene.cluster.slot_of("slidegate:9:{bans}")
    async with site.limiter:
        await site.ready()
        await site.limiter.ban("198.51.100.7", "1h")
        with scene.cluster.migrating(slot, target):
            if some_have_gone:
                source.command("MIGRATE", "127.0.0.1", target.port, "slidegate:9:{bans}:list", 0, 5_000)
            for _ in range(15):
                assert set((await site.served(3)).values()) == {3}
                await asyncio.sleep(0.1)
            ban = asyncio.create_task(site.limiter.ban("198.51.100.8", "1h"))
            await asyncio.sleep(0.1)
            assert not ban.done(), "some of its keys are here and some there"
        async with asyncio.timeout(BOUND_S):
            await ban
            assert {found.key async for found in site.limiter.bans()} == {"198.51.100.7", "198.51.100.8"}
        assert set((await site.served(3)).values()) == {3}
        scene.cluster.move_slot(slot, source)
        await eventually(partial(site.refuses, "198.51.100.7"))
        await site.limiter.unban("198.51.100.7")
        assert (await site.limiter.hit("198.51.100.7", LIMIT)).allowed
