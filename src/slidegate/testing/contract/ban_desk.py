"""The bans of a store on a desk: what the tests of the store contract about bans are written with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ...core.addresses import parse_address
from ...core.bans.in_force import Ban, Guarded
from ...core.bans.policy import BanPolicy
from ...core.decision import Decision
from ..observers import RecordingObserver
from .desk import SECOND_US, Desk, bucket
from .player import settle

HOUR_US = 3_600 * SECOND_US
POLICY = BanPolicy("3/minute", "10m", factor=2, jitter=0, forgive="1h")


class BanDesk:
    """The bans of a store on a desk, with every method awaited."""

    def __init__(self, desk: Desk) -> None:
        self.clock = desk.clock
        self.store = desk.store
        self.heard = RecordingObserver()
        self.store.observe(self.heard)

    async def hit(self, client: str, cost: int = 1) -> Decision:
        """Send a request of an address or key."""
        parsed = parse_address(client)
        guarded: tuple[Guarded, ...] = () if parsed is None else (parsed,)
        return await settle(self.store.hit(((bucket("100/400d"), client, cost),), guarded))

    async def strike(self, key: str, times: int = 1, policy: BanPolicy = POLICY, prefix: str = "") -> Ban | None:
        """Strike a key several times, and return the ban that the last strike made."""
        made = None
        for _ in range(times):
            made = await settle(self.store.bans.strike(policy, key, 1, "refused", prefix))
        return made

    async def ban(self, key: str, length_us: int | None = HOUR_US) -> Ban:
        """Ban by hand."""
        return await settle(self.store.bans.ban(key, length_us, "by request", "ann"))

    async def unban(self, key: str) -> bool:
        """Take a ban back."""
        return await settle(self.store.bans.unban(key, "bob"))

    async def banned(self) -> list[str]:
        """Return the keys of the bans in force."""
        return sorted(ban.key for ban in await settle(self.store.bans.active()))

    async def dump(self) -> Sequence[Any]:
        """Return what the store knows, after a way through JSON."""
        rows: Sequence[Any] = json.loads(json.dumps(list(await settle(self.store.bans.dump()))))
        return rows
