"""The commands of operators: changed limits, bans, and what workers and operators have published.

They are methods of every `Limiter`, and have the deadline of a command.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from datetime import timedelta
from functools import partial
from operator import attrgetter
from typing import Any, Final

from ..core.bans.ban import MANUAL, Ban, ban_key, clean_reason
from ..core.bans.policy import with_wider_networks
from ..core.durations import parse_duration_us
from ..core.limits import MAX_WINDOW_US
from ..core.store import COMMAND_DEADLINE_S, Store
from .aio import each_within
from .bans import check_ban, drained, lines_of, operators_of, read_export
from .engine import Engine
from .keys import AnyKey, KeyOf
from .overrides import ALL, Override, check_change, check_override, published_as
from .rows import Action
from .workers import Publication

PERMANENT: Final = "permanent"
_BANS_PER_DEADLINE: Final = 10_000
"""LMDB writes this many bans in about 3 s under contention."""


class Commands:
    """The commands of operators for one limiter.

    Attributes:
        store: The store that keeps the counts.
        engine: The interface for the middlewares of this package.
    """

    store: Store
    engine: Engine

    async def override(
        self, name: str, limit: str, duration: str | timedelta, *, reason: str = "", by: str = MANUAL
    ) -> Override:
        """Change the amount of one limit for a while, for all workers that share the store; counts are kept.

        Every worker applies it within a second, and an idle one with its next request; when it expires, the amount in
        code applies again. A later call for the same limit replaces it. ``limiter.override("*", "off", "10m")``
        switches all workers off: every request passes, and nothing is counted.

        The limit is checked against those of this process and of all other workers, which keep a row with theirs in a
        shared store. A name that none of them has is accepted, unless it is nearly one that they have: no worker may
        have met the limit yet, and then `Override.is_published` is False.

        Args:
            name: The name of the limit in response headers: that of its rule, ``name_<seconds>`` if the rule has
                several, or ``name_concurrency`` for permits beside limits. Several limits of one name all change; to
                change one alone, give its rule a name of its own. ``"*"`` stands for all limits.
            limit: The limit with another amount: ``"50/minute"``; for a concurrency limit ``"4"``; for ``"*"`` the word
                ``"off"``.
            duration: How long, from a second to 30 days.
            reason: For operators, truncated to 256 printable characters.
            by: The person or program that changes it.

        Raises:
            ConfigurationError: The name is probably mistyped, a function returns this limit, the window differs, or a
                value is invalid. Nothing is changed then.
            StoreError: The store does not answer.
        """
        length_us = parse_duration_us(duration, "override: duration", 1_000_000, 30 * 86_400_000_000, "2h")
        why, author, text = clean_reason(reason), _author(by), check_override(name, limit)
        is_published = name == ALL
        if not is_published:
            for rules in await published_as(await self.published(), name, "name"):
                check_change(rules, limit)
                is_published = True
        await self.engine.refresher.refresh()  # which raises, so that nothing is written, if the store fails
        now_us = self.engine.unix_us()
        override = Override(name, text, author, why, now_us, now_us + length_us, is_published)
        await self.engine.refresher.write(override, length_us)
        await self.engine.history.add(Action("override", name, author, why, text, now_us, override.until_us))
        return override

    async def restore(self, name: str, *, by: str = MANUAL) -> bool:
        """End the override of a limit, or of ``"*"``, for all workers; False if it has none.

        Args:
            name: The name of the limit, as for `override`.
            by: The person or program that ends it.

        Raises:
            StoreError: The store does not answer.
        """
        author = _author(by)
        for override in await self.overrides():
            if override.name == name:
                await self.engine.refresher.write(override, 0)
                await self.engine.history.add(Action("restore", name, author, at_us=self.engine.unix_us()))
                return True
        return False

    async def overrides(self) -> list[Override]:
        """Return the overrides in force, sorted by the name of the limit.

        Raises:
            StoreError: The store does not answer.
        """
        await self.engine.refresher.refresh()
        return sorted(self.engine.overrides.in_force.values(), key=attrgetter("name"))

    async def ban(self, key: AnyKey, duration: str | timedelta, *, reason: str = "", by: str = MANUAL) -> Ban:
        """Ban an address, a network or a key; replaces an existing ban of it.

        Args:
            key: ``"203.0.113.7"``, ``"203.0.113.0/24"``, ``"user:42"``, ``"asn:132203"`` for all addresses of an
                operator (needs `networks`; applies in middlewares and `banned`), a key from `bans` or from the details
                of an event, or the key of a value: ``header("X-API-Key").of("k123")``. Write ``f"user:{name}"`` if
                users choose the name: a bare name that parses as an address or network bans that.
            duration: How long, up to 400 days, or ``"permanent"``.
            reason: For the operator; clients do not see it. Truncated to 256 printable characters.
            by: The person or program that bans.

        Raises:
            ConfigurationError: The key is invalid, nearly an address (``"203.0.113.300"``), the whole address space, or
                a network with host bits or wider than an IPv4 /8 or an IPv6 /19; the duration is invalid; or 1,000
                networks are banned already.
            StoreError: The store does not answer.
        """
        option = f'ban: duration (or "{PERMANENT}")'
        length_us = None if duration == PERMANENT else parse_duration_us(duration, option, 1, MAX_WINDOW_US, "1h")
        if not isinstance(key, KeyOf):
            check_ban(key, self.engine.networks)
        spelled, why, author = self._ban_key(key), clean_reason(reason), _author(by)
        ban: Ban = await self.engine.command(lambda: self.store.bans.ban(spelled, length_us, why, author))
        await self.engine.history.add(Action("ban", ban.key, author, why, at_us=ban.since_us, until_us=ban.until_us))
        return ban

    async def unban(self, key: AnyKey, *, by: str = MANUAL) -> bool:
        """Lift the ban of exactly this key, and delete its strikes and levels.

        Returns:
            False if there was nothing to lift. If an address is in a banned network, `banned` returns that ban.

        Raises:
            ConfigurationError: The key is invalid; see `ban`.
            StoreError: The store does not answer.
        """
        spelled, author = self._ban_key(key), _author(by)
        had_any: bool = await self.engine.command(partial(self.store.bans.unban, spelled, author))
        if had_any:
            await self.engine.history.add(Action("unban", spelled, author, at_us=self.engine.unix_us()))
        return had_any

    async def banned(self, key: AnyKey) -> Ban | None:
        """Return the ban that refuses a key or address now, its own or a network's; None if there is none.

        A network, such as the /64 by which an IPv6 client is counted, is refused by a ban of a wider one.

        Raises:
            ConfigurationError: The key is invalid; see `ban`.
            StoreError: The store does not answer.
        """
        _, guards = self.engine.keys.normalize(key)
        subjects = [*keys_refusing(self, key), *guards]
        return await self.engine.command(partial(self.store.bans.find, subjects))

    async def bans(self) -> AsyncIterator[Ban]:
        """Yield the bans in force, which a store reads in pages.

        Raises:
            StoreError: The store does not answer.
        """
        pages: Any = await self.engine.command(self.store.bans.pages)
        async for page in each_within(pages):
            for ban in page:
                yield ban

    def export_bans(self) -> AsyncIterator[str]:
        """Yield the bans in force as lines of JSON, to write to a file. Strikes are not exported.

        The keys of API keys and similar values are digests: import them into a limiter with the same `secret`, or none.

        Raises:
            StoreError: The store does not answer.
        """
        return lines_of(self.bans())

    async def import_bans(self, lines: Iterable[str] | AsyncIterable[str]) -> int:
        """Import the lines that `export_bans` wrote or yields. Imported bans end when the originals do.

        If a key is banned on both sides, the longer-lasting ban is kept; a network that a policy has banned as a
        client keeps a ban by hand as well. A second import changes nothing. All lines are read before the first ban is
        stored: 100,000 in seconds, in which other tasks run. The bans are stored in steps: after a failure some of them
        may be stored, and repeating the import adds the rest.

        Returns:
            The number of bans in the lines that have not ended.

        Raises:
            ConfigurationError: A line is invalid, so that nothing is imported; or there are more than 1,000 networks.
            StoreError: The store does not answer within 30 seconds, plus 30 for each 10,000 lines.
        """
        bans = await read_export(lines)
        deadline_s = COMMAND_DEADLINE_S * (1 + len(bans) / _BANS_PER_DEADLINE)
        return await self.engine.command(lambda: self.store.bans.load(drained(bans)), deadline_s)

    async def published(self) -> list[Publication]:
        """Return what the workers of the store have published of their rules, once for equal workers.

        This process and its equals are the first, if it uses the limiter. Another worker refreshes its row with its
        requests, at most every ten seconds, and counts for a minute after that. With a memory store there are no
        others.

        Raises:
            StoreError: The store does not answer.
        """
        return await self.engine.workers.all()

    async def history(self) -> list[Action]:
        """Return the latest 200 bans, overrides and their ends by operators and commands, the last one first.

        Bans by policies are not among them. In a memory store these are the actions of this process.

        Raises:
            StoreError: The store does not answer.
        """
        return await self.engine.history.latest()

    def _ban_key(self, key: AnyKey) -> str:
        """Return the form of a key that bans use."""
        name, _ = self.engine.keys.normalize(key)
        return ban_key(name)


def _author(by: object) -> str:
    return clean_reason(by, "by") or MANUAL


def keys_refusing(limiter: Commands, key: AnyKey) -> list[str]:
    """Return the keys whose bans refuse a key: its own, those of wider networks, and of its operators.

    Raises:
        ConfigurationError: The key is invalid; see `Limiter.ban`.
    """
    spelled = limiter._ban_key(key)
    return [*with_wider_networks(spelled), *operators_of(spelled, limiter.engine.networks)]
