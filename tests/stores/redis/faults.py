"""Faults of Redis, done to a real server and the wire to it, and put right afterwards."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

import redis

from slidegate.core.errors import StoreError, StoreTimeout, StoreUnavailable

from ...fault_proxy import FaultProxy
from ...redis_servers import RedisServer, until, version_of


@dataclass
class Place:
    """A server, and the proxy that stores reach it through."""

    server: RedisServer
    proxy: FaultProxy

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.proxy.port}/0"


Fault: TypeAlias = Callable[[Place], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def refused(place: Place) -> AsyncIterator[None]:
    """Nobody listens."""
    await place.proxy.refuse()
    try:
        yield
    finally:
        await place.proxy.accept()


@asynccontextmanager
async def killed(place: Place) -> AsyncIterator[None]:
    """The process is gone with SIGKILL; another comes, and has forgotten everything."""
    place.server.kill()
    try:
        yield
    finally:
        place.server.start()


@asynccontextmanager
async def hanging(place: Place) -> AsyncIterator[None]:
    """The process is stopped; the kernel takes bytes that are sent to it."""
    place.server.pause()
    try:
        yield
    finally:
        place.server.resume()


@asynccontextmanager
async def half_open(place: Place) -> AsyncIterator[None]:
    """Connections look alive, and nothing comes back on them, then or later."""
    place.proxy.freeze()
    try:
        yield
    finally:
        place.proxy.drop()
        place.proxy.thaw()


@asynccontextmanager
async def slow(place: Place) -> AsyncIterator[None]:
    """Every answer comes, far too late."""
    place.proxy.delay_s = 30.0
    try:
        yield
    finally:
        place.proxy.delay_s = 0.0


@asynccontextmanager
async def busy(place: Place) -> AsyncIterator[None]:
    """A script of somebody else does not end."""
    place.server.command("CONFIG", "SET", "lua-time-limit", 1)

    def loop() -> None:
        with suppress(redis.ResponseError):  # it is killed in the end
            place.server.command("EVAL", "while true do end", 0)

    thread = threading.Thread(target=loop)
    thread.start()
    until(lambda: _error_of(place, "PING").startswith("BUSY"), "the script is long enough to be called busy")
    try:
        yield
    finally:
        place.server.command("SCRIPT", "KILL")
        thread.join()


@asynccontextmanager
async def out_of_memory(place: Place) -> AsyncIterator[None]:
    """No room is left for anything written, and nothing may be evicted."""
    place.server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    place.server.command("CONFIG", "SET", "maxmemory", 1)
    try:
        yield
    finally:
        place.server.command("CONFIG", "SET", "maxmemory", 0)


@asynccontextmanager
async def read_only(place: Place) -> AsyncIterator[None]:
    """The server has become a replica."""
    place.server.command("REPLICAOF", "127.0.0.1", 1)
    try:
        yield
    finally:
        place.server.command("REPLICAOF", "NO", "ONE")


@asynccontextmanager
async def loading(place: Place) -> AsyncIterator[None]:
    """The server has just started, and reads what it saved."""
    place.server.command("CONFIG", "SET", "rdbcompression", "no")
    place.server.command("DEBUG", "POPULATE", 8_000, "filler", 5_000)
    place.server.command("SAVE")
    place.server.kill()
    # Redis 6.2 looks up from loading every 2 MB, newer ones more often if they are told to.
    often = ("--loading-process-events-interval-bytes", "1024") if version_of(place.server.program) >= (7,) else ()
    place.server.start("--key-load-delay", "300", *often, wait=False)
    until(lambda: _error_of(place, "GET", "key").startswith("LOADING"), "the server loads")
    try:
        yield
    finally:
        place.server.kill()
        (place.server.directory / "dump.rdb").unlink()
        place.server.start()


@asynccontextmanager
async def without_password(place: Place) -> AsyncIterator[None]:
    """The server asks for a password from now on, also on connections that are open."""
    place.server.command("CONFIG", "SET", "requirepass", "hunter2")
    place.server.password = "hunter2"
    place.server.command("CLIENT", "KILL", "TYPE", "normal")
    try:
        yield
    finally:
        place.server.command("CONFIG", "SET", "requirepass", "")
        place.server.password = None


@asynccontextmanager
async def without_permission(place: Place) -> AsyncIterator[None]:
    """The user may not run scripts any more."""
    place.server.command("ACL", "SETUSER", "default", "-@scripting")
    try:
        yield
    finally:
        place.server.command("ACL", "SETUSER", "default", "+@all")


def _error_of(place: Place, *words: str) -> str:
    """Return what the server says instead of an answer."""
    try:
        place.server.command(*words, bound_s=1.0)
    except redis.BusyLoadingError as error:
        return f"LOADING {error}"
    except redis.RedisError as error:
        return str(error)
    return ""


FAULTS: Final[dict[str, tuple[Fault, type[StoreError] | tuple[type[StoreError], ...]]]] = {
    "refused connection": (refused, StoreUnavailable),
    "killed": (killed, StoreUnavailable),
    "hang": (hanging, StoreTimeout),
    "half-open sockets": (half_open, StoreTimeout),
    "slow": (slow, StoreTimeout),
    "BUSY": (busy, StoreUnavailable),
    "OOM": (out_of_memory, StoreUnavailable),
    "READONLY": (read_only, StoreUnavailable),
    "LOADING": (loading, (StoreUnavailable, StoreTimeout)),
    "NOAUTH": (without_password, StoreUnavailable),
    "NOPERM": (without_permission, StoreUnavailable),
}
"""By name: the fault, and what a store raises while it lasts."""
