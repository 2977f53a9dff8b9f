"""The faults of Redis: servers, clusters and sentinels of their own, and the wire to them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from ..fault_proxy import FaultProxy, in_front_of
from ..redis_servers import RedisCluster, RedisServer, ReplicaPair, Sentinel, until
from .playing import STOPPED_S, Scene, SceneMaker

LATE_S: Final = 0.012


async def stopped(server: RedisServer) -> None:
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


async def restarted(server: RedisServer) -> None:
    server.kill()
    await asyncio.to_thread(server.start)


async def scripts_forgotten(server: RedisServer) -> None:
    for _ in range(5):
        server.command("SCRIPT", "FLUSH")
        await asyncio.sleep(0.1)


def on_a_server(fault: Callable[[RedisServer], Awaitable[None]], **of_the_scene: Any) -> SceneMaker:
    @asynccontextmanager
    async def scene() -> AsyncIterator[Scene]:
        with RedisServer() as server:
            yield Scene(server.url, lambda: fault(server), **of_the_scene)

    return scene


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
        async with in_front_of(cluster.servers) as proxies:
            hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
            yield Scene(f"redis+cluster://{hosts}", lambda: resets(proxies, LATE_S, LATE_S))


@asynccontextmanager
async def a_master_of_three_that_stops() -> AsyncIterator[Scene]:
    """Not the one with the keys of the store, which alone matters."""
    with RedisCluster() as cluster:
        keeper = cluster.owner(cluster.slot_of("slidegate"))
        sick = next(server for server in cluster.servers if server is not keeper)
        yield Scene(cluster.url, lambda: stopped(sick))


@asynccontextmanager
async def sentinels_that_promote() -> AsyncIterator[Scene]:
    with ReplicaPair() as pair, Sentinel(pair.master) as sentinel:
        until(lambda: sentinel.command("SENTINEL", "REPLICAS", "mymaster"), "the sentinel knows the replica")

        async def promote() -> None:
            await asyncio.to_thread(pair.wait_copied)
            pair.master.kill()
            await asyncio.to_thread(until, lambda: pair.replica.info("replication")["role"] == "master", "a new master")

        # What comes until the master is killed may be gone.
        yield Scene(f"redis+sentinel://127.0.0.1:{sentinel.port}/mymaster", promote, lives=2)


SCENES: Final[dict[str, SceneMaker]] = {
    "stopped 1.5 s (SIGSTOP)": on_a_server(stopped),
    "killed and restarted": on_a_server(restarted, lives=2, keeps_bans=False),
    "NOSCRIPT five times": on_a_server(scripts_forgotten),
    "resets each 50 ms": connections_that_are_reset(0.0),
    "resets, answers 12 ms late": connections_that_are_reset(LATE_S),
    "cluster: resets each 12 ms": a_cluster_whose_connections_are_reset,
    "cluster: one master stopped": a_master_of_three_that_stops,
    "sentinels promote": sentinels_that_promote,
}
