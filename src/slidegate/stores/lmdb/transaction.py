"""The transactions of an LMDB store: one that reads, and one that does jobs and makes room for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import lmdb

from ...core.decision import Bucket
from ...core.errors import StoreUnavailable
from ...core.store import Clock, Event, Observers
from ..memory.shard import SHARED_PAUSE_US, keys_shared
from .batching import Job
from .environment import IN_PROCESS_S, LAST_PART, MIN_RESERVE, Environment, reserve
from .permits import OwnPermits
from .windows import Bound, Transaction

if TYPE_CHECKING:
    from .bans import LmdbBans

SAY_FULL_EVERY_US: Final = 60_000_000
LARGEST_WINDOW: Final = 2_048
"""Bytes. A window takes less, so at least this many fit: the size of the file divided by this."""
SWEEP_STEP: Final = 16
SWEEP_PAUSE_US: Final = 100_000

T = TypeVar("T")

_STEPS: Final = (2_000, 64, 8, 1)
_UNKNOWN: Final = 2**62
_FULL: Final = "no empty window is left to let go of; raise max_map_size or lower max_keys"


class Transactions:
    """Runs transactions, tells the events of each, and keeps what this process remembers from one to the next.

    Args:
        env: The environment.
        now_us: The store's clock.
        max_keys: How many windows to hold.
        unix_us: Returns Unix time in microseconds.
        observers: Those who are told events.
        permits: The permits of this process.

    Attributes:
        evictions: How many empty windows were deleted.
        bound: A memo of the limits of each bucket, and of what their rows are called and begin with.
        latest_us: The latest moment that a transaction has seen.
        permits: The permits of this process.
        bans: The bans, which are swept as windows are, and taken over from a damaged file.
        shared_hits: How many hits were counted in shared cells.
        tells: Whether events are told; until then they are kept for later observers.
        unix_us: Returns Unix time in microseconds, which quotas go by.
    """

    def __init__(
        self,
        env: Environment,
        now_us: Clock,
        max_keys: int,
        unix_us: Clock,
        observers: Observers,
        permits: OwnPermits,
    ) -> None:
        self._env = env
        self.unix_us = unix_us
        self._now_us = now_us
        self._max_keys = max_keys
        self.permits = permits
        self._observers = observers
        self.bound: dict[Bucket, Bound] = {}
        self._most_bytes = env.options.max_map_size
        self._opened = 0
        self._windows = self._rows = _UNKNOWN  # how many of each a full file may hold
        self._sweep_due_us = self._next_full_event_us = self._next_shared_event_us = 0
        self.bans: LmdbBans | None = None
        self.tells = False
        self.evictions = self.latest_us = self.shared_hits = 0

    def read(self, ask: Callable[[Transaction], T], patience_s: float = IN_PROCESS_S) -> T:
        """Return what `ask` says about a transaction in which nothing can be written. This waits for nobody.

        Where the files have to be opened or have grown, it may wait for a moment, see `Environment.read`.

        Raises:
            StoreUnavailable: The files cannot be read.
        """
        try:
            txn = self._env.read(patience_s)
            try:
                return ask(self._transaction(txn, self._now_us(), self._max_keys))
            finally:
                self._env.end_read(txn)
        except (lmdb.Error, OSError) as error:
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

    def _transaction(self, txn: Any, now_us: int, max_keys: int) -> Transaction:
        return Transaction(txn, self._env.dbs, now_us, max_keys, self)

    def _write(self, jobs: Sequence[Job]) -> list[Any] | None:
        env, now_us = self._env, self._now_us()
        txn = env.begin()
        if txn is None:
            return None
        self.latest_us = max(self.latest_us, now_us)
        fullness = env.fullness()
        transaction = self._transaction(txn, now_us, self._most_keys(txn) if fullness else self._max_keys)
        try:
            try:
                if env.salvage:
                    self._rescue(transaction)
                answers = [job(transaction) for job in jobs]
                transaction.save()
                if now_us >= self._sweep_due_us:
                    self._sweep(transaction)
                if fullness == LAST_PART:
                    self._check_room(txn)
                env.look_after(txn, now_us)
            except BaseException:
                env.abort(txn)
                raise
            env.commit(txn)
        except BaseException:
            for undo in transaction.undo:
                undo()
            raise
        self._end(transaction, fullness)
        return answers

    def _end(self, transaction: Transaction, fullness: int) -> None:
        """Remember what has happened in a transaction, and tell it."""
        now_us = transaction.now_us
        if transaction.is_swept:
            self._sweep_due_us = now_us + SWEEP_PAUSE_US
        self.evictions += transaction.evictions
        if transaction.shared_hits:
            self.shared_hits += transaction.shared_hits
            if now_us >= self._next_shared_event_us:
                self._next_shared_event_us = max(transaction.shared_until_us, now_us + SHARED_PAUSE_US)
                transaction.events.append(keys_shared(self._max_keys))
        if transaction.events or self._env.untold:
            self._env.untold += transaction.events
            self.tell()
        if self._env.stuck:
            self._say_full(0, now_us)
        elif not fullness:
            self._windows = self._rows = _UNKNOWN

    def _sweep(self, transaction: Transaction) -> None:
        transaction.sweep(SWEEP_STEP)
        if self.bans is not None and self.bans.sweep(transaction, SWEEP_STEP):
            transaction.is_swept = False

    def _rescue(self, transaction: Transaction) -> None:
        while self.bans is not None and self._env.salvage:
            path = self._env.salvage.pop()
            transaction.undo.append(partial(self._env.salvage.append, path))
            count = self.bans.rescue(path, transaction)
            transaction.events.append(Event("bans_rescued", f"{count} bans were found in {path}", {"bans": count}))

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
        if env.grow(most):
            self.tell()
            return
        now_us = self._now_us()
        for step in _STEPS:
            with suppress(lmdb.MapFullError):  # many deletions need room for copies of as many pages
                gone = self._sweep_alone(step, now_us)
                if gone is None:
                    return  # another process writes, and may make room
                if not gone:
                    break
                self._say_full(gone, now_us)
                return
        grown = env.grow(most + reserve(most)) or env.grow(most + reserve(most) + MIN_RESERVE)
        self._say_full(0, now_us)
        if not grown:
            raise lmdb.MapFullError(_FULL)

    def _sweep_alone(self, most: int, now_us: int) -> int | None:
        """Delete windows that are empty, and return how many; None while another process writes."""
        txn = self._env.begin()
        if txn is None:
            return None
        transaction = self._transaction(txn, now_us, self._max_keys)
        try:
            transaction.sweep(most)
        except BaseException:
            self._env.abort(txn)
            raise
        self._env.commit(txn)
        self.evictions += transaction.evictions
        return transaction.evictions

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
