"""A cluster whose connections are late, stall and are reset, whose nodes die, and whose slots are on their way.

Every node is reached through a proxy, and tells clients the proxy's port.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any, Final

import pytest
from redis.crc import key_slot

from slidegate import BanPolicy, Limiter
from slidegate.core import Reason, StoreUnavailable
from slidegate.stores.redis import RedisStore
from slidegate.testing import RecordingObserver

from ...fault_proxy import FaultProxy
from ...redis_servers import BOUND_S, RedisCluster, RedisServer, needs_redis

pytestmark = [needs_redis, pytest.mark.all]

TICK_S: Final = 0.02
LIMIT: Final = "1000/hour"


@pytest.fixture(scope="module")
def nodes() -> Iterator[RedisCluster]:
    with RedisCluster(fronted=True) as cluster:
        yield cluster


class Scene:
    """A cluster and the proxies before its nodes."""

    def __init__(self, cluster: RedisCluster, proxies: list[FaultProxy]) -> None:
        self.cluster, self.proxies = cluster, proxies
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)

    def key_on(self, server: RedisServer, number: int = 0) -> str:
        """Return a client whose windows are on a server; stores have to be readable."""
        rows = server.command("CLUSTER", "SLOTS")
        mine = [
            (low, high) for low, high, (_, _, node, *_), *_ in rows if node.decode() == self.cluster.node_id(server)
        ]
        slots = {key: key_slot(key.encode()) for key in (f"user:{number}" for number in range(1_000))}
        found = (key for key, slot in slots.items() if any(low <= slot <= high for low, high in mine))
        return next(key for at, key in enumerate(found) if at == number)

    @property
    def keeper(self) -> RedisServer:
        """The server with the bans."""
        return self.cluster.owner(self.cluster.slot_of("slidegate:7:{bans}"))

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


# -- one node, one slot, one key -------------------------------------------------------------------------------------


class Site:
    """A limiter that denies what the store does not decide, and one client on each node."""

    def __init__(self, scene: Scene, **options: Any) -> None:
        self.heard = RecordingObserver(without=["refused", "near_limit"])
        self.store = RedisStore(scene.url, readable=True)
        self.limiter = Limiter(
            self.store, secret=b"s" * 32, on_error="deny", observers=[self.heard], **{"deadline": "200ms", **options}
        )
        self.keys = {server: scene.key_on(server) for server in scene.cluster.servers}

    async def ready(self) -> None:
        """Come back when the store answers for every node: a busy machine connects slowly."""
        async with asyncio.timeout(BOUND_S):
            while True:
                if set((await self.served()).values()) == {1}:
                    return
                await asyncio.sleep(TICK_S)

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
async def dead(proxy: FaultProxy) -> AsyncIterator[None]:
    """Nobody listens."""
    await proxy.refuse()
    try:
        yield
    finally:
        await proxy.accept()


@asynccontextmanager
async def hung(proxy: FaultProxy) -> AsyncIterator[None]:
    """Connections are taken, and nothing comes back."""
    proxy.freeze()
    try:
        yield
    finally:
        proxy.drop()
        proxy.thaw()


TROUBLES: Final[dict[str, Callable[[FaultProxy], AbstractAsyncContextManager[None]]]] = {"dead": dead, "hung": hung}


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
        async with TROUBLES[trouble](scene.proxy_of(sick)):
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
    assert {"store_failed", "store_recovered"} <= set(site.heard.kinds)


# -- the slot of the bans is on its way ------------------------------------------------------------------------------
