"""How a store connects to its servers."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio.sentinel import SentinelConnectionPool

from .eviction import Eviction
from .link import Connection, Settings, open_connection
from .script import BANS_SCRIPT, WINDOWS_SCRIPT
from .sentinels import open_master


class Server:
    """Where a store connects to, and what is done there first.

    Args:
        client: The client of redis-py, which says where to connect and how.
        timeout_s: How long a server may take to be connected to, and later to answer.
        eviction: Finds out whether a server evicts keys.
    """

    def __init__(self, client: Any, timeout_s: float, eviction: Eviction) -> None:
        self.client = client
        self.timeout_s = timeout_s
        self._eviction = eviction

    async def open_server(self) -> Connection:
        """Connect to the only server, or to the master that sentinels name.

        Raises:
            StoreError: That failed.
        """
        pool = self.client.connection_pool
        if isinstance(pool, SentinelConnectionPool):
            return await open_master(pool, self.timeout_s, self.open)
        return await self.open(pool.make_connection())

    async def open(self, settings: Settings, name: str = "", address: tuple[str, int] | None = None) -> Connection:
        """Connect to a server; see `open_connection`."""
        return await open_connection(settings, self.timeout_s, name, address)

    async def prepare(self, connection: Connection) -> None:
        """Have a server learn the scripts, and look whether it evicts keys.

        Raises:
            StoreError: That failed.
        """
        loads = [connection.ask(b"SCRIPT", b"LOAD", script.source) for script in (WINDOWS_SCRIPT, BANS_SCRIPT)]
        await asyncio.gather(*loads, self._eviction.look(connection))
