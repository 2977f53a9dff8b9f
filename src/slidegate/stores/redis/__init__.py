"""All hosts, through Redis, Valkey or Redis Cluster: `store` is where to begin."""

from __future__ import annotations

from .store import RedisStore

__all__ = ["RedisStore"]
