"""The bans of an LMDB environment.

Every process holds the bans in force in a list of its own, because a request has to be looked up by the networks that
it may lie in. The environment says how many changes there have been, and which keys they were about: whoever reads
another number than it knows looks these keys up before it goes on. That number is read in every transaction, so what
one process bans, the next request of any other knows::

    meta "bans"   the number of the last change
    changes       number                          key: the last `MAX_CHANGES`; who is further behind reads all bans
    bans          key                             record (`records`)
    history       number                          record, of what was banned and unbanned

The rules are those of `memory_bans`, which works here on rows instead of on dicts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from threading import RLock
from typing import TypeVar

import lmdb

from ...core.banlist import Ban, BanChange, Guarded
from ...core.banpolicy import BanPolicy
from ...core.banrows import Row
from ...core.barred import Barred
from ...core.decision import Check
from ...core.errors import StoreUnavailable
from ...core.protocols import Clock
from .books import LAST, Book, Rules
from .env import Environment
from .opening import BROKEN
from .records import salvage
from .turns import Turns
from .windows import Session

T = TypeVar("T")


class LmdbBans:
    """Bans for all processes of a host; made by `LmdbStore`.

    Args:
        env: The environment.
        turns: When jobs are done.
        now_us: The store's clock.
        wall_us: Unix time, in microseconds; None for the system's.
        most: How many bans, and the strikes of how many keys, to hold.
    """

    def __init__(self, env: Environment, turns: Turns, now_us: Clock, wall_us: Clock | None, most: int) -> None:
        self._env = env
        self._turns = turns
        self._rules = Rules(now_us, wall_us, most)
        self._mutex = RLock()  # jobs may run in a thread while the loop reads
        self._known: tuple[int, bytes | None] = 0, None  # the opening and the change of which the list is

    def find(self, guarded: Sequence[Guarded]) -> Ban | None:
        """Return the ban in force that refuses one of `guarded`, the one that lasts longest. Changes nothing."""
        return self._read(lambda rules: rules.find(guarded))

    def strike(
        self, policy: BanPolicy, key: str, weight: int, reason: str, prefix: str = ""
    ) -> Ban | Awaitable[Ban | None] | None:
        """Count a strike, and ban the key if that is one too many; return the ban that was made by it."""
        return self._write(lambda rules: rules.strike(policy, key, weight, reason, prefix))

    def ban(self, key: str, length_us: int | None, reason: str, by: str) -> Ban | Awaitable[Ban]:
        """Ban a key by hand, None for ever; a ban that it has is replaced."""
        return self._write(lambda rules: rules.ban(key, length_us, reason, by))

    def unban(self, key: str, by: str) -> bool | Awaitable[bool]:
        """Take the ban of exactly this key back, and forget its strikes and rungs; False if there was neither."""
        return self._write(lambda rules: rules.unban(key, by))

    def active(self) -> list[Ban]:
        """Return the bans in force."""
        return self._read(lambda rules: rules.active())

    def history(self) -> list[BanChange]:
        """Return the last 10,000 changes, oldest first."""
        return self._read(lambda rules: rules.history())

    def dump(self) -> list[Row]:
        """Return everything known about bans, strikes and rungs, as `core.banrows` writes it."""
        return self._read(lambda rules: rules.dump())

    def load(self, rows: Sequence[Row]) -> int | Awaitable[int]:
        """Take over what `dump` returned; of two bans of a key the one that lasts longer stays."""
        return self._write(lambda rules: rules.load(rows))

    def any(self) -> bool:
        """Tell whether this process knows of any ban."""
        return bool(self._rules.list.by_key)

    def judge(
        self, session: Session, checks: Sequence[Check], guarded: Sequence[Guarded]
    ) -> tuple[Barred | None, bool]:
        """Return the refusal of a demand by a ban, if there is one, and whether the demand prolongs any."""
        number = session.txn.get(LAST, None, session.dbs.meta)
        if self._known == (self._env.opened, number) and not self._rules.list.by_key:
            session.banned = False  # until a job of this session bans
            return None, False
        with self._mutex:
            rules = self._open(Book(session.txn, session.dbs), number)
            barred = rules.judge(checks, guarded, prolong=False)
            rules.leave()
            return barred, barred is not None and rules.prolongs(checks, guarded)

    def suspects(self, checks: Sequence[Check], guarded: Sequence[Guarded]) -> bool:
        """Tell whether a demand is refused by the bans that this process knew last."""
        with self._mutex:
            return self._rules.judge(checks, guarded, prolong=False) is not None

    def prolong(self, barred: Barred, guarded: Sequence[Guarded], session: Session) -> Barred:
        """Let the bans of a refused demand go on that requests prolong, and return the refusal as it is then."""
        prolonged = self._work(lambda rules: rules.judge(barred.checks, guarded, prolong=True), session)
        return barred if prolonged is None else prolonged

    def rescue(self, path: Path, session: Session) -> int:
        """Take over the bans that are found in a damaged file; return how many are still in force."""
        try:
            found = salvage(path)
        except OSError:
            return 0
        return self._work(lambda rules: rules.take_over(found), session)

    # -- transactions ------------------------------------------------------------------------------------------------

    def _write(self, do: Callable[[Rules], T]) -> T | Awaitable[T]:
        return self._turns.run(partial(self._work, do))

    def _work(self, do: Callable[[Rules], T], session: Session) -> T:
        with self._mutex:
            session.undo.append(self._forget)
            session.banned = True
            book = Book(session.txn, session.dbs)
            rules = self._open(book, session.txn.get(LAST, None, session.dbs.meta))
            rules.list.book = book
            try:
                answer = do(rules)
                rules.close(book)
            finally:
                rules.leave()
            self._known = self._env.opened, session.txn.get(LAST, None, session.dbs.meta)
            session.events.extend(rules.told)
            rules.told.clear()
            return answer

    def _read(self, do: Callable[[Rules], T]) -> T:
        try:
            txn = self._env.read()
            try:
                with self._mutex:
                    rules = self._open(Book(txn, self._env.dbs), txn.get(LAST, None, self._env.dbs.meta))
                    try:
                        return do(rules)
                    finally:
                        rules.leave()
            finally:
                self._env.end_read(txn)
        except BROKEN as error:
            raise self._env.condemn(error) from error
        except lmdb.Error as error:
            raise StoreUnavailable(f"lmdb: {self._env.path}: {error}") from error

    def _open(self, book: Book, number: bytes | None) -> Rules:
        opened, _ = self._known
        if opened != self._env.opened:
            self._rules.forget()
        self._rules.open(book)
        self._known = self._env.opened, number
        return self._rules

    def _forget(self) -> None:
        with self._mutex:
            self._rules.forget()
            self._rules.told.clear()
            self._known = 0, None
