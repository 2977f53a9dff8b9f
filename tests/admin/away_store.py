"""A store in a file that can be switched off while a tool uses it."""

from __future__ import annotations

from slidegate.core import StoreUnavailable
from slidegate.stores.lmdb.store import LmdbStore


class AwayStore(LmdbStore):
    """A store that can be switched off."""

    away = False

    def peek(self, *args, **options):  # type: ignore[no-untyped-def]
        self._ask()
        return super().peek(*args, **options)

    def hit(self, *args, **options):  # type: ignore[no-untyped-def]
        self._ask()
        return super().hit(*args, **options)

    def charge(self, *args, **options):  # type: ignore[no-untyped-def]
        self._ask()
        return super().charge(*args, **options)

    def _ask(self) -> None:
        if self.away:
            raise StoreUnavailable("away")
