"""A question that somebody asks a memory store again and again: it knows its lock and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

from ...core.decide import Counter
from ...core.decision import Check
from .shard import Locks, Table

if TYPE_CHECKING:
    from .store import MemoryStore

Asked: TypeAlias = tuple[Counter, int, Table, str]
"""What is asked of one limit: its counter, the cost, the table of the window, and the key."""


class Question(tuple[Check, ...]):
    """Checks that a store has prepared. Any other store takes them for what they are, and copies are plain checks.

    It refers to tables and to no window or dict of windows, so it keeps nothing that is swept or reset.

    Attributes:
        store: The store.
        lock: That of the shards of the keys.
        asked: What is asked of each limit of each check, in turn. Who holds the lock reads and writes it.
        version: The version of the tables in it, which no other store has; 0 for none.
    """

    store: MemoryStore
    lock: Lock | Locks
    asked: Sequence[Asked]
    version: int

    def __reduce__(self) -> tuple[type[tuple[Check, ...]], tuple[tuple[Check, ...]]]:
        return tuple, (tuple(self),)
