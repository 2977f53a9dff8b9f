"""The permits of concurrency limits that requests of a worker have in a shared store, and their lease.

A worker is a process, or an event loop of one. Its entry in the row of a key ends with a lease, unless the worker
renews it: three times per lease, so that two renewals may fail. A renewal writes how many permits requests in progress
have, so it also corrects what a broken connection or a cancelled request has left::

    renewed  ^     ^     ^           then the worker is killed
    lease                |------- 10 s -------|
    permits  taken ---------------------------| free

A permit whose decision was garbage collected does not count, because nothing can return it. While a worker is stopped
for longer than a lease, others may take its permits; when it continues, it writes its count again.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from datetime import timedelta
from itertools import islice, takewhile
from time import monotonic
from typing import Any, Final, TypeAlias

from ..core.buckets import Bucket
from ..core.counters import apart, entry
from ..core.decision import Decision
from ..core.durations import parse_duration_us
from ..core.errors import StoreError
from ..core.logs import net
from .forks import ForkHook
from .shared import answer_of, running_loop

DEFAULT_PERMIT_LEASE: Final = "10s"
WORKER_BYTES: Final = 8
RENEWALS: Final = 3
"""How often a worker renews its permits per lease."""

Row: TypeAlias = Any
"""The name of a row in the store."""


def permit_lease_us(value: str | timedelta) -> int:
    """Return the length of a lease in microseconds.

    Raises:
        ConfigurationError: The value is not a duration from 1 s to 10 minutes.
    """
    return parse_duration_us(value, "permit_lease", 1_000_000, 600_000_000, "10s")


class HeldRow:
    """A row of the store, of whose permits a worker has some.

    Attributes:
        units: How many it has.
        due_us: When to renew them, by the store's time.
    """

    __slots__ = ("due_us", "units")

    def __init__(self) -> None:
        self.units = self.due_us = 0


class ChargedPermits:
    """The permits of one charge.

    They are subtracted at the worker's next question: the garbage collector may end this object at any time, in any
    thread.

    Args:
        row: The row in which they count.
        units: How many they are.
        returned: Receives released permits, which `HeldPermits.units` subtracts later.
    """

    __slots__ = ("_returned", "_row", "_units")

    def __init__(self, row: HeldRow, units: int, returned: deque[tuple[HeldRow, int]]) -> None:
        self._row, self._units, self._returned = row, units, returned
        row.units += units

    def release(self, units: int) -> None:
        """Release some of those that are left."""
        units = min(units, self._units)
        self._units -= units
        self._returned.append((self._row, units))

    def __del__(self) -> None:
        if self._units:
            self.release(self._units)


class HeldPermits:
    """The permits that requests of a worker have in a store that processes share, by the rows of keys and rules.

    They count until their charge is refunded or garbage-collected. They are renewed from each event loop that has taken
    one until none are left. A forked child has none of its parent's, and a name of its own. All methods but `count` are
    called by one thread at a time.

    A store that reads a row for a question writes what `renewed` returns, counts by a `PermitCounter` of this worker,
    and calls `hold` before others read the row. A refund of permits renews their row.

    Args:
        lease_us: How long a permit stays taken without a renewal, in microseconds.
        renew: Renews them; returns an awaitable if it has to wait.

    Attributes:
        is_open: Whether they are renewed.
        worker: The name of the worker in the store.
    """

    def __init__(self, lease_us: int, renew: Callable[[], Any]) -> None:
        self.lease_us = lease_us
        self._renew = renew
        self.is_open = True
        self._restart()
        self._in_child = ForkHook(self._restart)

    def _restart(self) -> None:
        self.worker = os.urandom(WORKER_BYTES)
        # Those first that were renewed longest ago. Without the GIL, a copy of an `OrderedDict` may raise in `count`.
        self._rows: dict[Row, HeldRow] = {}
        self._returned: deque[tuple[HeldRow, int]] = deque()
        self._tasks: dict[object, object] = {}

    def hold(self, decision: Decision, row_of: Callable[[Bucket, str], Row]) -> None:
        """Count the permits that a decision has charged, as long as it exists and they are not released.

        Args:
            row_of: Returns the row of a bucket and a key.
        """
        for charge in decision.reservations:
            bucket, key, _ = charge.check
            if bucket.is_permit:
                row = row_of(bucket, key)
                held_row = self._rows.setdefault(row, HeldRow())
                charge.holder = self
                # A limit of permits is the only one of its bucket.
                charge.permits = ChargedPermits(held_row, charge.units[0], self._returned)
                self.note_renewal(row, decision.now_us)
        self.begin_renewing()

    def rows(self) -> list[Row]:
        """Return the rows of which the worker has permits, or had some when it wrote them last."""
        return list(self._rows)

    def due_rows(self, now_us: int, most: int) -> list[Row]:
        """Return some rows of which half of the lease has gone since they were renewed."""
        oldest = islice(self._rows.items(), most)
        return [row for row, _ in takewhile(lambda entry: entry[1].due_us <= now_us, oldest)]

    def units(self, row: Row) -> int:
        """Return how many permits of a row the worker has."""
        while self._returned:
            returned_row, units = self._returned.popleft()
            returned_row.units -= units
        held_row = self._rows.get(row)
        if held_row is None:
            return 0
        return held_row.units

    def units_to_write(self, row: Row) -> int:
        """Return how many permits of a row the worker has, for a renewal; if none, it need not renew the row again."""
        units = self.units(row)
        if not units:
            self._rows.pop(row, None)
        return units

    def renewed(self, row: Row, stored: bytes, now_us: int) -> bytes:
        """Return the bytes of a row with the true count of this worker, for a full lease from now."""
        others, _, _ = apart(stored, self.worker, now_us)
        units = self.units_to_write(row)
        self.note_renewal(row, now_us)
        return others + entry(self.worker, now_us + self.lease_us, units)

    def note_renewal(self, row: Row, now_us: int) -> None:
        """Note that a row is renewed at a time of the store."""
        held_row = self._rows.get(row)
        if held_row is not None:
            held_row.due_us = now_us + self.lease_us // 2
            self._rows[row] = self._rows.pop(row)

    def count(self) -> int:
        """Return how many permits the worker has."""
        units_held = sum([row.units for row in list(self._rows.values())])
        return units_held - sum([units for _, units in self._returned.copy()])

    def begin_renewing(self) -> None:
        """Renew them, as long as there are any, from the event loop of this thread, of asyncio or trio, if it has one.

        `hold` calls this; a store that calls `hold` in a thread of its own calls this on the event loop afterwards.
        """
        if not self._rows:
            return
        loop: Any = running_loop()
        trio: Any = sys.modules.get("trio")
        if loop is not None and loop not in self._tasks:
            self._tasks[loop] = loop.create_task(self._keep_renewing(loop, asyncio.sleep), context=Context())
        elif loop is None and trio is not None:
            with suppress(RuntimeError):  # it does not run in this thread
                loop = trio.lowlevel.current_trio_token()
                if loop not in self._tasks:
                    self._tasks[loop] = trio.lowlevel.spawn_system_task(self._keep_renewing, loop, trio.sleep)

    async def _keep_renewing(self, loop: object, sleep: Callable[[float], Awaitable[object]]) -> None:
        try:
            while True:
                # That the store does not answer is reported by requests.
                with net("renewing permits failed, and goes on", monotonic), suppress(StoreError):
                    await sleep(self.lease_us / RENEWALS / 1_000_000)
                    if not self.is_open or not self._rows:
                        return
                    await answer_of(self._renew())
        finally:
            self._tasks.pop(loop, None)
