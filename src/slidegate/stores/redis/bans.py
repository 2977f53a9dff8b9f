"""The bans of a Redis store: the commands of users, and strikes.

The ban of a key is beside its windows, see ``lua/banned.lua``, and the windows script reads the bans of a request's
keys when it decides the request. Strikes are charged by the same script, to windows of their own. Only when one is
full, a second call puts the ban, unless another worker was faster. A sorted set of all banned keys, by end, counts and
lists the bans. The bans of networks are what a worker polls, see `poll`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from operator import index
from struct import Struct
from typing import Any, Final

from ...core.bans.ban import Ban, BanSubject, longest
from ...core.bans.events import banned, bans_full, shadow_banned, unbanned
from ...core.bans.networks import MAX_NETWORKS, too_many_networks
from ...core.bans.policy import BanPolicy
from ...core.bans.strikes import Level, ban_by_hand, next_ban
from ...core.events import Event
from ...core.logs import Throttle
from ...core.store import COMMAND_DEADLINE_S, BanStore
from ...core.stored import json_of
from ..ban_book import LOG_EVERY_US
from ..shared import digest_of, in_steps
from .batch import Batcher
from .parts import Parts
from .protocol import END, PEEK, read_bans, real_monotonic_us, window_field
from .requests import read_page

CHUNK: Final = 100
"""How many bans are written in one step, which blocks an event loop, or Redis, for about a millisecond; three times as
many are read in one."""
_LEVEL: Final = Struct("<qqI")
_MADE: Final = 1
_FULL: Final = 2
"""Answers of `put_next` in ``lua/bans.lua``; any other one is that another worker was faster."""


class RedisBans(BanStore):
    """Bans for all hosts; made by `RedisStore`.

    Args:
        parts: The parts of the store.
        batcher: Returns the batcher of the running event loop.
        tell: Emits an event.
        max_bans: The most bans in force.
    """

    def __init__(
        self, parts: Parts, batcher: Callable[[], Batcher], tell: Callable[[Event], None], max_bans: int
    ) -> None:
        self._packing = parts.packing
        self._time = parts.time
        self._changes = parts.changes
        self._polled = parts.polled
        self._batcher = batcher
        self._tell = tell
        self._max_bans = max_bans
        self._throttle = Throttle(LOG_EVERY_US)

    # -- commands of users ------------------------------------------------------------------------------------------

    async def find(self, subjects: Sequence[BanSubject], deadline_s: float = COMMAND_DEADLINE_S) -> Ban | None:
        _, of_keys = await asyncio.gather(self._batcher().poll(), self._of_keys(subjects))  # in one call
        return self._polled.longest(subjects, of_keys)

    async def strike(
        self, policy: BanPolicy, key: str, weight: int, reason: str, deadline_s: float = COMMAND_DEADLINE_S
    ) -> Ban | None:
        """Count strikes, and ban the key if its window is full; return the new ban, if any.

        If the connection breaks, the strikes may be lost.
        """

        def read(answer: Any, now_us: int) -> tuple[bytes, Ban, Level] | None:
            """Return the stored level, the ban that is due, and the level after it; None if the window is not full."""
            units, level = answer
            if units < policy.after.amount:
                return None
            return level, *next_ban(policy, key, reason, _unpack_level(level), now_us)

        (limit,) = policy.strikes.limits
        packed = self._packing.pack_limit(policy.strikes, limit, key)
        args = b"strike", key.encode(), packed, digest_of(policy.name), int(policy.shadow), weight
        due = await self._batcher().command(self._names_of(key), *args, read=read)
        if due is None:
            return None
        return await self._ban_next(policy, *due)

    def _ban_next(self, policy: BanPolicy, before: bytes, ban: Ban, after: Level) -> asyncio.Future[Ban | None]:
        """Store a ban that is due; the result is None if another worker was faster, or there is no room."""
        key = ban.key
        row = b""
        if not policy.shadow:
            row = _pack_ban(ban)
        strikes = window_field(policy.strikes, policy.strikes.limits[0])
        level = _LEVEL.pack(after.over_us, after.until_us, after.level)
        args = key.encode(), row, strikes, digest_of(policy.name), before, level, self._max_bans

        def read(result: Any, now_us: int) -> Ban | None:  # also when nobody awaits it any more
            if result == _FULL and self._throttle.left_out("bans_full", real_monotonic_us()) is not None:
                self._tell(bans_full(self._max_bans, key))
            if result != _MADE:
                return None
            self._changes.note((key,))
            if policy.shadow:
                self._tell(shadow_banned(ban))
                return None
            self._tell(banned(ban))
            return ban

        return self._batcher().command(self._names_of(key), b"put_next", *args, read=read)

    async def ban(
        self, key: str, length_us: int | None, reason: str, by: str, deadline_s: float = COMMAND_DEADLINE_S
    ) -> Ban:
        """Ban a key manually, permanently if `length_us` is None; replaces a ban of the key."""
        ban = ban_by_hand(key, length_us, reason, by, await self._batcher().server_us())
        await self._put([ban], replaces=True)
        return ban

    async def unban(self, key: str, by: str) -> bool:
        def read(answer: Any, now_us: int) -> bool:  # also when nobody awaits it any more
            was_remembered, *rows = answer
            self._changes.note()
            ban = longest(read_bans(rows))
            if ban is not None:
                self._tell(unbanned(ban, by))
            return bool(ban or was_remembered)

        had_any: bool = await self._batcher().command(
            self._names_of(key), b"unban", key.encode(), os.urandom(8), read=read
        )
        await self._batcher().poll()
        return had_any

    async def pages(self) -> AsyncIterator[list[Ban]]:
        await self._batcher().poll()
        now_us = self._time.now_us()
        yield [ban for ban in self._polled.networks.bans.values() if not ban.is_over(now_us)]
        seen: set[bytes] = set()  # a page may have keys of an earlier one again
        cursor = b"0"
        while True:
            cursor, keys = await self._batcher().command(self._polled.names, b"keys", cursor, read=read_page)
            new = [key.decode(errors="replace") for key in keys if key not in seen]
            seen.update(keys)
            # Each in a call of its own, of which two are under way at a time.
            reads = [self._of_keys(chunk) async for chunk in in_steps(new, 3 * CHUNK)]
            for bans in await asyncio.gather(*reads):
                yield bans
            if cursor == b"0":
                return

    def count(self) -> int:
        """Return how many banned keys Redis last reported: those in force, and some that have ended since."""
        return self._polled.ban_count

    async def load(self, bans: Iterable[Ban]) -> int:
        imported = 0
        async for chunk in in_steps(bans, CHUNK):
            imported += await self._put(chunk)
        return imported

    # -- commands for Redis ------------------------------------------------------------------------------------------

    async def _put(self, bans: Sequence[Ban], *, replaces: bool = False) -> int:
        """Store bans in one call, and return how many of them are not over.

        Args:
            replaces: Whether it is one by hand, which is told, and replaces every ban of its key; if not, each replaces
                only a shorter one of its key and `network()`.

        Raises:
            ConfigurationError: Too many networks are banned.
        """

        def read(answer: Any, now_us: int) -> tuple[int, str]:  # also when nobody awaits it any more
            in_force, refused = index(answer[0]), answer[1].decode()
            if not refused:
                self._changes.note()
                if replaces:
                    self._tell(banned(bans[0]))
            return in_force, refused

        names = [*self._polled.names]
        args: list[bytes | int] = [os.urandom(8), int(replaces), MAX_NETWORKS]
        for ban in bans:
            names.append(self._packing.name_of(ban.key))
            args += [ban.key.encode(), _pack_ban(ban), int(ban.network() is not None)]
        answer: tuple[int, str] = await self._batcher().command(names, b"put", *args, read=read)
        in_force, refused = answer
        if refused:
            raise too_many_networks(refused)
        await self._batcher().poll()
        return in_force

    def _names_of(self, key: str) -> Sequence[bytes]:
        """Return the names of what concerns all bans, and of those of a key."""
        return *self._polled.names, *self._packing.names_of(key)

    def _of_keys(self, subjects: Iterable[BanSubject]) -> asyncio.Future[list[Ban]]:
        """Return the bans in force of the keys among some subjects: those that would refuse a question about them."""
        return self._batcher().question(PEEK, (), subjects, lambda answer, now_us: read_bans(answer[1:]))


# -- rows of bans and levels, which begin with their ends --------------------------------------------------------------


def _pack_ban(ban: Ban) -> bytes:
    end_us = -1  # never
    if ban.until_us is not None:
        end_us = max(ban.until_us, 0)
    return END.pack(end_us) + json_of(ban._asdict())


def _unpack_level(packed: bytes) -> Level | None:
    """Unpack a level, at whose end a later version may have added bytes; None if it has none."""
    if len(packed) < _LEVEL.size:
        return None
    over_us, until_us, level = _LEVEL.unpack_from(packed)
    return Level(level, until_us, over_us)
