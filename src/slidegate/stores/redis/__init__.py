"""The store shared by many hosts: Redis, Valkey or Redis Cluster. Start reading at `store`."""

from __future__ import annotations

try:
    from .store import RedisStore
except ModuleNotFoundError as error:
    if error.name != "redis":
        raise
    raise ImportError('RedisStore needs the package redis: pip install "slidegate[redis]"') from error

__all__ = ["RedisStore"]
