"""All processes of one host, through a file: `store` is where to begin."""

from __future__ import annotations

from .store import LmdbStats, LmdbStore

__all__ = ["LmdbStats", "LmdbStore"]
