"""Servers that evict keys when they are full, so that limits and bans are forgotten."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from ...core.errors import StoreError
from ...core.store import Event
from .link import Connection

KEEPS: Final = "noeviction"


class Eviction:
    """Looks at the policy of servers, and tells of each that evicts, once.

    Args:
        tell: Passes events on.

    Attributes:
        found: Which server evicts by which policy; empty where none does, as far as is known.
    """

    def __init__(self, tell: Callable[[Sequence[Event]], None]) -> None:
        self._tell = tell
        self._told: set[tuple[str, str]] = set()
        self.found = ""

    async def look(self, connection: Connection) -> None:
        """Look at the policy of a server. A user who may not ask for it finds nothing."""
        said: object = b""
        with suppress(StoreError):
            said = await connection.ask(b"INFO", b"memory")
        text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        rows = (row.partition(":") for row in text.splitlines())
        known = {name: value for name, _, value in rows}
        policy, most = known.get("maxmemory_policy", KEEPS), known.get("maxmemory", "0")
        if policy == KEEPS or most == "0" or (connection.name, policy) in self._told:
            return
        self._told.add((connection.name, policy))
        self.found = f"{connection.name} evicts keys when it is full (maxmemory-policy {policy})"
        message = f"redis: {self.found}: limits and bans that it evicts are forgotten; set {KEEPS}"
        self._tell((Event("store_evicts", message, {"server": connection.name, "policy": policy}),))
