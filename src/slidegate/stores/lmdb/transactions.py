"""The transactions of an LMDB store: one that reads, and one that does jobs and makes room for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import lmdb

from ...core.errors import StoreUnavailable
from ...core.store import Clock, Event, Observers
from .batching import Job
from .files.environment import LAST_PART, MIN_RESERVE, Environment, reserve
from .session import Session, Upkeep

SAY_FULL_EVERY_US: Final = 60_000_000
LARGEST_WINDOW: Final = 2_048
"""Bytes. A window takes less, so at least this many fit: the size of the file divided by this."""

T = TypeVar("T")

_STEPS: Final = (2_000, 64, 8, 1)
_UNKNOWN: Final = 2**62
_FULL: Final = "no empty window is left to let go of; raise max_map_size or lower max_keys"


class Transactions:
    """Runs transactions, and tells the events of each.

    Args:
        env: The environment.
        now_us: The store's clock.
        max_keys: How many windows to hold.
        unix_us: Returns Unix time in microseconds.
        observers: Those who are told events.

    Attributes:
        rescue: A function that takes over the bans of a damaged file, and returns how many there were.
        tells: Whether events are told; until then they are kept for later observers.
        upkeep: What the transactions of this process remember for each other.
    """

    def __init__(self, env: Environment, now_us: Clock, max_keys: int, unix_us: Clock, observers: Observers) -> None:
        self._env = env
        self._unix_us = unix_us
        self._now_us = now_us
        self._max_keys = max_keys
        self._next_full_event_us = 0
        self._opened = 0
        self._most_bytes = env.options.max_map_size
        self._windows = self._rows = _UNKNOWN  # how many of each a full file may hold
        self._observers = observers
        self.rescue: Callable[[Path, Session], int] = lambda path, session: 0
        self.tells = False
        self.upkeep = Upkeep()

    def read(self, ask: Callable[[Session], T]) -> T:
        """Return what `ask` says about a session in which nothing can be written. This waits for nobody.

        Raises:
            StoreUnavailable: The files cannot be read.
        """
        try:
            txn = self._env.read()
            try:
                return ask(Session(txn, self._env.dbs, self._now_us(), self._max_keys, self._unix_us, Upkeep()))
            finally:
                self._env.end_read(txn)
        except lmdb.Error as error:
            raise self._env.failure(error) from error

    def write(self, jobs: Sequence[Job]) -> list[Any] | None:
        """Do jobs in one transaction and return their answers; None while another process or thread writes.

        Raises:
            StoreUnavailable: The files are damaged or full.
        """
        try:
            while True:
                try:
                    return self._write(jobs)
                except lmdb.MapFullError:
                    self._make_room()
        except lmdb.MapFullError as error:
            raise StoreUnavailable(f"lmdb: {self._env.path} is full: {error}", concerns="key") from error
        except (lmdb.Error, OSError) as error:
            raise self._env.failure(error) from error

    def tell(self) -> None:
        """Tell the events that no observer was told yet."""
        if self.tells and self._env.untold:
            events, self._env.untold = self._env.untold, []
            self._observers.tell_all(events)

    def _write(self, jobs: Sequence[Job]) -> list[Any] | None:
        env = self._env
        txn = env.begin()
        if txn is None:
            return None
        fullness = env.fullness()
        most = self._most_keys(txn) if fullness else self._max_keys
        session = Session(txn, env.dbs, self._now_us(), most, self._unix_us, self.upkeep)
        try:
            try:
                if env.salvage:
                    self._rescue(session)
                answers = [job(session) for job in jobs]
                session.save()
                if fullness == LAST_PART:
                    self._check_room(txn)
                env.look_after(txn, session.now_us)
            except BaseException:
                env.abort(txn)
                raise
            env.commit(txn)
        except BaseException:
            for undo in session.undo:
                undo()
            raise
        if fullness or self._windows != _UNKNOWN or session.events or env.untold:
            self._end(session, fullness)
        return answers

    def _end(self, session: Session, fullness: int) -> None:
        """Tell what happened in a transaction, and what is known of the room."""
        if session.events or self._env.untold:
            self._env.untold += session.events
            self.tell()
        if self._env.stuck:
            self._say_full(0, session.now_us)
        elif not fullness:
            self._windows = self._rows = _UNKNOWN

    def _rescue(self, session: Session) -> None:
        while self._env.salvage:
            path = self._env.salvage.pop()
            session.undo.append(partial(self._env.salvage.append, path))
            count = self.rescue(path, session)
            session.events.append(Event("bans_rescued", f"{count} bans were found in {path}", {"bans": count}))

    def _most_keys(self, txn: Any) -> int:
        """Return how many windows to hold; a file that must not grow any more gets no further ones."""
        if self._opened != self._env.opened:  # another file
            self._opened, self._windows, self._rows = self._env.opened, _UNKNOWN, _UNKNOWN
        if self._windows == _UNKNOWN:
            self._windows = max(txn.stat(self._env.dbs.windows)["entries"], self._least_rows())
        return min(self._max_keys, self._windows)

    def _check_room(self, txn: Any) -> None:
        """Keep the last part of a full file for known keys, and for deleting empty windows.

        Raises:
            lmdb.MapFullError: There are more rows than when that part was begun.
        """
        rows = _rows(txn, self._env)
        if self._rows == _UNKNOWN:
            self._rows = max(rows, self._least_rows())
        if rows > self._rows:
            raise lmdb.MapFullError(_FULL)

    def _least_rows(self) -> int:
        return min(self._most_bytes, self._env.held) // LARGEST_WINDOW

    def _make_room(self) -> None:
        """Make the map larger; if it must not grow, delete all empty windows.

        If there are none, new keys are counted in shared cells from then on, and the map gets another part, for these
        cells and for the growing windows of known keys. The last part is for such windows alone.

        Raises:
            lmdb.MapFullError: The last part is in use too.
        """
        env, most = self._env, self._most_bytes
        txn = env.begin()
        if txn is None:
            return  # another process writes, and may make room
        txn = env.grow(txn, most)
        if txn is None:
            self.tell()
            return
        now_us = self._now_us()
        for step in _STEPS:
            before = _rows(txn, env)
            try:
                Session(txn, env.dbs, now_us, self._max_keys, self._unix_us, self.upkeep).sweep(step)
            except lmdb.MapFullError:  # many deletions need room for copies of as many pages
                txn = env.begin_again(txn)
                continue
            except BaseException:
                env.abort(txn)
                raise
            gone = before - _rows(txn, env)
            if not gone:
                break
            with suppress(lmdb.MapFullError):
                env.commit(txn)
                self._say_full(gone, now_us)
                return
            txn = env.begin()
            if txn is None:
                return  # another process writes, and may make room
        txn = env.grow(txn, most + reserve(most))
        if txn is not None:
            txn = env.grow(txn, most + reserve(most) + MIN_RESERVE)
        self._say_full(0, now_us)
        if txn is not None:
            env.abort(txn)
            raise lmdb.MapFullError(_FULL)

    def _say_full(self, gone: int, now_us: int) -> None:
        if now_us >= self._next_full_event_us:
            self._next_full_event_us = now_us + SAY_FULL_EVERY_US
            what = f"{gone} empty windows were deleted" if gone else "new keys are counted in shared cells"
            stuck = self._env.stuck
            remedy = "free some space" if stuck else "raise max_map_size"
            message = f"{self._env.path} {stuck or 'is full'}, so {what}; {remedy}"
            self._env.untold.append(Event("map_full", message, {"gone": gone}))
        self.tell()


def _rows(txn: Any, env: Environment) -> int:
    return sum(int(txn.stat(database)["entries"]) for database in (env.dbs.windows, env.dbs.cells, env.dbs.places))
