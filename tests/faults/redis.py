"""The faults of Redis: servers, clusters and sentinels of their own, and the wire to them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from ..redis_servers import ReplicaPair, Sentinel, until
from ..stores.redis.faults import Deployment, on_a_cluster, on_a_server
from .playing import STOPPED_S, Scene, SceneMaker

LATE_S: Final = 0.012


def scene(
    fault: Callable[[Deployment], Awaitable[None]],
    where: Any = on_a_server,
    *,
    by_proxy: bool = True,
    **of_the_scene: Any,
) -> SceneMaker:
    @asynccontextmanager
    async def made() -> AsyncIterator[Scene]:
        async with where() as deployment:
            yield Scene(
                deployment.url if by_proxy else deployment.server.url, lambda: fault(deployment), **of_the_scene
            )

    return made


async def stopped(deployment: Deployment) -> None:
    """Stop the last server: of a cluster, not that with the keys of the store, which alone matters."""
    deployment.servers[-1].pause()
    await asyncio.sleep(STOPPED_S)
    deployment.servers[-1].resume()


async def restarted(deployment: Deployment) -> None:
    deployment.server.kill()
    await asyncio.to_thread(deployment.server.start)


async def scripts_forgotten(deployment: Deployment) -> None:
    for _ in range(5):
        deployment.server.command("SCRIPT", "FLUSH")
        await asyncio.sleep(0.1)


def resets(every_s: float, late_s: float) -> Callable[[Deployment], Awaitable[None]]:
    """Reset all connections again and again for two seconds; answers are late, and stay so."""

    async def fault(deployment: Deployment) -> None:
        for proxy in deployment.proxies:
            proxy.delay_s = late_s
        for _ in range(round(2 / every_s)):
            for proxy in deployment.proxies:
                proxy.drop()
            await asyncio.sleep(every_s)

    return fault


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
    "stopped 1.5 s (SIGSTOP)": scene(stopped, by_proxy=False),
    "killed and restarted": scene(restarted, by_proxy=False, lives=2, keeps_bans=False),
    "NOSCRIPT five times": scene(scripts_forgotten, by_proxy=False),
    "resets each 50 ms": scene(resets(0.05, 0.0)),
    "resets, answers 12 ms late": scene(resets(0.05, LATE_S)),
    "cluster: resets each 12 ms": scene(resets(LATE_S, LATE_S), on_a_cluster),
    "cluster: one master stopped": scene(stopped, on_a_cluster),
    "sentinels promote": sentinels_that_promote,
}
