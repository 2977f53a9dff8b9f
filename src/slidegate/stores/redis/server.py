"""Connecting to a server, and preparing it for the store."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from redis.asyncio.sentinel import SentinelConnectionPool

from ...core.errors import StoreError
from ...core.store import Event
from .link import Connection, open_connection
from .script import BANS_SCRIPT, WINDOWS_SCRIPT
from .sentinels import open_master

_KEEPS: Final = "noeviction"
_POLICY: Final = re.compile(r"^maxmemory_policy:([a-z-]+)", re.MULTILINE)
_BOUNDED: Final = re.compile(r"^maxmemory:[1-9]", re.MULTILINE)


class Server:
    """Opens and prepares the connections of a store.

    Args:
        client: The client of redis-py, which has the connection settings.
        timeout_s: How long connecting, and later each answer, may take.
        tell: Emits events.
    """

    def __init__(self, client: Any, timeout_s: float, tell: Callable[[Sequence[Event]], None]) -> None:
        self.client = client
        self.timeout_s = timeout_s
        self._tell = tell
        self._told: set[tuple[str, str]] = set()

    async def open(self) -> Connection:
        """Connect to the server, or to the master that sentinels name.

        Raises:
            StoreError: It cannot be reached.
        """
        pool = self.client.connection_pool
        if isinstance(pool, SentinelConnectionPool):
            return await open_master(pool, self.timeout_s)
        return await open_connection(pool.make_connection(), self.timeout_s)

    async def prepare(self, connection: Connection) -> None:
        """Load the scripts into a server, and check whether it evicts keys, and so limits and bans, when it is full.

        Raises:
            StoreError: The server did not load the scripts.
        """
        loads = [connection.ask(b"SCRIPT", b"LOAD", script.source) for script in (WINDOWS_SCRIPT, BANS_SCRIPT)]
        await asyncio.gather(*loads, self._look_for_eviction(connection))

    async def _look_for_eviction(self, connection: Connection) -> None:
        """Read a server's eviction policy, and report it once. If the user may not run INFO, nothing is reported."""
        said: object = b""
        with suppress(StoreError):
            said = await connection.ask(b"INFO", b"memory")
        text = said.decode(errors="replace") if isinstance(said, bytes) else ""
        found = _POLICY.search(text)
        if found is None or found[1] == _KEEPS or not _BOUNDED.search(text):
            return
        server, policy = connection.name, found[1]
        if (server, policy) not in self._told:
            self._told.add((server, policy))
            evicts = f"{server} evicts keys when it is full (maxmemory-policy {policy})"
            message = f"redis: {evicts}, so limits and bans are lost; set maxmemory-policy {_KEEPS}"
            self._tell((Event("store_evicts", message, {"server": server, "policy": policy}),))
