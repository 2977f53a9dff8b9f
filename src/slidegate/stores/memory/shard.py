"""The windows of a limit: dicts for the keys of each shard, the sweep of idle windows, and locks of several shards.

Python's garbage collector visits every object that may contain references, so a million window objects would block a
process for half a second at a time. It does not visit the entries of a dict of text and numbers to bytes. A dict is
copied when it grows, so the keys of a large store are divided among several shards.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from threading import RLock
from typing import Any, Final, TypeAlias, TypeVar

from ...core.bans.policy import STRIKES
from ...core.counters import ALONE, apart
from ...core.limits import AnyLimit, Concurrency
from ...core.limits import Identity as Window
from ...core.quotas import Quota
from ..shared import cell_of

STEP_WINDOWS: Final = 512
"""The most windows that one step of the sweep visits, in a fraction of a millisecond."""
COPIED: Final = 8
"""This many windows are copied in the time in which one is visited."""

T = TypeVar("T")

Identity: TypeAlias = tuple[str, Window]
"""The rule, and the identity of the window within the rule."""
Name: TypeAlias = str | int
"""A key, or the number of a shared cell."""
Windows: TypeAlias = MutableMapping[Any, bytes]


class Locks:
    """The locks of several shards, like one lock.

    Args:
        locks: The locks, in the order in which they are acquired.
    """

    def __init__(self, locks: Sequence[Any]) -> None:
        self._locks = locks

    def acquire(self) -> None:
        """Acquire all locks, or some if a signal handler raises meanwhile; `release` releases those."""
        for lock in self._locks:
            lock.acquire()

    def release(self) -> None:
        """Release the locks that this thread has; it may have been interrupted between two of them."""
        for lock in self._locks:
            release_if_held(lock)


def locked(lock: Any, do: Callable[[], T]) -> T:
    """Return what `do` returns under a lock, which no signal handler that raises leaves locked.

    A ``with`` keeps that promise for a lock of the interpreter alone: a method ``__exit__`` of `Locks` could be ended
    before its first line.
    """
    try:
        lock.acquire()
        answer = do()
        lock.release()
    except BaseException:
        release_if_held(lock)
        raise
    return answer


def release_if_held(lock: Any) -> None:
    """Release a lock unless this thread does not have it, as where it was interrupted."""
    with suppress(RuntimeError):
        lock.release()


class Capacity:
    """Counts the windows of a store over all shards, up to a maximum. Its lock is acquired last.

    Attributes:
        keys: The number of windows, without shared cells.
        max_keys: Their maximum.
        lock: Its lock, in the middle of which a signal handler may ask for room, too.
    """

    def __init__(self, max_keys: int) -> None:
        self.keys = 0
        self.max_keys = max_keys
        self.lock = RLock()

    def take(self) -> bool:
        """Reserve room for one window; return False if there is none."""
        with self.lock:
            if self.keys >= self.max_keys:
                return False
            self.keys += 1
            return True

    def release(self, keys: int) -> None:
        """Release the room of some windows."""
        with self.lock:
            self.keys -= keys


class Table:
    """The windows of one limit in one shard, by name, in two generations. Callers hold the shard's lock.

    A window that is used is in `fresh`. Once per window length, the windows in `stale` are removed, some in each step,
    because they have not been used for that long; then `fresh` becomes `stale`. So expired windows are found without
    reading them, except those of quotas and permits, which have no window length.

    The name of a window is its key; that of a shared cell, in which keys without room are counted, is its number.

    `fresh` is always the same dict, because the store keeps it as a place of each limit.

    Args:
        rule: The name of the bucket.
        limit: One of the limits that share these windows; its amount does not matter.
        capacity: Counts the windows of keys.

    Attributes:
        cells: How many shared cells there are; one too many in a child that was forked while one came or went.
        counts_strikes: Whether the limit is that of a ban policy, whose windows only an unban resets.
        holds_permits: Whether the limit is a concurrency limit.
    """

    __slots__ = ("_capacity", "cells", "counts_strikes", "fresh", "holds_permits", "limit", "stale")

    def __init__(self, rule: str, limit: AnyLimit, capacity: Capacity) -> None:
        self.limit = limit
        self._capacity = capacity
        self.cells = 0
        self.fresh: dict[Name, bytes] = {}
        self.stale: dict[Name, bytes] = {}
        self.counts_strikes = rule.startswith(STRIKES)
        self.holds_permits = isinstance(limit, Concurrency)

    def __bool__(self) -> bool:
        return bool(self.fresh or self.stale)

    def key_count(self) -> int:
        """Return how many windows there are, without shared cells."""
        return len(self.fresh) + len(self.stale) - self.cells

    # -- names -------------------------------------------------------------------------------------------------------

    def find(self, key: str, secret: bytes) -> tuple[Windows, Name]:
        """Return the location of a key's window or cell without creating one; a temporary mapping if there is none.

        Args:
            secret: The key of the hash that selects a cell.
        """
        name: Name = key
        windows = self.of(key)
        if windows is None and self.cells:  # else no digest is computed
            name = cell_of(key.encode(), secret)
            windows = self.of(name)
        return windows or {name: b""}, name

    def of(self, name: Name) -> dict[Name, bytes] | None:
        """Return the generation that contains a window; None if there is no such window."""
        for windows in (self.fresh, self.stale):
            if name in windows:
                return windows
        return None

    def place(self, key: str, secret: bytes) -> tuple[Windows, Name]:
        """Make a window for a key that is not in `fresh`, or a cell if there is no room; return its location.

        A new window is a copy of the key's cell, because its units there are mixed with those of other keys. Copies of
        permits would never be released, so a key stays in a cell as long as that contains permits.
        """
        window = self.stale.pop(key, None)
        if window is not None:
            self.fresh[key] = window
            return self.fresh, key
        has_room = self._capacity.take()
        if has_room and not self.cells:  # as usual, so that no digest is computed
            self.fresh[key] = b""
            return self.fresh, key
        number = cell_of(key.encode(), secret)
        cells = self.of(number)
        cell = b""
        if cells is not None:
            cell = cells[number]
        if has_room and cell and self.holds_permits:
            self._capacity.release(1)
            has_room = False
        if has_room:
            self.fresh[key] = cell
            return self.fresh, key
        if cells is None:
            self.cells += 1
        self.stale.pop(number, None)
        self.fresh[number] = cell
        return self.fresh, number

    def ensure_window(self, key: str) -> bool:
        """Have the key's own window in `fresh`, or make an empty one; return False if there is no room for it."""
        if key not in self.fresh:
            window = self.stale.pop(key, None)
            if window is None and not self._capacity.take():
                return False
            self.fresh[key] = window or b""
        return True

    # -- windows -----------------------------------------------------------------------------------------------------

    def in_use(self, window: bytes, now_us: int, unix_us: int) -> bool:
        """Return whether a window is in use; for a quota according to Unix time."""
        expires_us = self.limit.expires_us(window)
        if isinstance(self.limit, Quota):
            return unix_us < expires_us
        return now_us < expires_us

    def permits(self) -> int:
        """Return how many permits of a concurrency limit are taken."""
        permits = 0
        for window in (*self.fresh.values(), *self.stale.values()):
            _, units, _ = apart(window, ALONE)
            permits += units
        return permits

    def reset(self, key: str, now_us: int, unix_us: int) -> bool:
        """Forget the units in a key's own window; return False if there were none.

        The window stays: a new one would be a copy of a cell, with the units of other keys.
        """
        windows = self.of(key)
        if windows is None or self.holds_permits or self.counts_strikes:
            return False
        window = windows[key]
        windows[key] = b""
        return self.in_use(window, now_us, unix_us)

    def remove(self, key: str) -> bytes:
        """Remove the key's own window, and return it; empty if there is none."""
        windows = self.of(key)
        if windows is None:
            return b""
        self._capacity.release(1)
        return windows.pop(key)

    def clear(self) -> list[dict[Name, bytes]]:
        """Delete all windows and cells, and return them."""
        self._capacity.release(self.key_count())
        deleted = [self.fresh.copy(), self.stale]
        self.fresh.clear()
        self.stale = {}
        self.cells = 0
        return deleted

    # -- the sweep ---------------------------------------------------------------------------------------------------

    def step(self, now_us: int, unix_us: int) -> int:
        """Visit some stale windows, and delete those that are not in use; return how many were visited.

        Windows of limits with a `life_us` are deleted without reading them: this time has passed since their last use.
        """
        before, visited = self.key_count(), min(len(self.stale), STEP_WINDOWS)
        for _ in range(visited):
            name, window = self.stale.popitem()
            if not self.limit.life_us and self.in_use(window, now_us, unix_us):
                self.fresh[name] = window
            elif isinstance(name, int):
                self.cells -= 1
        self._capacity.release(before - self.key_count())
        return visited

    def rotate(self) -> int:
        """Make the fresh windows stale; there must be no stale ones left. Return how many there are."""
        windows = self.fresh.copy()
        self.fresh.clear()  # first: a child that is forked in between must not find a window in both
        self.stale = windows
        return len(windows)


class Tables(list[Table]):
    """The tables of one limit, one for each shard, and the progress of their sweep.

    Attributes:
        identity: The rule and the window that they have in common.
        limit: One of the limits.
    """

    def __init__(self, identity: Identity, limit: AnyLimit, locks: Sequence[Any], capacity: Capacity) -> None:
        super().__init__([Table(identity[0], limit, capacity) for _ in locks])
        self._locks = locks
        self.identity = identity
        self.limit = limit
        self._next = 0

    def sweep(self, now_us: int, unix_us: int) -> int:
        """Continue the sweep, one table after the other; return how many tables and windows were visited.

        Each table is rotated once in a sweep, when none of its windows are stale any more.
        """
        if self.is_swept():
            self._next = 0
        work = 0
        while not self.is_swept() and work < STEP_WINDOWS:
            table = self[self._next]
            work += 1
            if table:  # most tables of a rule that few keys use are empty
                with self._locks[self._next]:
                    work += table.step(now_us, unix_us)
                    if table.stale:
                        break
                    work += table.rotate() // COPIED
            self._next += 1
        return work

    def permits(self) -> int:
        """Return how many permits of a concurrency limit are taken."""
        permits = 0
        for at, table in enumerate(self):
            with self._locks[at]:
                permits += table.permits()
        return permits

    def is_swept(self) -> bool:
        """Return whether the sweep is complete; the next one begins at the first table."""
        return self._next == len(self)
