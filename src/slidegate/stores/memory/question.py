"""A question that somebody asks a memory store again and again: it knows its lock and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING

from ...core.decide import WindowRef
from ...core.decision import Check
from .shard import Locks

if TYPE_CHECKING:
    from .store import MemoryStore


class Question(tuple[Check, ...]):
    """Checks that a store has prepared. Any other store takes them for what they are, and copies are plain checks.

    It refers to dicts of tables, which are emptied and never replaced, so it keeps nothing that is swept or reset.

    Attributes:
        store: The store.
        lock: That of the shards of the keys.
        refs: Where the windows lie if they were asked for lately. Who holds the lock reads and writes it.
        dated: Whether quotas are among the limits.
        version: The version of the tables in it, which no other store has; 0 for none.
    """

    store: MemoryStore
    lock: Lock | Locks
    refs: Sequence[WindowRef]
    dated: bool
    version: int

    def __reduce__(self) -> tuple[type[tuple[Check, ...]], tuple[tuple[Check, ...]]]:
        return tuple, (tuple(self),)
