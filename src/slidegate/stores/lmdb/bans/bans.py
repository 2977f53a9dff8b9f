"""The bans of an LMDB environment.

Every process holds the bans in force in a list of its own, because an address has to be looked up in all the networks
that it may lie in. If there are many bans, it reads them a part at a time, so that no event loop waits for them, and
looks every request up in the rows meanwhile. The environment numbers the changes, and names the key of each. Every
transaction reads the last number; if it is a new one, the process looks the changed keys up before it goes on. So the
next request of any process meets a ban that another one has made::

    meta "bans"   the number of the last change
    changes       number                          key, of the last `MAX_CHANGES`
    bans          key                             record (`ban_codec`)
    history       number                          record of a change

A process that is far behind reads all bans again. The rules are those of `core.bans.rules`, at work on rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Final, TypeVar

import lmdb

from ....core.bans.in_force import Ban, BanChange, Guarded
from ....core.bans.policy import BanPolicy
from ....core.bans.rows import Bans, Row, to_rows
from ....core.bans.standing_view import KeptStandings
from ....core.barred import Barred
from ....core.decision import Check
from ....core.errors import StoreError
from ....core.store import BanStore, Clock
from ..batching import Batcher
from ..environment import Environment
from ..windows import Transaction
from .ban_codec import salvage
from .ban_rows import LAST, BanRows, records_of
from .ban_session import BanSession

PAUSE_S: Final = 0.001

T = TypeVar("T")


class LmdbBans(BanStore):
    """Bans for all processes of a host; made by `LmdbStore`.

    Args:
        env: The environment.
        turns: Runs jobs.
        now_us: The store's clock.
        wall_us: Unix time, in microseconds; None for the system's.
        most: How many bans, and the strikes of how many keys, to hold.
    """

    def __init__(self, env: Environment, turns: Batcher, now_us: Clock, wall_us: Clock | None, most: int) -> None:
        self._env = env
        self._turns = turns
        self._rules = BanSession(now_us, wall_us, most)
        self._mutex = RLock()  # jobs may run in a thread while the loop reads
        self._reading: asyncio.AbstractEventLoop | None = None  # the loop that will read on in the list
        self._closed = False
        self._known: tuple[int, bytes | None] = 0, None  # the opening and the last change that the list knows

    def close(self) -> None:
        """Read nothing any more."""
        self._closed = True

    def find(self, guarded: Sequence[Guarded]) -> Ban | None:
        """Return the ban in force that refuses one of `guarded`, the one that lasts longest. This changes nothing."""
        return self._read(lambda rules: rules.find(guarded))

    def strike(
        self, policy: BanPolicy, key: str, weight: int, reason: str, prefix: str = ""
    ) -> Ban | Awaitable[Ban | None] | None:
        """Count a strike, and ban the key if that is one too many; return the ban that this makes."""
        return self._write(lambda rules: rules.strike(policy, key, weight, reason, prefix))

    def ban(self, key: str, length_us: int | None, reason: str, by: str) -> Ban | Awaitable[Ban]:
        """Ban a key by hand, None for ever; a ban that it has is replaced."""
        return self._write(lambda rules: rules.ban(key, length_us, reason, by))

    def unban(self, key: str, by: str) -> bool | Awaitable[bool]:
        """Take the ban of exactly this key back, and forget its strikes and rungs; False if there was neither."""
        return self._write(lambda rules: rules.unban(key, by))

    def standings(self, keys: Sequence[str]) -> KeptStandings:
        """Return how each of some keys stands under each policy. This changes nothing."""
        return self._read(lambda rules: rules.standings_under(keys))

    def active(self) -> list[Ban] | Awaitable[list[Ban]]:
        """Return the bans in force."""
        return _gathered(self._parts("bans", BanSession.active_of))

    def active_parts(self) -> AsyncIterator[Sequence[Ban]]:
        """Yield the bans in force, a part at a time: no more are held than a part has."""
        return _in_turns(self._parts("bans", BanSession.active_of))

    def dump_parts(self) -> AsyncIterator[Sequence[Row]]:
        """Yield what `dump` returns, a part at a time."""
        return _in_turns(self._dumped())

    def count(self) -> int:
        """Return how many bans are written: those in force, and those that ended lately."""
        return self._read_rows(lambda rules, ban_rows: ban_rows.count())

    def history(self) -> list[BanChange] | Awaitable[list[BanChange]]:
        """Return the last 10,000 changes, oldest first."""
        return _gathered(self._parts("history", lambda rules, rows: [record.change() for record in records_of(rows)]))

    def dump(self) -> list[Row] | Awaitable[list[Row]]:
        """Return all bans, strikes and rungs, as `core.bans.rows` writes them."""
        return _gathered(self._dumped())

    def _dumped(self) -> Iterator[Sequence[Row]]:
        now_us, wall_us = self._read(BanSession.moments)
        head, *_ = to_rows(Bans([], []), now_us, wall_us)
        yield [head]
        for bans in self._parts("bans", BanSession.active_of):
            yield list(to_rows(Bans(list(bans), []), now_us, wall_us))[1:]
        for standings in self._parts("struck", BanSession.standings_of):
            yield list(to_rows(Bans([], list(standings)), now_us, wall_us))[1:]

    def _parts(
        self, name: str, read: Callable[[BanSession, Sequence[tuple[bytes, bytes]]], Sequence[T]]
    ) -> Iterator[Sequence[T]]:
        """Yield the rows of a database as `read` reads them, a part at a time, each in a transaction of its own."""
        row: bytes | None = b""
        while row is not None:

            def part(rules: BanSession, ban_rows: BanRows, row: bytes = row) -> tuple[Sequence[T], bytes | None]:
                rows, following = ban_rows.part(getattr(ban_rows.dbs, name), row)
                return read(rules, rows), following

            found, row = self._read_rows(part)
            yield found

    def load(self, rows: Sequence[Row]) -> int | Awaitable[int]:
        """Take over the rows of a `dump`; of two bans of a key the one that lasts longer stays."""
        return self._write(lambda rules: rules.load(rows))

    def any(self) -> bool:
        """Return whether this process knows of any ban."""
        return bool(self._rules.list.by_key)

    def judge(
        self, session: Transaction, checks: Sequence[Check], guarded: Sequence[Guarded]
    ) -> tuple[Barred | None, bool]:
        """Return the refusal of a demand by a ban, if there is one, and whether the demand prolongs a ban."""
        number = session.txn.get(LAST, None, session.dbs.meta)
        bans = self._rules.list
        if self._known == (self._env.opened, number) and bans.is_whole and not bans.by_key:
            return None, False
        with self._mutex:
            rules = self._open(BanRows(session.txn, session.dbs), number)
            barred = rules.judge(checks, guarded, prolong=False)
            rules.leave()
            return barred, barred is not None and rules.prolongs(checks, guarded)

    def suspects(self, checks: Sequence[Check], guarded: Sequence[Guarded]) -> bool:
        """Return whether the bans that this process knew last refuse a demand."""
        with self._mutex:
            return self._rules.judge(checks, guarded, prolong=False) is not None

    def prolong(self, barred: Barred, guarded: Sequence[Guarded], session: Transaction) -> Barred:
        """Prolong the bans that refused a demand, if requests prolong them, and return the refusal after that."""
        prolonged = self._work(lambda rules: rules.judge(barred.checks, guarded, prolong=True), session)
        return barred if prolonged is None else prolonged

    def rescue(self, path: Path, session: Transaction) -> int:
        """Take over the bans that are found in a damaged file; return how many are still in force."""
        try:
            found = salvage(path)
        except OSError:
            return 0
        return self._work(lambda rules: rules.take_over(found), session)

    # -- transactions ------------------------------------------------------------------------------------------------

    def _write(self, do: Callable[[BanSession], T]) -> T | Awaitable[T]:
        return self._turns.run(partial(self._work, do))

    def _work(self, do: Callable[[BanSession], T], session: Transaction) -> T:
        with self._mutex:
            session.undo.append(self._forget)
            ban_rows = BanRows(session.txn, session.dbs)
            rules = self._open(ban_rows, session.txn.get(LAST, None, session.dbs.meta))
            rules.list.writes_to = ban_rows
            try:
                if self._reading is None or self._reading.is_closed():  # nobody reads on
                    rules.make_sure(1)
                answer = do(rules)
                rules.close(ban_rows)
            finally:
                rules.leave()
            self._known = self._env.opened, session.txn.get(LAST, None, session.dbs.meta)
            session.events.extend(rules.take_events())
            return answer

    def _read(self, do: Callable[[BanSession], T]) -> T:
        return self._read_rows(lambda rules, ban_rows: do(rules))

    def _read_rows(self, do: Callable[[BanSession, BanRows], T]) -> T:
        try:
            txn = self._env.read()
            try:
                with self._mutex:
                    ban_rows = BanRows(txn, self._env.dbs)
                    rules = self._open(ban_rows, txn.get(LAST, None, self._env.dbs.meta))
                    try:
                        return do(rules, ban_rows)
                    finally:
                        rules.leave()
            finally:
                self._env.end_read(txn)
        except lmdb.Error as error:
            raise self._env.failure(error) from error

    def _open(self, ban_rows: BanRows, number: bytes | None) -> BanSession:
        opened, _ = self._known
        if opened != self._env.opened:
            self._rules.forget()
        self._rules.open(ban_rows)
        self._known = self._env.opened, number
        if not self._rules.list.is_whole:
            self._read_on_soon()
        return self._rules

    def _read_on_soon(self) -> None:
        """Read the missing bans, a part at a time. Without an event loop, they are looked up in the rows."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if self._reading is not loop and not self._env.options.read_only:
            self._reading = loop
            loop.call_later(PAUSE_S, self._read_on)

    def _read_on(self) -> None:
        self._reading = None
        if not self._closed:
            with suppress(StoreError):  # the next transaction begins again
                self._read_rows(BanSession.read_on)

    def _forget(self) -> None:
        with self._mutex:
            self._rules.forget()
            self._rules.take_events()
            self._known = 0, None


def _gathered(parts: Iterator[Sequence[T]]) -> list[T] | Awaitable[list[T]]:
    """Return the items of all parts; on a running event loop, an awaitable that lets the loop turn between parts."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return [one for part in parts for one in part]
    return _paced(parts)


async def _paced(parts: Iterator[Sequence[T]]) -> list[T]:
    return [one async for part in _in_turns(parts) for one in part]


async def _in_turns(parts: Iterator[Sequence[T]]) -> AsyncIterator[Sequence[T]]:
    for part in parts:
        yield part
        await asyncio.sleep(0)
