"""A prepared question of a memory store, which caches its lock and the locations of its windows."""

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
    """Checks that a store has prepared. Other stores treat it as a sequence of checks, and copies are plain tuples.

    It refers to the dicts of tables, which are cleared but never replaced, so it keeps no swept or reset windows alive.

    Args:
        checks: The checks.
        store: The store that prepared them.
        lock: The lock of the keys' shards.

    Attributes:
        checks: The argument.
        store: The argument.
        lock: The argument.
        refs: The locations of recently used windows. Read and written only under the lock.
        dated: Whether quotas are among the limits.
        version: The version of the tables in `refs`, unique among all stores; 0 if there are none.
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
