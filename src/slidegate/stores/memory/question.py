"""A question that somebody asks a memory store again and again: it knows its lock and its tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, final, overload

from ...core.decide import WindowRef
from ...core.decision import Check
from .shard import Locks

if TYPE_CHECKING:
    from .store import MemoryStore


@final
class Question(Sequence[Check]):
    """Checks that a store has prepared. Any other store takes them for what they are, and copies are plain checks.

    It refers to dicts of tables, which are emptied and never replaced, so it keeps nothing that is swept or reset.

    Args:
        checks: The checks.
        store: The store.
        lock: That of the shards of the keys.

    Attributes:
        checks: The same.
        store: The same.
        lock: The same.
        refs: Where the windows lie if they were asked for lately. Who holds the lock reads and writes it.
        dated: Whether quotas are among the limits.
        version: The version of the tables in it, which no other store has; 0 for none.
    """

    __slots__ = ("checks", "dated", "lock", "refs", "store", "version")

    def __init__(self, checks: tuple[Check, ...], store: MemoryStore, lock: Lock | Locks) -> None:
        self.checks = checks
        self.store = store
        self.lock = lock
        self.refs: list[WindowRef] = []
        self.dated = False
        self.version = 0

    @overload
    def __getitem__(self, at: int) -> Check: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Check]: ...

    def __getitem__(self, at: int | slice) -> Check | Sequence[Check]:
        return self.checks[at]

    def __len__(self) -> int:
        return len(self.checks)

    def __iter__(self) -> Iterator[Check]:
        return iter(self.checks)

    def __reduce__(self) -> tuple[type[tuple[Check, ...]], tuple[tuple[Check, ...]]]:
        return tuple, (self.checks,)
