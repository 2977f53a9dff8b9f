"""The bans of a Redis store: the commands of users, the refusal of requests, and polling for changes.

The ban of a key is beside its windows, see ``lua/banned.lua``, and the windows script
reads the bans of a request's keys when it decides the request. Strikes are charged by the same script, to windows of
their own. Only when one is full, a second call puts the ban, unless another worker was faster.

The bans of networks are a short list. Every worker keeps a copy, polls its version once a second, and reads it again
when the version has changed. A sorted set of all banned keys, by end, counts and lists the bans.

The poll also returns the identity of the data, called its life. It changes when Redis has lost its data; a worker then
reports how many bans it knew of. Once a minute it looks whether Redis evicts keys, and so limits and bans.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ...core.bans.ban import Ban, BanSubject, longest
from ...core.bans.events import banned, bans_full, shadow_banned, unbanned
from ...core.bans.networks import MAX_NETWORKS, BannedNetworks, too_many_networks
from ...core.bans.policy import BanPolicy
from ...core.bans.rows import ExportedBan, from_rows
from ...core.bans.strikes import Level, next_ban
from ...core.errors import StoreUnavailable
from ...core.events import Event
from ...core.logs import Throttle
from ...core.store import COMMAND_DEADLINE_S, BanStore
from ..ban_book import LOG_EVERY_US
from ..shared import in_steps
from .clock import monotonic_us
from .script import PEEK, Packed, command, level_field, pack_ban, pack_level, strikes_field, unpack_ban, unpack_level

if TYPE_CHECKING:
    from .store import RedisStore

CHUNK: Final = 100
"""How many bans are read or written in one step, which blocks an event loop, or Redis, for about a millisecond."""
LOOK_EVERY_US: Final = 60_000_000
"""How often to look whether Redis evicts keys: somebody may change that while it runs."""
_MADE, _FULL = 1, 2


class RedisBans(BanStore):
    """Bans for all hosts; made by `RedisStore`.

    Args:
        store: The store.

    Attributes:
        networks: The bans of networks, as last read from Redis.
        version: The version of `networks`; they are read again when Redis reports another one, and the first time.
        life: The identity of the data; empty until Redis has reported it.
    """

    def __init__(self, store: RedisStore) -> None:
        self._packing, meta = store.packing, store.packing.meta
        self.networks = BannedNetworks()
        self._rows: dict[bytes, Ban] = {}
        self._look_us = 0
        """When it is looked next whether Redis evicts keys (monotonic)."""
        self._policy = b""
        """Which keys Redis evicts when it is full, as it has said last."""
        self._store = store
        self._batcher = store.batcher
        self._tell = store.observers.tell
        self._names = meta, meta + b":index", meta + b":networks"
        self._throttle = Throttle(LOG_EVERY_US)
        self.version = b"?"
        self._count = 0
        self.life = b""

    # -- commands of users ------------------------------------------------------------------------------------------

    async def find(self, subjects: Sequence[BanSubject], deadline_s: float = COMMAND_DEADLINE_S) -> Ban | None:
        """Return the longest-lasting ban in force on any of `subjects`; None if there is none. Changes nothing."""
        keys = dict.fromkeys(subject for subject in subjects if isinstance(subject, str))
        _, own = await asyncio.gather(self.hear(), self._of_keys(keys))  # in one call
        return longest([*own, *self.of_networks(subjects)])

    async def strike(
        self, policy: BanPolicy, key: str, weight: int, reason: str, deadline_s: float = COMMAND_DEADLINE_S
    ) -> Ban | None:
        """Count strikes, and ban the key if its window is full; return the new ban, if any.

        If the connection breaks, the strikes may be lost.
        """
        batcher = self._batcher()
        if not self.life:  # nothing is known of networks yet
            await self.hear()
        if self.of_networks((key,)):
            return None

        def read(answer: Any, now_us: int) -> Any:
            units, level = answer
            is_full = units >= policy.after.amount
            return (level, *next_ban(policy, key, reason, unpack_level(level), now_us)) if is_full else None

        (limit,) = policy.strikes.limits
        packed = self._packing.limit(policy.strikes, limit, key)
        args = b"strike", packed, level_field(policy), int(policy.shadow), weight
        due = await batcher.command(self._packing.names_of(key), *args, read=read)
        return due and await self._ban_next(policy, *due)

    async def _ban_next(self, policy: BanPolicy, before: bytes, made: Ban, after: Level) -> Ban | None:
        """Ban a key whose window of strikes is full; return None if another worker was faster, or there is no room.

        Args:
            policy: The policy.
            before: The stored level of the key.
            made: The ban.
            after: The level that the ban leaves.
        """
        key, row = made.key, b"" if policy.shadow else pack_ban(made)
        fields = strikes_field(policy), level_field(policy)
        args = key.encode(), row, *fields, before, pack_level(after), self._store.max_bans
        names = *self._names, *self._packing.names_of(key)
        result = await self._batcher().command(names, b"put_next", *args)
        if result == _MADE:
            self._store.refusals.ban(key)
            self._tell((shadow_banned if policy.shadow else banned)(made))
        elif result == _FULL and self._throttle.left_out("bans_full", monotonic_us()) is not None:
            self._tell(bans_full(self._store.max_bans, key))
        return made if result == _MADE and not policy.shadow else None

    async def ban(self, key: str, length_us: int | None, reason: str, by: str) -> Ban:
        """Ban a key manually, permanently if `length_us` is None; replaces a ban of the key."""
        now_us = await self._batcher().server_us()
        made = Ban(key, reason, by, 0, now_us, None if length_us is None else now_us + length_us)
        await self._put([made], replaces=True)
        self._tell(banned(made))
        return made

    async def unban(self, key: str, by: str) -> bool:
        """Lift the ban of exactly this key, and delete its strikes and levels; False if it had none of these."""
        names = *self._names, *self._packing.names_of(key)

        def read(answer: Any, now_us: int) -> tuple[Ban | None, bool, bool]:
            own, network, remembered = answer
            bans = [unpack_ban(row) for row in (own, network) if row]
            return longest(bans, now_us), network != b"", remembered > 0

        args = b"unban", key.encode(), os.urandom(8)
        ban, was_network, was_remembered = await self._batcher().command(names, *args, read=read)
        self._store.refusals.change_all()
        if was_network:
            await self.hear()
        if ban is not None:
            self._tell(unbanned(ban, by))
        return bool(ban or was_remembered)

    async def active(self) -> list[Ban]:
        """Return the bans in force."""
        await self.hear()
        now_us = self._store.time.now_us()
        found = [ban for ban in self.networks.bans.values() if not ban.is_over(now_us)]
        async for some in in_steps(await self._banned_keys(), CHUNK):
            found += await self._of_keys(some)
        return found

    async def _banned_keys(self) -> list[str]:
        """Return the banned keys, which are read in pages."""
        keys: dict[str, None] = {}

        def read(answer: Any, now_us: int) -> bytes:
            following: bytes
            following, page = answer
            keys.update(dict.fromkeys(key.decode() for key in page))
            return following

        cursor = await self._batcher().command(self._names, b"keys", 0, read=read)
        while cursor != b"0":
            cursor = await self._batcher().command(self._names, b"keys", cursor, read=read)
        return [*keys]

    def count(self) -> int:
        """Return how many banned keys Redis last reported: those in force, and some that have ended since."""
        return self._count

    async def load(self, rows: Sequence[ExportedBan]) -> int:
        """Import rows of `core.bans.rows`; of two that replace each other the longer one is kept."""
        now_us = await self._batcher().server_us()
        bans = await asyncio.to_thread(_networks_first, rows, now_us)  # 100,000 would take the event loop half a second
        async for some in in_steps(bans, CHUNK):
            await self._put(some)
        return len(bans)

    # -- news --------------------------------------------------------------------------------------------------------

    def hear(self) -> Awaitable[int]:
        """Poll for changes: the number of bans, the bans of networks, and the identity of the data."""
        return self._batcher().hear()

    def news(self) -> Packed:
        """Pack the poll."""
        begins = os.urandom(8).hex().encode() if self._store.create else b""
        now_us = monotonic_us()
        looks = not self.life or now_us >= self._look_us
        if looks:
            self._look_us = now_us + LOOK_EVERY_US
        return command(self._names, b"news", begins, int(looks), self.version, self._packing.naming)

    def apply_news(self, answer: Sequence[Any], now_us: int) -> None:
        """Take in the answer to the poll.

        Raises:
            StoreUnavailable: The store begins nothing, and Redis has no slidegate data, or names that others make.
        """
        count, life, policy, version, rows, naming = answer
        before, self.life = self.life, b""
        if not self._store.create:
            self._check_data(life, naming)
        self.life = life
        if policy:
            self._tell_of_eviction(policy)
        known, self._count = self._count, count
        if before not in (b"", life):
            message = f"Redis lost its data: counts restart from zero; {known} known bans were lost"
            self._tell(Event("store_reset", message, {"bans": known}))
        if version != self.version:
            self._take_networks(rows[1::2])
            self.version = version
            self._store.refusals.change_all()

    def _check_data(self, life: bytes, naming: bytes) -> None:
        """Check that there is data of workers, whose names of keys this store would make, too."""
        name = self._names[0].decode()
        if not life:
            raise StoreUnavailable(
                f"redis: no slidegate data under {name}; the first worker creates it; check the database and the prefix"
            )
        if naming not in (b"", self._packing.naming):
            raise StoreUnavailable(
                f"redis: the workers of {name} have another secret, or readable=True, and so other names for keys; set "
                "SLIDEGATE_SECRET, or the options of the address, to those of the application"
            )

    def _tell_of_eviction(self, policy: bytes) -> None:
        """Tell that Redis evicts keys when it is full, once until that is another policy."""
        before, self._policy = self._policy, policy
        if policy in (before, b"noeviction"):
            return
        evicts = f"Redis evicts keys when it is full (maxmemory-policy {policy.decode()})"
        message = f"{evicts}, so limits and bans are lost; set maxmemory-policy noeviction"
        self._tell(Event("store_evicts", message, {"policy": policy.decode()}))

    def _take_networks(self, rows: Sequence[bytes]) -> None:
        """Replace the bans of networks; of a thousand, only those are unpacked that are new."""
        before, bans = self._rows, dict[bytes, Ban]()
        for row in rows:
            bans[row] = before.get(row) or unpack_ban(row)
        self._rows, self.networks = bans, BannedNetworks(bans.values())

    # -- commands for Redis ------------------------------------------------------------------------------------------

    async def _put(self, bans: Sequence[Ban], replaces: bool = False) -> None:
        """Store bans in one call; each replaces every ban of its key, or a shorter one of the same key and `network()`.

        Raises:
            ConfigurationError: Too many networks are banned.
        """
        names, now_us = [*self._names], self._store.time.now_us()
        args: list[bytes | int] = [os.urandom(8), int(replaces)]
        networks = {ban.key for ban in bans if ban.network() is not None}
        if networks:
            await self.hear()
            known = {key for key, ban in self.networks.bans.items() if not ban.is_over(now_us)}
            if len(known | networks) > MAX_NETWORKS:
                raise too_many_networks(min(networks - known))
        for ban in bans:
            names.append(self._packing.name_of(ban.key))
            args += [ban.key.encode(), pack_ban(ban), int(ban.network() is not None)]
        await self._batcher().command(names, b"put", *args)
        self._store.refusals.change_all()
        if networks:
            await self.hear()

    def _of_keys(self, keys: Iterable[str]) -> asyncio.Future[list[Ban]]:
        """Return the bans in force of some keys, read in one call: those that would refuse a question about them."""
        batcher = self._batcher()
        pack = partial(self._packing.question, PEEK, (), keys, batcher.permits)
        return batcher.request(pack, lambda answer, now_us: [*map(unpack_ban, answer[1:])])

    def of_networks(self, subjects: Iterable[BanSubject]) -> list[Ban]:
        """Return the bans of networks in force that this worker knows and that refuse some of `subjects`."""
        networks = self.networks
        if not networks.bans:
            return []
        found: list[Ban] = []
        for one in subjects:
            found += networks.of(one)
        now_us = self._store.time.now_us()
        return [ban for ban in found if not ban.is_over(now_us)]


def _networks_first(rows: Sequence[ExportedBan], now_us: int) -> list[Ban]:
    """Return the bans of an export. Those of networks are first, because there may be too many."""
    bans = from_rows(rows, now_us)
    bans.sort(key=lambda ban: ban.network() is None)
    return bans
