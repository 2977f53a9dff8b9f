"""The LMDB store, for all processes of one host, in a file; start reading at `store`."""

from __future__ import annotations

from .store import LmdbStore

__all__ = ["LmdbStore"]
