"""Faults of Redis, done to a real server and the wire to it, and put right afterwards."""

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import redis

from slidegate import StoreError
from slidegate.core import StoreTimeout, StoreUnavailable

from ...contract.player import settle
from ...fault_proxy import FaultProxy
from ...redis_servers import RedisCluster, RedisServer, Sentinel, until, version_of


@dataclass
class Deployment:
    """Where a store has its data: an address, servers, and proxies that lead to them; the first have the data."""

    url: str
    servers: Sequence[RedisServer]
    proxies: Sequence[FaultProxy]

    @property
    def server(self) -> RedisServer:
        return self.servers[0]

    @property
    def proxy(self) -> FaultProxy:
        return self.proxies[0]


@asynccontextmanager
async def on_a_server() -> AsyncIterator[Deployment]:
    with RedisServer() as server:
        async with FaultProxy(server.port) as proxy:
            yield Deployment(f"redis://127.0.0.1:{proxy.port}/0", [server], [proxy])


@asynccontextmanager
async def behind_a_sentinel() -> AsyncIterator[Deployment]:
    async with on_a_server() as deployment:
        with Sentinel(deployment.proxy) as sentinel:
            sentinel.command("SENTINEL", "SET", sentinel.name, "down-after-milliseconds", 600_000)  # faults are short
            yield replace(deployment, url=f"redis+sentinel://127.0.0.1:{sentinel.port}/{sentinel.name}")


@asynccontextmanager
async def on_a_cluster() -> AsyncIterator[Deployment]:
    with RedisCluster(fronted=True) as cluster:
        keeper = cluster.owner(cluster.slot_of("slidegate"))
        servers = sorted(cluster.servers, key=lambda server: server is not keeper)
        async with AsyncExitStack() as stack:
            proxies = [FaultProxy(server.port, server.front) for server in servers]
            for proxy in proxies:
                await stack.enter_async_context(proxy)
            hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
            yield Deployment(f"redis+cluster://{hosts}", servers, proxies)


DEPLOYMENTS: Final = {"server": on_a_server, "sentinel": behind_a_sentinel, "cluster": on_a_cluster}


Fault: TypeAlias = Callable[[Deployment], AbstractAsyncContextManager[None]]
Act: TypeAlias = Callable[[Deployment], object]


def between(begins: Act, ends: Act) -> Fault:
    @asynccontextmanager
    async def fault(deployment: Deployment) -> AsyncIterator[None]:
        await settle(begins(deployment))
        try:
            yield
        finally:
            await settle(ends(deployment))

    return fault


def says(command: str) -> Act:
    return lambda deployment: deployment.server.command(*command.split())


def late(deployment: Deployment, delay_s: float) -> None:
    deployment.proxy.delay_s = delay_s


def drop_and_thaw(deployment: Deployment) -> None:
    deployment.proxy.drop()
    deployment.proxy.thaw()


def take_password(deployment: Deployment, password: str | None) -> None:
    deployment.server.command("CONFIG", "SET", "requirepass", password or "")
    deployment.server.password = password
    if password:
        deployment.server.command("CLIENT", "KILL", "TYPE", "normal")


@asynccontextmanager
async def busy(deployment: Deployment) -> AsyncIterator[None]:
    """A script of somebody else does not end."""
    deployment.server.command("CONFIG", "SET", "lua-time-limit", 1)

    def loop() -> None:
        with suppress(redis.ResponseError):  # it is killed in the end
            deployment.server.command("EVAL", "while true do end", 0)

    thread = threading.Thread(target=loop)
    thread.start()
    until(lambda: _error_of(deployment, "PING").startswith("BUSY"), "the script is long enough to be called busy")
    try:
        yield
    finally:
        deployment.server.command("SCRIPT", "KILL")
        thread.join()


@asynccontextmanager
async def loading(deployment: Deployment) -> AsyncIterator[None]:
    deployment.server.command("CONFIG", "SET", "rdbcompression", "no")
    deployment.server.command("DEBUG", "POPULATE", 12_000, "filler", 5_000)
    deployment.server.command("SAVE")
    deployment.server.kill()
    # Redis 6.2 looks up from loading every 2 MB, newer ones more often by an option.
    often = ("--loading-process-events-interval-bytes", "1024") if version_of(deployment.server.program) >= (7,) else ()
    deployment.server.start("--key-load-delay", "300", *often, wait=False)
    until(lambda: _error_of(deployment, "GET", "key").startswith("LOADING"), "the server loads")
    try:
        yield
    finally:
        deployment.server.kill()
        (deployment.server.directory / "dump.rdb").unlink()
        deployment.server.start()


def _error_of(deployment: Deployment, *words: str) -> str:
    """Return what the server says instead of an answer."""
    try:
        deployment.server.command(*words, bound_s=1.0)
    except redis.BusyLoadingError as error:
        return f"LOADING {error}"
    except redis.RedisError as error:
        return str(error)
    return ""


FAULTS: Final[dict[str, tuple[Fault, type[StoreError] | tuple[type[StoreError], ...]]]] = {
    # Nobody listens.
    "refused connection": (between(lambda at: at.proxy.refuse(), lambda at: at.proxy.accept()), StoreUnavailable),
    # The process is gone with SIGKILL; another comes, and has forgotten everything.
    "killed": (between(lambda at: at.server.kill(), lambda at: at.server.start()), StoreUnavailable),
    # The process is stopped; the kernel takes bytes that are sent to it.
    "hang": (between(lambda at: at.server.pause(), lambda at: at.server.resume()), StoreTimeout),
    # Connections seem to live, and nothing comes back on them, then or later.
    "half-open sockets": (between(lambda at: at.proxy.freeze(), drop_and_thaw), StoreTimeout),
    # Every answer comes, far too late.
    "slow": (between(lambda at: late(at, 30.0), lambda at: late(at, 0.0)), StoreTimeout),
    "BUSY": (busy, StoreUnavailable),
    # No room is left for anything written, and nothing may be evicted.
    "OOM": (between(says("CONFIG SET maxmemory 1"), says("CONFIG SET maxmemory 0")), StoreUnavailable),
    # The server has become a replica.
    "READONLY": (between(says("REPLICAOF 127.0.0.1 1"), says("REPLICAOF NO ONE")), StoreUnavailable),
    "LOADING": (loading, (StoreUnavailable, StoreTimeout)),
    # The server asks for a password from now on, also on connections that are open.
    "NOAUTH": (between(lambda at: take_password(at, "hunter2"), lambda at: take_password(at, None)), StoreUnavailable),
    # The user may not run scripts any more.
    "NOPERM": (between(says("ACL SETUSER default -@scripting"), says("ACL SETUSER default +@all")), StoreUnavailable),
}
"""By name: the fault, and what a store raises while it lasts."""
