"""The store shared by many hosts: Redis, Valkey or Redis Cluster. Start reading at `store`."""

from __future__ import annotations

try:
    from .store import RedisStore
except ModuleNotFoundError as error:
    if error.name not in ("hiredis", "redis"):
        raise
    raise ImportError(f'RedisStore needs the package {error.name}: pip install "slidegate[redis]"') from error

__all__ = ["RedisStore"]
