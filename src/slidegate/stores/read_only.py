"""A store that is only looked at: every change raises `StoreReadOnly`. For tools, over any other store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from typing import Any, NoReturn

from ..core.bans.ban import Ban, BanSubject
from ..core.buckets import Bucket, Check
from ..core.decision import Decision
from ..core.errors import StoreReadOnly
from ..core.events import EventListener
from ..core.store import COMMAND_DEADLINE_S, BanStore, CountsPermits, NamesKeys, ReadRow, SharedRows, Snapshot, Store


class ReadOnlyStore(Store):
    """Passes on what changes nothing.

    Args:
        store: The store.
    """

    is_read_only = True

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self.bans = _ReadOnlyBans(store)
        self.answers_threads = store.answers_threads
        self.leases_units = store.leases_units
        if store.shared_rows is not None:
            self.shared_rows = _ReadOnlyRows(store, store.shared_rows)
        if isinstance(store, CountsPermits):
            self.permits_held = store.permits_held
        if isinstance(store, NamesKeys):
            self.name_keys = store.name_keys

    def __repr__(self) -> str:
        return repr(self._store)

    def peek(
        self, checks: Sequence[Check], subjects: Sequence[BanSubject] = (), deadline_s: float = COMMAND_DEADLINE_S
    ) -> Decision | Awaitable[Decision]:
        """See `Store`."""
        return self._store.peek(checks, subjects, deadline_s)

    def inspect(self, key: str, buckets: Sequence[Bucket]) -> Snapshot | Awaitable[Snapshot]:
        """See `Store`."""
        return self._store.inspect(key, buckets)

    def observe(self, observer: EventListener) -> None:
        """See `Store`."""
        self._store.observe(observer)

    def close(self) -> Awaitable[None] | None:
        """See `Store`."""
        self.closed = True
        return self._store.close()

    def _refuse(self, *arguments: Any) -> NoReturn:
        raise _read_only(self._store)

    hit: Any = _refuse
    charge: Any = _refuse
    refund: Any = _refuse
    reset: Any = _refuse
    reset_all: Any = _refuse


class _ReadOnlyBans(BanStore):
    def __init__(self, store: Store) -> None:
        self._store = store

    def may_refuse(self) -> bool:
        """See `BanStore`."""
        return self._store.bans.may_refuse()

    def count(self) -> int | None:
        """See `BanStore`."""
        return self._store.bans.count()

    def find(
        self, subjects: Sequence[BanSubject], deadline_s: float = COMMAND_DEADLINE_S
    ) -> Ban | Awaitable[Ban | None] | None:
        """See `BanStore`."""
        return self._store.bans.find(subjects, deadline_s)

    def pages(self) -> Iterable[Sequence[Ban]] | AsyncIterator[Sequence[Ban]]:
        """See `BanStore`."""
        return self._store.bans.pages()

    def _refuse(self, *arguments: Any) -> NoReturn:
        raise _read_only(self._store)

    strike: Any = _refuse
    ban: Any = _refuse
    unban: Any = _refuse
    load: Any = _refuse


class _ReadOnlyRows(SharedRows):
    def __init__(self, store: Store, rows: SharedRows) -> None:
        self._store = store
        self._rows = rows

    def time(self) -> int | Awaitable[int]:
        """See `SharedRows`."""
        return self._rows.time()

    def read(
        self, kind: str, first: int, last: int, deadline_s: float = COMMAND_DEADLINE_S
    ) -> Sequence[ReadRow] | Awaitable[Sequence[ReadRow]]:
        """See `SharedRows`."""
        return self._rows.read(kind, first, last, deadline_s)

    def write(self, *arguments: Any) -> NoReturn:
        """Refuse it."""
        raise _read_only(self._store)


def _read_only(store: Store) -> StoreReadOnly:
    return StoreReadOnly(f"{store!r} is open for reading only")
