"""A store for reading only: every change raises `StoreReadOnly`. For tools, around any other store."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, NoReturn

from ..core.errors import StoreReadOnly
from ..core.store import BanStore, CountsPermits, SharedRows, Store


def _delegate(name: str) -> Any:
    """Return a method that calls the method of this name of the wrapped object."""
    return lambda self, *arguments: getattr(self.inner, name)(*arguments)


def _refuse(self: Any, *arguments: Any) -> NoReturn:
    raise StoreReadOnly(f"{self.store!r} is open for reading only")


_refused: Any = _refuse
"""In place of a method that changes something."""


class ReadOnlyStore(Store):
    """Delegates all methods that change nothing."""

    is_read_only = True
    __repr__ = _delegate("__repr__")
    peek, inspect, observe, name_keys = map(_delegate, ("peek", "inspect", "observe", "name_keys"))
    hit = charge = refund = reset = reset_all = _refused

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.inner = self.store = store
        self.bans = _ReadOnlyBans(store, store.bans)
        self.answers_threads = store.answers_threads
        self.leases_units = store.leases_units
        if store.shared_rows is not None:
            self.shared_rows = _ReadOnlyRows(store, store.shared_rows)
        if isinstance(store, CountsPermits):
            self.permits_held = store.permits_held

    def close(self) -> Awaitable[None] | None:
        self.closed = True
        return self.store.close()


class _Part:
    """A part of a store."""

    def __init__(self, store: Store, inner: BanStore | SharedRows) -> None:
        self.store = store
        self.inner = inner


class _ReadOnlyBans(_Part, BanStore):
    may_refuse, count, find, pages = map(_delegate, ("may_refuse", "count", "find", "pages"))
    strike = ban = unban = load = _refused


class _ReadOnlyRows(_Part, SharedRows):
    time, read = map(_delegate, ("time", "read"))
    write = _refused
