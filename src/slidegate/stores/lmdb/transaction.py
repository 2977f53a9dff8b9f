"""The transactions of an LMDB store: one that reads, and one that does jobs and makes room for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import lmdb

from ...core.decision import LimitSet
from ...core.errors import StoreUnavailable
from ...core.logs import Throttle
from ...core.store import Clock, Event, Observers, closed
from ..shared import SHARED_PAUSE_US, keys_shared
from .batching import Job
from .environment import IN_PROCESS_S, NO_CHANGES, Environment
from .permits import OwnPermits
from .windows import Bound, Transaction

if TYPE_CHECKING:
    from .bans import LmdbBans

SAY_FULL_EVERY_US: Final = 60_000_000
SWEEP_STEP: Final = 16
SWEEP_ALONE: Final = 512
"""Where a file is full."""
SWEEP_PAUSE_US: Final = 100_000

T = TypeVar("T")


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
        latest_us: The latest moment at which something was charged.
        permits: The permits of this process.
        bans: The bans, which are taken over from a damaged file.
        closed: Whether the store was closed, and has no transactions any more.
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
        self.env = env
        self.unix_us = unix_us
        self._now_us = now_us
        self.max_keys = max_keys
        self.permits = permits
        self._observers = observers
        self.bound: dict[LimitSet, Bound] = {}
        self._sweep_due_us = self._next_shared_event_us = 0
        self._throttle = Throttle(SAY_FULL_EVERY_US)
        self.bans: LmdbBans | None = None
        self.tells = self.closed = False
        self.evictions = self.latest_us = self.shared_hits = 0

    def read(self, ask: Callable[[Transaction], T], patience_s: float = IN_PROCESS_S) -> T:
        """Return what `ask` says about a transaction in which nothing can be written. This waits for nobody.

        Where the files have to be opened or have grown, it may wait for a moment, see `Environment.read`.

        Raises:
            StoreUnavailable: The files cannot be read, or the store was closed.
        """
        self._expect_open()
        try:
            txn = self.env.read(patience_s)
            try:
                return ask(Transaction(self, txn, self._now_us()))
            finally:
                self.env.end_read(txn)
        except (lmdb.Error, OSError) as error:
            raise self.env.failure(error) from error

    def write(self, jobs: Sequence[Job]) -> list[Any] | None:
        """Do jobs in one transaction and return their answers; None while another process or thread writes.

        Raises:
            StoreUnavailable: The files are damaged or full, or the store was closed.
        """
        self._expect_open()
        try:
            while True:
                try:
                    return self._write(jobs)
                except lmdb.MapFullError as error:
                    self._make_room(error)
        except lmdb.MapFullError as error:
            raise StoreUnavailable(f"lmdb: {self.env.path} is full: {error}", concerns="key") from error
        except (lmdb.Error, OSError) as error:
            raise self.env.failure(error) from error

    def _expect_open(self) -> None:
        if self.closed:
            raise closed(f"lmdb: the store at {self.env.path}")

    def tell(self) -> None:
        """Tell the events that no observer was told yet."""
        if self.tells and self.env.untold:
            events, self.env.untold = self.env.untold, []
            self._observers.tell_all(events)

    def _write(self, jobs: Sequence[Job]) -> list[Any] | None:
        txn = self.env.begin()
        if txn is None:
            return None
        transaction = None
        try:
            try:
                # Not before: by an old time, units that others have spent since would leave too early.
                transaction = Transaction(self, txn, self._now_us())
                answers = self._work(transaction, jobs)
            except BaseException:
                self.env.abort(txn)
                raise
            self.env.commit(txn)
        except BaseException:
            for undo in reversed(transaction.undo if transaction else ()):
                undo()
            raise
        self._end(transaction)
        return answers

    def _work(self, transaction: Transaction, jobs: Sequence[Job]) -> list[Any]:
        """Do jobs and what else is due, and return the answers of the jobs."""
        if self.env.fullness == NO_CHANGES:
            raise lmdb.MapFullError("it has no room for changes; raise max_map_size")
        if self.env.salvage:
            self._rescue(transaction)
        answers = [job(transaction) for job in jobs]
        transaction.save()
        if transaction.now_us >= self._sweep_due_us:
            self._sweep(transaction, max(SWEEP_STEP, 2 * len(jobs)))
        self.env.look_after(transaction.txn, transaction.now_us)
        return answers

    def _end(self, transaction: Transaction) -> None:
        """Remember what has happened in a transaction, and tell it."""
        now_us = transaction.now_us
        if transaction.is_swept:
            self._sweep_due_us = now_us + SWEEP_PAUSE_US
        self.evictions += transaction.evictions
        if transaction.shared_hits:
            self.shared_hits += transaction.shared_hits
            if now_us >= self._next_shared_event_us:
                self._next_shared_event_us = max(transaction.shared_until_us, now_us + SHARED_PAUSE_US)
                transaction.events.append(keys_shared(self.max_keys))
        if transaction.events or self.env.untold:
            self.env.untold += transaction.events
            self.tell()
        if self.env.fullness:
            self._say_full(now_us)

    def _sweep(self, transaction: Transaction, most: int) -> None:
        transaction.sweep(most)

    def _rescue(self, transaction: Transaction) -> None:
        while self.bans is not None and self.env.salvage:
            path = self.env.salvage.pop()
            transaction.undo.append(partial(self.env.salvage.append, path))
            count = self.bans.rescue(path, transaction)
            transaction.events.append(Event("bans_rescued", f"{count} bans were found in {path}", {"bans": count}))

    def _make_room(self, error: lmdb.MapFullError) -> None:
        """Make the map larger; if it cannot grow, delete some rows that are empty.

        Raises:
            lmdb.MapFullError: There are none.
        """
        if self.env.grow():
            self.tell()
            return
        fullness = self.env.fullness
        for most in (SWEEP_ALONE, SWEEP_STEP, 1):
            with suppress(lmdb.MapFullError):  # deletions need room for copies of pages
                if self._sweep_alone(most) or self.env.fullness < fullness:
                    return
        self._say_full(self._now_us())
        raise error

    def _sweep_alone(self, most: int) -> bool:
        """Delete rows that are empty; return whether there may be more, or another process writes."""
        txn = self.env.begin()
        if txn is None:
            return True
        try:
            transaction = Transaction(self, txn, self._now_us())
            self._sweep(transaction, most)
        except BaseException:
            self.env.abort(txn)
            raise
        self.env.commit(txn, looks=True)
        self.evictions += transaction.evictions
        return not transaction.is_swept

    def _say_full(self, now_us: int) -> None:
        if self._throttle.left_out("map_full", now_us) is not None:
            stuck = self.env.stuck
            remedy = "free some space" if stuck else "raise max_map_size"
            message = f"{self.env.path} {stuck or 'is full'}, so new keys are counted in shared cells; {remedy}"
            self.env.untold.append(Event("map_full", message))
        self.tell()
